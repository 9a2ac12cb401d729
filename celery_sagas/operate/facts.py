"""What is known of an instance: what was read of it, and what it waits for at certain times."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from enum import StrEnum
from typing import Any, Final, NamedTuple

from pydantic_core import from_json

from celery_sagas.core.pending import Pending
from celery_sagas.core.requests.requests import Request
from celery_sagas.core.requests.views import MemberOutcomes
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.step import Decision, StepDefinition
from celery_sagas.core.timeouts import Timeout
from celery_sagas.errors import NewerState, UnreadableState
from celery_sagas.stores.records import AuditEntry, DeadLetter, Entry, OutboxGlance, Record
from celery_sagas.stores.switches import Switch

#: What a series raises that cannot tell its next time.
_NO_TIME: Final = (ValueError, KeyError, OverflowError, OSError)


class What(StrEnum):
    """What comes at its time."""

    TIMEOUT = "timeout"
    DEADLINE = "deadline"  #: of a request
    WAKE = "wake"  #: a deferred message has waited for long enough
    THEN = "then"  #: the message to the step with which a compensation ends
    REQUEST = "request"  #: it is sent again, after a pause


class Due(NamedTuple):
    """What comes to an instance at its time."""

    what: What
    name: str  #: of the timeout; else of the task that was asked, or of the step
    at: int  #: milliseconds since the epoch; of a series the first occurrence that was not handled
    row: str  #: of the outbox
    step: str  #: that gets it; empty: none does
    is_series: bool = False

    @property
    def phrase(self) -> str:
        """What it is, in words."""
        return {
            What.TIMEOUT: f"the {'series' if self.is_series else 'timeout'} {self.name}",
            What.DEADLINE: f"the deadline of {self.name}",
            What.WAKE: f"the end of the time for which a message to {self.name} waits",
            What.THEN: f"the message to {self.name}, with which the compensation ends,",
            What.REQUEST: f"the request {self.name}",
        }[self.what]


@dataclass(frozen=True)
class Facts:
    """What was read of an instance, with its definition. Times are in milliseconds since the epoch, by the store's clock."""

    saga: SagaDefinition
    key: str
    instance_id: str  #: empty: unknown
    now: int
    record: Record | None = None  #: ``None``: it is damaged
    pending: Pending | None = None  #: ``None``: it cannot be read
    problems: Sequence[UnreadableState | NewerState] = ()  #: why something of it cannot be read
    status: str | None = None  #: ``None``: it has none, or it is unknown
    entries: Sequence[Entry] = ()  #: the newest of the instance's, oldest first
    rows: Mapping[str, OutboxGlance] = field(default_factory=dict)  #: of the outbox, by id
    dead_letters: Sequence[DeadLetter] = ()  #: of its messages, newest first
    members: Mapping[str, MemberOutcomes] = field(default_factory=dict)  #: of its gathers, by request
    steps: Sequence[StepDefinition] = ()  #: of the saga
    held: Sequence[Switch] = ()  #: what operators hold of the saga: itself, or steps of it
    zone: tzinfo | None = UTC  #: in which times are said; ``None``: that of this machine

    @property
    def requests(self) -> list[Request]:
        """The open requests, in the order in which they were sent."""
        return [each for each in self.pending.requests.values() if not each.has_timed_out] if self.pending else []

    @property
    def next_steps(self) -> list[StepDefinition]:
        """The steps that a message may reach as the instance is; whether a function in ``when=`` admits one is not known."""
        return [step for step in self.steps if not step.is_internal and self._may_run(step)]

    def _may_run(self, step: StepDefinition) -> bool:
        is_in_status = not step.status.when or self.status is None or self.status in step.status.when
        return is_in_status and step.decide(exists=True) is Decision.CONTINUE

    def asked_at(self, request: Request) -> int:
        """Return when a request was sent; 0 if its entry is not among those that were read."""
        asked = ((entry.at, parts_of(detail_of(entry), "asked")) for entry in self.entries)
        return next((at for at, requests in asked if any(each.get("request") == request.id for each in requests)), 0)


def detail_of(entry: Entry | AuditEntry) -> Mapping[str, Any]:
    """Return the details of an entry; of one that cannot be read, none."""
    try:
        detail = from_json(entry.detail)
    except (ValueError, TypeError):  # TypeError: half a surrogate pair
        return {}
    return detail if isinstance(detail, dict) else {}


def parts_of(detail: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Return what the details of an entry list under a name."""
    listed = detail.get(name)
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def due_of(facts: Facts) -> list[Due]:
    """Return what comes to an instance, the first one first."""
    return sorted(_due_of(facts, facts.pending), key=lambda due: due.at) if facts.pending else []


def _due_of(facts: Facts, pending: Pending) -> Iterator[Due]:
    held = {deferred.awaited for deferred in pending.deferred}  # it came, and waits with the instance
    for name, timeout in pending.timeouts.items():
        if timeout.id in held:
            continue
        yield Due(What.TIMEOUT, name, time_of(timeout), timeout.row, timeout.step, timeout.every is not None)
    for request in facts.requests:
        if request.at and request.id not in held:
            yield Due(What.DEADLINE, name_of(request), request.at, request.row, request.otherwise)
        if request.sent_at and request.sent_row in facts.rows:  # it is removed once it was published
            yield Due(What.REQUEST, name_of(request), request.sent_at, request.sent_row, request.task)
    for deferred in pending.deferred:
        if row := facts.rows.get(deferred.row):
            yield Due(What.WAKE, deferred.step, row.due_at, row.id, deferred.step)
    undoing = pending.undo.undoing
    if undoing is not None and undoing.then is not None and undoing.then_id:
        at = facts.record.updated_at if facts.record else facts.now
        yield Due(What.THEN, undoing.then.task, at, undoing.then_row, undoing.then.task)


def is_left_alone(facts: Facts, late_ms: int) -> bool:
    """Return whether nothing is sure to come to an instance that nobody has paused; not if its pending map cannot be read.

    Args:
        facts: The instance.
        late_ms: What is due for longer, in milliseconds, is not sure to come.
    """
    pending = facts.pending
    if pending is None:
        return False
    has_wake = any(deferred.row for deferred in pending.deferred)
    has_retry = any(request.sent_at > facts.now for request in facts.requests)
    is_sure = any(due.at >= facts.now - late_ms for due in due_of(facts))
    return not (pending.paused or has_wake or has_retry or is_sure)


def time_of(timeout: Timeout) -> int:
    """Return when a timeout is due; of a series, when the first occurrence is that was not handled."""
    if timeout.every is None:
        return timeout.at
    try:
        return timeout.every.following(max(timeout.handled_at, timeout.at - 1))
    except _NO_TIME:
        return timeout.at


def name_of(request: Request) -> str:
    """Return how a request is called: its task, or how many members it has."""
    return f"{request.members:,} members" if request.members else request.task
