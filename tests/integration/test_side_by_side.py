"""Workers with old and with new code on one queue and one backend, as while they are replaced one by one."""

import time
from typing import Any

import pytest

from tests.integration.conftest import Deploy
from tests.integration.ledgers import ENTER, LEDGERS, SOON, Sent, assert_kept, enter, enter_again, keep_busy
from tests.integration.redeliveries import PLACES, assert_no_spinning, redeliveries, wait_redelivered
from tests.integration.worker import Deployment, Worker
from tests.waiting import wait_until

OLD, NEW = "ledgers_old", "ledgers_new"
#: What old code says of what new code has written.
NEWER = "has schema version 2, this code knows 1"
MESSAGES, WAITING = 200, 60


def _start(deployment: Deployment, code: str) -> Worker:
    deployment.app = code
    return deployment.start("prefork", 2).wait_ready()


@pytest.mark.parametrize(("engine", "broker"), PLACES)
def test_workers_are_replaced_under_load(deploy: Deploy, engine: str, broker: str) -> None:
    """An old worker redelivers later what new code has written, and keeps the fields that it does not know."""
    deployment = deploy(OLD, broker, engine, **SOON)
    began = time.monotonic()
    old = _start(deployment, OLD)
    sent = enter(deployment, range(LEDGERS))
    deployment.wait_handled(ENTER, LEDGERS)
    new = _start(deployment, NEW)
    wait_until(lambda: _enter_more(deployment, sent, LEDGERS) and NEWER in old.log, old.describe)
    _enter_more(deployment, sent, MESSAGES)
    keep_busy(deployment, sent)
    assert old.stop() == 0
    _enter_more(deployment, sent, LEDGERS)  # so that new code has written each ledger for certain
    assert_kept(deployment, sent)
    _assert_new(deployment, sent)
    _assert_heard_by_both(deployment, sent)
    assert_no_spinning(old, ENTER, time.monotonic() - began)
    assert NEWER not in new.log
    _assert_ends(deployment, new)


@pytest.mark.parametrize(("engine", "broker"), PLACES)
def test_messages_wait_while_there_is_only_old_code(deploy: Deploy, engine: str, broker: str) -> None:
    """The roll-out was undone, and is done again later: nothing is lost meanwhile, and what new code has handled is done."""
    deployment = deploy(NEW, broker, engine, **SOON)
    handled = _handle_with_new_code(deployment)
    written = _stored(deployment, "ledger", handled)
    began = time.monotonic()
    old = _start(deployment, OLD)
    enter_again(deployment, handled)
    waiting = enter(deployment, range(LEDGERS, WAITING))
    wait_redelivered(old, ENTER, set(waiting))
    assert redeliveries(old, ENTER).keys() == waiting.keys()  # and no repeat
    assert _stored(deployment, "ledger", handled) == written
    new = _start(deployment, NEW)
    wait_until(lambda: deployment.handled(ENTER) > LEDGERS, deployment.describe)
    assert old.stop() == 0
    assert_kept(deployment, handled | waiting)
    _assert_new(deployment, handled | waiting)
    assert_no_spinning(old, ENTER, time.monotonic() - began)
    _assert_ends(deployment, new)


def _enter_more(deployment: Deployment, sent: Sent, count: int) -> bool:
    sent |= enter(deployment, range(len(sent), len(sent) + count))
    return True


def _handle_with_new_code(deployment: Deployment) -> Sent:
    """Have a worker with new code write each ledger, and end."""
    worker = _start(deployment, NEW)
    sent = enter(deployment, range(LEDGERS))
    assert_kept(deployment, sent)
    assert worker.stop() == 0
    return sent


def _stored(deployment: Deployment, saga: str, sent: Sent) -> list[dict[str, Any]]:
    states = [deployment.state(saga, name) for name in sorted({name for name, _ in sent.values()})]
    assert None not in states
    return [state for state in states if state is not None]


def _assert_new(deployment: Deployment, sent: Sent) -> None:
    """Assert that new code has written each ledger, and old code none since: it would have left the total behind."""
    for ledger in _stored(deployment, "ledger", sent):
        assert ledger["total"] == sum(ledger["entries"])


def _assert_heard_by_both(deployment: Deployment, sent: Sent) -> None:
    """Assert that both codes have written echoes, and each has kept what the other wrote."""
    echoes = _stored(deployment, "echo", sent)
    for echo in echoes:
        assert sorted(echo["heard_by_old"] + echo.get("heard_by_new", [])) == sorted(echo["heard"])
    assert any(echo["heard_by_old"] for echo in echoes)
    assert any(echo.get("heard_by_new") for echo in echoes)


def _assert_ends(deployment: Deployment, worker: Worker) -> None:
    """Assert that a worker has nothing left to do, and holds nothing back."""
    deployment.wait_idle(worker)
    assert worker.stop() == 0
    assert deployment.queued() == 0
