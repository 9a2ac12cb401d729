"""Rules about the broker, and the workers that answer over it."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from celery_sagas.operate.doctor.facts import Broker, Code, Found, Relay, Rule, Workers, named
from celery_sagas.operate.doctor.stores import FAR_MS, apart
from celery_sagas.operate.spans import span
from celery_sagas.stores.health import Level

#: How long ago the last sweep of a relay has ended at most, if it sweeps every second. Milliseconds.
_SWEPT_MS: Final = 30_000
#: The same in times of the interval between sweeps.
_SWEPT: Final = 3
#: How many characters of an error are shown.
_ERROR: Final = 100
_STATUS: Final = "celery -A proj status    lists the workers that answer"
_LOGS: Final = "Look at the log of that worker, then start it again"
_RELAYS: Final = "celery -A proj inspect sagas_relay --timeout 10    shows which relays run, and what they meet"
_DEPLOY: Final = "Deploy one release to all workers; while that goes on, there is nothing to do"


def _broker(facts: Broker) -> Iterator[Found]:
    if facts.error:
        error = facts.error.rstrip(".")
        sentence = f"The broker cannot be reached: {error}. No message is sent or handled; what was committed waits in the outbox"
        yield Found(Level.FAIL, sentence, "Look at the server, at the network between, and at broker_url")
    if facts.driver == "amqp" and facts.confirms is False:
        sentence = (
            "confirm_publish is switched off in broker_transport_options: RabbitMQ confirms nothing, and a message counts as "
            "sent that it has never got"
        )
        yield Found(Level.FAIL, sentence, "Remove confirm_publish from broker_transport_options")
    if facts.driver == "amqp" and facts.confirms and not facts.has_timeouts:
        sentence = "confirm_publish is set without read_timeout: if the broker is silent, whoever publishes waits forever"
        remedy = 'Set broker_transport_options = {"confirm_publish": True, "read_timeout": 5, "write_timeout": 5}'
        yield Found(Level.WARN, sentence, remedy)


def _relays(facts: Workers) -> Iterator[Found]:
    relays = [(worker.name, worker.relay) for worker in facts.workers if worker.relay is not None]
    running = [(name, relay) for name, relay in relays if relay.is_running]
    if not relays:
        yield Found(Level.WARN, "No worker has said within a second whether its relay runs: each is busy", _RELAYS)
    if facts.has_relays and relays and not running:
        sentence = "No worker that has answered runs a relay: timeouts, and messages that a dead worker has left, are not sent"
        yield Found(
            Level.FAIL, sentence, "Set saga_relay = True in the workers and start them again, or run `celery sagas relay`"
        )
    for name, relay in running:
        if relay.error:
            yield Found(Level.WARN, f"The relay of {name} cannot go on, and tries again: {relay.error[:_ERROR]}", _LOGS)
        elif relay.swept_ms is not None and relay.swept_ms > max(_SWEPT_MS, _SWEPT * facts.interval_ms):
            sentence = f"The relay of {name} has last swept {span(relay.swept_ms)} ago: it hangs, and sends nothing that is due"
            yield Found(Level.WARN, sentence, _LOGS)
    if unknown := unknown_steps(facts):
        sentence = f"No worker that has answered knows {named(unknown)}: the timeouts of these steps stay in the outbox"
        yield Found(Level.WARN, sentence, "Deploy code that has these steps, or name a renamed step's old name: formerly=")


def running_relays(facts: Workers) -> list[Relay]:
    """Return the relays that are at work."""
    return [worker.relay for worker in facts.workers if worker.relay is not None and worker.relay.is_running]


def unknown_steps(facts: Workers) -> list[str]:
    """Return the steps whose rows relays leave to others, and that no worker knows which has answered."""
    known = {step for code in _codes(facts) for steps in code.steps.values() for step in steps}
    return sorted({step for relay in running_relays(facts) for step in relay.unknown} - known)


def _answers(facts: Workers) -> Iterator[Found]:
    if facts.workers or not facts.can_be_asked:
        return
    others = f"; {facts.others:,} others have answered, of other apps or of another release" if facts.others else ""
    sentence = (
        f"No worker of this app has answered within a second{others}: none runs, or each is busy (a solo pool), or remote "
        "control is off. Whether relays run, and queues have consumers, is not known"
    )
    yield Found(Level.WARN, sentence, _STATUS)


def _clocks(facts: Workers) -> Iterator[Found]:
    for worker in facts.workers:
        if abs(worker.ahead_ms) > FAR_MS:
            sentence = f"The clock of {worker.name} is {apart(worker.ahead_ms)} this machine's: its timeouts come at another time"
            yield Found(Level.WARN, sentence, "Have all machines set their clocks by NTP (`timedatectl`, `chronyc tracking`)")


def _queues(facts: Workers) -> Iterator[Found]:
    for queue, tasks in sorted(facts.wanted.items()):
        if facts.consumed is not None and queue not in facts.consumed:
            sentence = (
                f"No worker that has answered takes messages from the queue {queue}, to which {named(tasks)} go: they wait there"
            )
            remedy = (
                f"Start a worker with -Q {queue}, or correct task_routes; celery -A proj inspect active_queues lists the queues"
            )
            yield Found(Level.WARN, sentence, remedy)


def _code(facts: Workers) -> Iterator[Found]:
    yield from _versions(facts)
    yield from _schema_versions(facts)
    for worker in facts.workers:
        lacking = [step for saga in worker.code.steps for step in sorted(_steps(facts, saga) - worker.code.steps[saga])]
        if lacking:
            sentence = f"{worker.name} does not know {named(lacking)}, which other code has: it leaves their messages to others"
            yield Found(Level.WARN, sentence, _DEPLOY)


def _versions(facts: Workers) -> Iterator[Found]:
    versions = defaultdict[str, list[str]](list)
    for name, code in _named_codes(facts):
        versions[code.version].append(name)
    if len(versions) > 1:
        shown = "; ".join(f"{version} in {named(names)}" for version, names in sorted(versions.items()))
        yield Found(Level.WARN, f"Processes run several releases of celery-sagas: {shown}", _DEPLOY)


def _schema_versions(facts: Workers) -> Iterator[Found]:
    for saga in facts.here.schema_versions:
        names = defaultdict[int, list[str]](list)
        for name, code in _named_codes(facts):
            if saga in code.schema_versions:
                names[code.schema_versions[saga]].append(name)
        if len(names) > 1:
            shown = "; ".join(f"{version} in {named(each)}" for version, each in sorted(names.items()))
            sentence = (
                f"Processes know several schema versions of {saga}: {shown}. What newer code has changed waits where only older "
                "code runs"
            )
            yield Found(Level.WARN, sentence, _DEPLOY)


def _steps(facts: Workers, saga: str) -> frozenset[str]:
    return frozenset[str]().union(*(code.steps.get(saga, ()) for code in _codes(facts)))


def _named_codes(facts: Workers) -> list[tuple[str, Code]]:
    return [("this command", facts.here), *((worker.name, worker.code) for worker in facts.workers)]


def _codes(facts: Workers) -> list[Code]:
    return [code for _, code in _named_codes(facts)]


def _said(facts: Workers) -> str:
    running = len(running_relays(facts))
    if facts.can_be_asked and not facts.has_relays and not running:
        return "saga_relay is off: D14 says whether `celery sagas relay` sends what is due."
    if facts.can_be_asked:
        return f"{running:,} of {len(facts.workers):,} workers that have answered run a relay."
    return "Workers cannot be asked over this broker: D14 says whether what is due is sent."


BROKER: Final = (Rule[Broker]("D21", lambda facts: "The broker answers.", _broker),)
#: For the workers of the app, be there some that have answered or not.
ASKED: Final = (Rule[Workers]("D13", lambda facts: "" if facts.workers else _said(facts), _answers),)
#: For those that have answered.
ANSWERED: Final = (
    Rule[Workers]("D12", lambda facts: "", _clocks),
    Rule[Workers]("D13", _said, _relays),
    Rule[Workers](
        "D15", lambda facts: "" if facts.consumed is None else "Every queue that the sagas need has a consumer.", _queues
    ),
    Rule[Workers]("D16", lambda facts: "All workers run the same code.", _code),
)
