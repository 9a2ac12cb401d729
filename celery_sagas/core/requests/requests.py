"""Conversations: what an instance has asked for and waits for, and whom it answers."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple, Self

#: How many requests an instance may wait for; of those that are timed out it keeps as many, the newest.
REQUESTS = 1_000
#: Ends the name of the step that gets an answer for which none was named; no function can be named like it.
ANSWERED = "(answered)"
#: The task that collects what comes of the members of gathers; every app with this library has it.
GATHER = "celery_sagas.gather"


#: Options of publishing that a target may have: where it goes, and how it is written. It says not when, nor what follows it.
ROUTING = frozenset(
    {"queue", "exchange", "exchange_type", "routing_key", "priority", "serializer", "compression", "delivery_mode"}
)


class ReplyKind(StrEnum):
    """What came of a request."""

    ANSWER = "answer"
    FAILURE = "failure"
    #: A failure of what may have been answered all the same: by another run, or before its worker was lost.
    UNCERTAIN = "uncertain"
    DEADLINE = "deadline"
    GATHERED = "gathered"  #: all members of a gather have answered, or failed


class Addressed(NamedTuple):
    """To which instance a message goes, and to no other."""

    instance_id: str
    id: str  #: of the timeout, or of the request
    came: str = ""  #: what came of the request; empty: it is a timeout
    has_value: bool = True  #: of an answer; none has who ends without a reply, or ignores what is asked


class Target(NamedTuple):
    """The step that gets what came of a request, and what its message has beside that."""

    task: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}
    takes: bool = True  #: whether what came is put before the arguments
    options: Mapping[str, Any] = {}  #: how it is published, from wherever that is done

    def to_json(self) -> list[Any]:
        """Return it in values of JSON."""
        return [self.task, list(self.args), dict(self.kwargs), self.takes, dict(self.options)]

    @classmethod
    def from_json(cls, value: object) -> Self | None:
        """Return the target that a value of JSON holds; ``None`` if it is not of its form."""
        if not isinstance(value, list) or len(value) != 5:
            return None
        task, args, kwargs, takes, options = value
        is_target = isinstance(task, str) and isinstance(args, list) and isinstance(kwargs, dict) and isinstance(options, dict)
        if not is_target:
            return None
        routing = {name: value for name, value in options.items() if name in ROUTING and isinstance(value, str | int | float)}
        return cls(task, tuple(args), kwargs, bool(takes), routing)


class ReturnAddress(NamedTuple):
    """Where what came of a request goes; it travels with the message that asks, and is kept by an instance that this starts."""

    saga: str  #: the stored name of the saga that asks
    instance: str
    request: str  #: its id
    then: Target | None  #: ``None`` for all of a chain but its last task: their answers are the next one's
    otherwise: Target | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it in values of JSON."""
        value: dict[str, Any] = {"saga": self.saga, "instance": self.instance, "request": self.request}
        steps = {"then": self.then, "otherwise": self.otherwise}
        return value | {name: target.to_json() for name, target in steps.items() if target}

    @classmethod
    def from_json(cls, value: object) -> Self | None:
        """Return the address that a value of JSON holds; ``None`` if it is not of its form."""
        if not isinstance(value, Mapping):
            return None
        saga, instance, request = (value.get(name) for name in ("saga", "instance", "request"))
        then, otherwise = Target.from_json(value.get("then")), Target.from_json(value.get("otherwise"))
        is_address = all(isinstance(text, str) and 0 < len(text) <= 255 for text in (saga, instance, request))
        if not is_address or not (then or otherwise):
            return None
        return cls(str(saga), str(instance), str(request), then, otherwise)


_FAILURES = frozenset({ReplyKind.FAILURE, ReplyKind.UNCERTAIN, ReplyKind.DEADLINE})


@dataclass(frozen=True, slots=True)
class Request:
    """What an instance has asked for."""

    id: str  #: the message id of what was sent
    task: str
    then: str  #: the step that gets the answer
    otherwise: str = ""  #: the step that gets the failure; empty: none
    row: str = ""  #: of the outbox: its deadline, if it has one
    at: int = 0  #: its deadline; milliseconds since the epoch
    has_timed_out: bool = False  #: ``otherwise`` has run, since the deadline has passed or the failure is uncertain
    members: int = 0  #: of a gather; 0: it is none
    at_least: int = 0  #: how many of them must answer
    to_then: Target | None = None  #: of a gather, which is brought to its end from wherever its last member answers
    to_otherwise: Target | None = None
    more: Mapping[str, Any] = field(default_factory=dict)  #: what newer code has noted of it

    def target(self, answers: int) -> Target | None:
        """Return the step to which a gather goes that has ended with so many answers; ``None`` if nobody here can read it."""
        return self.to_otherwise if self.otherwise and answers < self.at_least else self.to_then

    def is_handled_by(self, steps: Collection[str], came: str) -> bool:
        """Whether a step, known by one of its names, handles what came of it; a second failure nobody does."""
        if self.has_timed_out and came in _FAILURES:
            return False
        is_then = came in (ReplyKind.ANSWER, ReplyKind.GATHERED) and self.then in steps
        return is_then or (came != ReplyKind.ANSWER and self.otherwise in steps)

    def to_json(self) -> dict[str, Any]:
        """Return it in values of JSON, without its id, which stands beside it."""
        value: dict[str, Any] = {**self.more, "task": self.task, "then": self.then}
        if self.otherwise:
            value["otherwise"] = self.otherwise
        if self.at:
            value |= {"row": self.row, "at": self.at}
        if self.has_timed_out:
            value["timed_out"] = True
        if self.members:
            value |= {"members": self.members, "at_least": self.at_least}
        targets = {"to_then": self.to_then, "to_otherwise": self.to_otherwise}
        return value | {name: target.to_json() for name, target in targets.items() if target}

    @classmethod
    def from_json(cls, id: str, value: dict[str, Any]) -> Self:
        """Return the request that stands under an id.

        Raises:
            KeyError: It is not of its form.
        """
        task, then = value.pop("task"), value.pop("then")
        defaults = {"otherwise": "", "row": "", "at": 0, "timed_out": False, "members": 0, "at_least": 0}
        values = [value.pop(name, default) for name, default in defaults.items()]
        targets = {name: Target.from_json(value.get(name)) for name in ("to_then", "to_otherwise")}
        more = {name: kept for name, kept in value.items() if not targets.get(name)}  # also a target in a form of newer code
        to_then, to_otherwise = targets.values()
        return replace(cls(id, task, then, *values), to_then=to_then, to_otherwise=to_otherwise, more=more)

    def to_journal(self) -> dict[str, Any]:
        """Return what the journal says of it."""
        said = {"request": self.id, "task": self.task, "then": self.then, "otherwise": self.otherwise, "until": self.at}
        said |= {"members": self.members, "at_least": self.at_least}
        return {name: value for name, value in said.items() if value}
