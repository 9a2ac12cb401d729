"""Conversations: the requests that an instance waits for, and the address to which it replies."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self

from celery_sagas.core.delays import Backoff
from celery_sagas.core.ids import derived_id, following_rows

#: The most requests that an instance may wait for; of those that have timed out it keeps as many, the newest.
REQUESTS = 1_000
#: Ends the name of the step that receives answers for which no step was named; no function can have such a name.
ANSWERED = "(answered)"
#: Ends the name of the step that receives the outcomes of undos.
UNDONE = "(undone)"
#: The task that collects the outcomes of a gather's members; every app with this library has it.
GATHER = "celery_sagas.gather"


#: The publishing options that a target may have: where it goes, and how it is serialized, but not when, nor what follows it.
ROUTING = frozenset(
    {"queue", "exchange", "exchange_type", "routing_key", "priority", "serializer", "compression", "delivery_mode"}
)


class ReplyKind(StrEnum):
    """The kind of a request's outcome."""

    ANSWER = "answer"
    FAILURE = "failure"
    #: A failure of a request that may have been answered all the same: by another run, or before its worker was lost.
    UNCERTAIN = "uncertain"
    DEADLINE = "deadline"
    GATHERED = "gathered"  #: all members of a gather have answered, or failed
    PROGRESS = "progress"  #: an interim answer: the request stays open


class Addressed(NamedTuple):
    """The one instance to which a message goes."""

    instance_id: str
    id: str  #: of the timeout, or of the request
    came: str = ""  #: the kind of the request's outcome; empty for a timeout
    has_value: bool = True  #: of an answer; false if the instance ended without a reply, or ignored the request
    failure: str = ""  #: the kind of a failure that a process notifies of
    #: Of an occurrence of a series: when it was due, in milliseconds since the epoch. If another was handled after that, it is
    #: dropped. 0: it is not.
    due_at: int = 0


class Target(NamedTuple):
    """The step that receives the outcome of a request, and the rest of its message."""

    task: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}
    takes: bool = True  #: whether the outcome is put before the arguments
    options: Mapping[str, Any] = {}  #: how it is published, by any process

    def given(self, value: Any) -> Self:
        """Return it with the outcome before its arguments."""
        return self._replace(args=(value, *self.args), takes=False)

    def to_json(self) -> list[Any]:
        """Return it as JSON values."""
        return [self.task, list(self.args), dict(self.kwargs), self.takes, dict(self.options)]

    @classmethod
    def from_json(cls, value: object) -> Self | None:
        """Return the target that a JSON value describes; ``None`` if it describes none."""
        if not isinstance(value, list) or len(value) != 5:
            return None
        task, args, kwargs, takes, options = value
        is_target = isinstance(task, str) and isinstance(args, list) and isinstance(kwargs, dict) and isinstance(options, dict)
        if not is_target:
            return None
        routing = {name: value for name, value in options.items() if name in ROUTING and isinstance(value, str | int | float)}
        return cls(task, tuple(args), kwargs, bool(takes), routing)


class ReturnAddress(NamedTuple):
    """The destination of a request's outcome: it travels with the request, and an instance that the request starts keeps it."""

    saga: str  #: the stored name of the requesting saga
    instance: str
    request: str  #: the request's id
    then: Target | None  #: ``None`` for all of a chain but its last task: their answers go to the next one
    otherwise: Target | None = None
    progress: Target | None = None  #: the step that receives interim answers

    @property
    def of_failures(self) -> Self:
        """The address for failures alone."""
        return self._replace(then=None, progress=None)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        value: dict[str, Any] = {"saga": self.saga, "instance": self.instance, "request": self.request}
        steps = {"then": self.then, "otherwise": self.otherwise, "progress": self.progress}
        return value | {name: target.to_json() for name, target in steps.items() if target}

    @classmethod
    def from_json(cls, value: object) -> Self | None:
        """Return the address that a JSON value describes; ``None`` if it describes none."""
        if not isinstance(value, Mapping):
            return None
        saga, instance, request = (value.get(name) for name in ("saga", "instance", "request"))
        then, otherwise, progress = (Target.from_json(value.get(name)) for name in ("then", "otherwise", "progress"))
        is_address = all(isinstance(text, str) and 0 < len(text) <= 255 for text in (saga, instance, request))
        if not is_address or not (then or otherwise):
            return None
        return cls(str(saga), str(instance), str(request), then, otherwise, progress)


#: The kinds of outcomes that are not an answer.
FAILURES: Final = frozenset({ReplyKind.FAILURE, ReplyKind.UNCERTAIN, ReplyKind.DEADLINE})


#: The parts of an ``Again`` that are targets.
_RECEIVERS: Final = ("to_then", "to_otherwise", "to_progress")


#: The kinds of failures after which a request with ``retry=`` is sent again.
_RETRIED: Final = frozenset({"error", "lost", "deadline"})


class Again(NamedTuple):
    """How a request is sent again when it has failed."""

    message: Mapping[str, Any]  #: the signature that ``send`` was given, as JSON values
    retry: Backoff
    within_s: float = 0.0  #: how long an answer may take, each time; 0: indefinitely
    number: int = 0  #: of the retry; 0: the first time
    first: str = ""  #: the id of the first of these requests; empty: this one
    to_then: Target | None = None
    to_otherwise: Target | None = None
    to_progress: Target | None = None

    @property
    def is_left(self) -> bool:
        """Whether there is a retry left."""
        return self.number < self.retry.times

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        plain = {"message": self.message, "retry": list(self.retry), "within_s": self.within_s, "number": self.number}
        targets = {name: getattr(self, name) for name in _RECEIVERS}
        value = {name: part for name, part in {**plain, "first": self.first}.items() if part}
        return value | {name: target.to_json() for name, target in targets.items() if target}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return what JSON values describe."""
        given = {**value, "retry": Backoff(*value["retry"])}
        return cls(**given | {name: Target.from_json(value.get(name)) for name in _RECEIVERS})


@dataclass(frozen=True, slots=True)
class Request:
    """A request of an instance."""

    id: str  #: the message id of what was sent
    task: str
    then: str  #: the step that gets the answer
    otherwise: str = ""  #: the step that gets the failure; empty: none
    row: str = ""  #: of the outbox: its deadline, if it has one
    at: int = 0  #: its deadline; milliseconds since the epoch
    has_timed_out: bool = False  #: ``otherwise`` has run, since the deadline has passed or the failure is uncertain
    members: int = 0  #: of a gather; 0 for any other request
    at_least: int = 0  #: how many of them must answer
    to_then: Target | None = None  #: of a gather, which any process may end, when the last member has answered
    to_otherwise: Target | None = None
    sent_row: str = ""  #: of the outbox: its message, if that is due later; of a gather that of its first member
    sent_at: int = 0  #: when that is due; milliseconds since the epoch
    undo: Target | None = None  #: the task that undoes it
    is_undone: bool = False  #: its outcome goes to its undo, and to no step
    undoes: str = ""  #: it is an undo: the id of the work that it undoes
    again: Again | None = None  #: how it is sent again when it has failed
    progress: str = ""  #: the step that gets interim answers; empty: none
    early: bool = False  #: a gather that ends as soon as ``at_least`` members have answered
    more: Mapping[str, Any] = field(default_factory=dict)  #: what newer code has stored with it

    @property
    def first(self) -> str:
        """The id that ``send`` has returned: of the first of the requests that were sent again."""
        return (self.again and self.again.first) or self.id

    @property
    def most_to_undo(self) -> int:
        """How many pieces of work may have to be undone, once it and its retries have outcomes."""
        attempts = 1 + self.again.retry.times - self.again.number if self.again and self.undo and not self.undo.takes else 1
        return self.members or attempts

    @property
    def task_ids(self) -> list[str]:
        """The ids of the tasks that answer."""
        return [self.member(position) for position in range(self.members)] or [self.id]

    def member(self, position: int) -> str:
        """Return the id under which the last task of a gather's member was sent."""
        return derived_id(self.id, f"member {position}")

    @property
    def member_rows(self) -> list[str]:
        """The rows of the outbox that a gather's members were stored in, by position; they are gone once they are published."""
        return following_rows(self.sent_row, self.members)

    def is_settled(self, steps: Collection[str], addressed: Addressed) -> bool:
        """Return whether an outcome, sent to a step of one of these names, is for the library, and for no step."""
        is_ours = bool(self.undoes) or self.is_undone or self.is_tried_again(addressed)
        return is_ours and self.is_handled_by(steps, addressed.came)

    def is_tried_again(self, addressed: Addressed) -> bool:
        """Return whether it is sent again after an outcome, which no step handles."""
        if self.again is None or self.undoes or self.has_timed_out or not self.again.is_left:
            return False
        kind = addressed.failure or ("deadline" if addressed.came == ReplyKind.DEADLINE else "error")
        return addressed.came in FAILURES and kind in _RETRIED

    @property
    def fewest(self) -> int:
        """How many outcomes a gather has at least when it ends before its time is over."""
        return self.at_least if self.early else self.members

    def is_over(self, answers: int, outcomes: int) -> bool:
        """Return whether a gather has ended before its time is over, with so many answers among its outcomes."""
        return outcomes >= self.members or (self.early and answers >= self.at_least)

    def next_end(self, answers: int, outcomes: int) -> int:
        """Return how many outcomes a gather has at least when it ends, if it goes on with so many answers among these."""
        return min(self.members, outcomes + self.at_least - answers) if self.early else self.members

    def without_outcome(self, gathered: object) -> list[int]:
        """Return the members from which nothing has come, given the JSON values of a ``Gathered``; all without these."""
        parts = [gathered.get(name) for name in ("answers", "failures")] if isinstance(gathered, Mapping) else []
        known = {position for part in parts if isinstance(part, Mapping) for position in part}
        return [position for position in range(self.members) if str(position) not in known]

    def target(self, answers: int) -> Target | None:
        """Return the step for a gather that has ended with this many answers; ``None`` if this code cannot read it."""
        return self.to_otherwise if self.otherwise and answers < self.at_least else self.to_then

    def is_handled_by(self, steps: Collection[str], came: str) -> bool:
        """Return whether a step, known by one of its names, handles this outcome; no step handles a second failure.

        An interim answer is handled as long as the request is open.
        """
        if came == ReplyKind.PROGRESS:
            return self.progress in steps and not (self.has_timed_out or self.is_undone)
        if self.has_timed_out and came in FAILURES:
            return False
        is_then = came in (ReplyKind.ANSWER, ReplyKind.GATHERED) and self.then in steps
        return is_then or (came != ReplyKind.ANSWER and self.otherwise in steps)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, without its id, which is stored beside it."""
        value: dict[str, Any] = {**self.more, "task": self.task, "then": self.then}
        if self.otherwise:
            value["otherwise"] = self.otherwise
        if self.at:
            value |= {"row": self.row, "at": self.at}
        if self.has_timed_out:
            value["timed_out"] = True
        if self.members:
            value |= {"members": self.members, "at_least": self.at_least}
        if self.members or self.sent_row or self.undo or self.undoes or self.again or self.progress:
            value |= self._rest()
        return value

    def _rest(self) -> dict[str, Any]:
        parts = {name: getattr(self, name) for name in (*_TARGETS, "again")}
        plain = {name: getattr(self, name) for name in _PLAIN}
        return {name: part.to_json() for name, part in parts.items() if part} | {
            name: part for name, part in plain.items() if part
        }

    @classmethod
    def from_json(cls, id: str, value: dict[str, Any]) -> Self:
        """Return the request that is stored under an id.

        Raises:
            KeyError: The value does not describe one.
        """
        task, then = value.pop("task"), value.pop("then")
        defaults = {"otherwise": "", "row": "", "at": 0, "timed_out": False, "members": 0, "at_least": 0}
        values = [value.pop(name, default) for name, default in defaults.items()]
        request = cls(id, task, then, *values)
        if not value:
            return request
        targets: dict[str, Any] = {name: Target.from_json(value.get(name)) for name in _TARGETS}
        plain = {name: value.pop(name) for name in _PLAIN if name in value}
        again = Again.from_json(value.pop("again")) if "again" in value else None
        more = {name: kept for name, kept in value.items() if not targets.get(name)}  # also a target in a form of newer code
        return replace(request, **targets, **plain, again=again, more=more)

    def to_journal(self) -> dict[str, Any]:
        """Return the journal's details of it."""
        said = {"request": self.id, "task": self.task, "then": self.then, "otherwise": self.otherwise, "until": self.at}
        said |= {"progress": self.progress, "undoes": self.undoes, "number": self.again.number if self.again else 0}
        said |= {"members": self.members, "at_least": self.at_least, "early": self.early}
        return {name: value for name, value in said.items() if value}


#: The parts of a request that are stored under their own names.
_TARGETS: Final = ("to_then", "to_otherwise", "undo")
_PLAIN: Final = ("sent_row", "sent_at", "is_undone", "undoes", "progress", "early")
