"""Entries in ledgers (``apps/chaos.py``), known beforehand: each is told to an echo once, and some set an alarm."""

from collections import defaultdict
from typing import Any

from tests.integration.worker import Deployment
from tests.waiting import DEADLINE_S, wait_until

ENTER, HEAR, ALARM = "ledger.enter", "echo.hear", "ledger.alarm"
LEDGERS = 20
#: As in the app.
ALARM_EVERY = 10
#: How a deployment comes soon to what others have left behind. Seconds.
SOON = {"saga_dispatch_grace": 2, "saga_lease_ttl": 2, "saga_relay_interval": 0.2}

#: What was sent: message id → ledger and number.
Sent = dict[str, tuple[str, int]]
Numbers = dict[str, list[int]]


def enter(deployment: Deployment, numbers: range, ledgers: int = LEDGERS) -> Sent:
    """Send numbers to ledgers."""
    named = [(f"ledger {number % ledgers}", number) for number in numbers]
    return {deployment.send(ENTER, name=name, number=number): (name, number) for name, number in named}


def keep_busy(deployment: Deployment, sent: Sent) -> None:
    """Enter more numbers, until some are not handled yet: the workers may be quicker than their test."""
    while deployment.handled(ENTER) >= len(sent):
        sent.update(enter(deployment, range(len(sent), len(sent) + LEDGERS)))


def enter_again(deployment: Deployment, sent: Sent) -> None:
    """Send the same messages, under their ids."""
    for message_id, (name, number) in sent.items():
        deployment.send(ENTER, task_id=message_id, name=name, number=number)


def assert_kept(deployment: Deployment, sent: Sent, deadline_s: float = DEADLINE_S) -> None:
    """Assert that every entry is kept once, heard once and alarmed once, and that nothing is left to do."""
    wanted = _numbers(sent)
    alarms = {name: [number for number in numbers if number % ALARM_EVERY == 0] for name, numbers in wanted.items()}
    for step, count in ((ENTER, len(sent)), (HEAR, len(sent)), (ALARM, sum(map(len, alarms.values())))):
        deployment.wait_handled(step, count, deadline_s)
        assert deployment.handled(step) == count
    wait_until(lambda: deployment.backend.outbox.count() == 0, lambda: f"an empty outbox\n{deployment.describe()}")
    assert _stored(deployment, "ledger", "entries", wanted) == wanted
    assert _stored(deployment, "echo", "heard", wanted) == wanted
    assert _stored(deployment, "ledger", "alarms", wanted) == alarms
    assert deployment.backend.dead.list(10) == []
    assert deployment.failures() == []


def _numbers(sent: Sent) -> Numbers:
    """Return what each ledger must hold."""
    wanted: Numbers = defaultdict(list)
    for name, number in sent.values():
        wanted[name].append(number)
    return dict(wanted)


def _stored(deployment: Deployment, saga: str, field: str, wanted: Numbers) -> Numbers:
    states: dict[str, Any] = {name: deployment.state(saga, name) or {} for name in wanted}
    return {name: sorted(state.get(field, [])) for name, state in states.items()}
