"""Counters whose process is killed, once at each point of its way through a message.

The name of a counter says where: ``before find``, ``after commit``, … Imported in place of ``counters``.
Messages of ``add`` pass.
"""

from collections.abc import Callable
from typing import Any

from celery import Task, signals
from counters import Counter, told
from counters import add as add
from counters import app as app
from deployed import FOLDER, first_time
from traps import die, set_trap, set_traps_of_many

from celery_sagas.engine import conflicts, waves
from celery_sagas.engine.outcomes import Missing
from celery_sagas.errors import RevisionConflict, StoreUnavailable
from celery_sagas.worker import runtime
from celery_sagas.worker.publishing.amqp import AmqpPublisher

#: What happens first, and where, to a message that does not come to its point on the straight way: an error, or else a death.
FIRST: dict[str, tuple[str, Exception | None]] = {
    "lock": ("before update", RevisionConflict("counter", "", "version")),
    "count": ("before commit", None),
    "redeliver": ("before find", StoreUnavailable("", "it is away")),
    **dict.fromkeys(("look", "claim", "republish", "reconfirm"), ("after commit", None)),
}

waves.BATCH_S = 60.0  # however busy the machine is
conflicts.LOCK_MS = 1_000  # the next delivery waits for that of the dead


class Broken(Exception):
    """What fails until it is fixed."""


def break_until_fixed() -> None:
    if not (FOLDER / "fixed").exists():
        raise Broken("it broke")


class Picky(Task):
    """A base that fails before the step begins: the worker's main process dead-letters the message."""

    def before_start(self, *_: Any) -> None:
        break_until_fixed()


@Counter.starts
def add_and_break(counter: Counter, name: str, amount: int) -> None:
    counter.value += amount
    counter.send(told.si(name=name, amount=amount))
    break_until_fixed()


@Counter.starts(base=Picky)
def never_begin(counter: Counter, name: str, amount: int) -> None:
    counter.value += amount
    counter.send(told.si(name=name, amount=amount))


@Counter.starts
def tell_nobody(counter: Counter, name: str, amount: int) -> None:
    """Tell, and send what no broker takes."""
    counter.value += amount
    counter.send(told.si(name=name, amount=amount))
    counter.send(told.si(name=f"nobody of {name}", amount=amount).set(queue="nowhere"))


@Counter.handles
def tell_of_missing(counter: Counter, name: str, amount: int) -> None:
    counter.value += amount


@tell_of_missing.if_missing
def tell_that_it_is_missing(missing: Missing, name: str, amount: int) -> None:
    missing.send(told.si(name=name, amount=amount))


def come_to(counter: str, point: str) -> None:
    """Die if this is the point of a counter, or let happen what leads there."""
    if counter == point:
        die(counter)
    first, error = FIRST.get(counter.partition(" ")[2], ("", None))
    if first == point and error is None:
        die(f"{counter}, at first")
    elif first == point and first_time(f"{counter}, at first"):
        raise error


def deadly(port: Any, method: str, stage: str, counter_of: Callable[..., str]) -> None:
    """Let a port's method kill the process before and after its work, for the counters that are named so."""
    set_trap(port, method, stage, counter_of, come_to)


class Traps:
    """What is known in one process of the counters that it handles."""

    def __init__(self) -> None:
        self.messages: dict[str, str] = {}  #: to counters, by id
        self.rows: dict[str, str] = {}  #: that counters send, by id

    def arm(self, backend: Any) -> None:
        """Put the traps into a backend."""
        sagas, outbox = backend.sagas, backend.outbox
        deadly(sagas, "find", "find", self.of_found)
        deadly(sagas, "update", "update", self.of_effects)
        for commit in ("insert", "update", "delete"):
            deadly(sagas, commit, "commit", self.of_effects)
        deadly(sagas, "record", "record", self.of_effects)
        deadly(sagas, "find", "follow", self.of_told)
        for commit in ("insert", "update"):
            deadly(sagas, commit, "followed", self.of_told_effects)
        deadly(sagas, "lock", "lock", lambda record, *_: record.key)
        deadly(backend.journal, "outcome_of", "outcome", lambda _, key: key)
        deadly(backend.deliveries, "count", "count", lambda _, message_id: self.messages.get(message_id, ""))
        deadly(backend.dead, "add", "dead_letter", lambda dead_letter: dead_letter.key)
        deadly(backend.dead, "add", "keep", lambda dead_letter: dead_letter.task.removeprefix("counter."))
        deadly(outbox, "count_leased", "look", self.of_cause)
        deadly(outbox, "claim_due", "claim", lambda *claim: self.of_cause(*claim[3:]))
        deadly(outbox, "fail", "fail", lambda _, id, *__: self.rows.get(id, ""))
        for stage in ("confirm", "reconfirm"):
            deadly(outbox, "confirm", stage, self.of_confirmed)
        set_traps_of_many(backend)

    def arm_dispatcher(self, dispatcher: Any) -> None:
        """Put the traps into what publishes, and give it all the time that it needs to come there."""
        dispatcher.clock = float
        if isinstance(dispatcher.publisher, AmqpPublisher):
            deadly(dispatcher.publisher, "_post", "publish", lambda row, _: self.of_row(row))
        else:
            deadly(dispatcher.publisher, "publish", "publish", self.of_row)
            deadly(dispatcher.publisher, "publish_many", "publish", lambda rows: self.of_row(rows[0]))
        deadly(dispatcher.publisher, "publish", "republish", self.of_row)
        deadly(dispatcher.publisher, "publish_signature", "redeliver", self.of_signature)

    def of_found(self, lookup: Any, handling: Any = None) -> str:
        if handling is None or "counter." not in handling.steps[0] or handling.steps[0] == add.name:
            return ""
        return self.messages.setdefault(handling.message_id, str(lookup.value))

    def of_told(self, lookup: Any, handling: Any = None) -> str:
        return str(lookup.value) if handling is not None and told.name in handling.steps else ""

    def of_told_effects(self, *arguments: Any) -> str:
        entry = arguments[-1].entry
        return str(entry.key) if entry.step == told.name else ""

    def of_cause(self, cause: Any = None) -> str:
        return self.messages.get(cause.message_id, "") if cause else ""

    def of_effects(self, *arguments: Any) -> str:
        effects = arguments[-1]
        name = effects.entry.key if effects.entry.saga == "counter" and effects.entry.step != add.name else ""
        self.rows.update((row.id, name) for row in effects.outgoing)
        return name

    def of_row(self, row: Any) -> str:
        return self.rows.setdefault(row.id, self.messages.get(getattr(row, "cause", ""), ""))

    def of_signature(self, sent: Any) -> str:
        return self.messages.get(sent.options["task_id"], "")

    def of_confirmed(self, _: str, ids: list[str], keep_ms: int = 0) -> str:
        return next((self.rows[id] for id in ids if "confirm" in self.rows.get(id, "")), "")


traps = Traps()
_open = runtime.open_backends


def open_deadly(*arguments: Any) -> Any:
    """Open the backends, the default one with traps, in a process of the pool or in the main process."""
    backends = _open(*arguments)
    traps.arm(backends.default)
    return backends


runtime.open_backends = open_deadly


@signals.worker_process_init.connect
def arm(**_: object) -> None:
    """Put the traps into what this process publishes with."""
    traps.arm_dispatcher(runtime.runtime_of(app).services.dispatcher)
