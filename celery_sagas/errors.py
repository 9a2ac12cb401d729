"""Every exception of the library, in one tree.

An error is a dataclass whose fields are plain JSON values. They are the arguments of the exception, unchanged: pickle and
Celery's JSON result backend rebuild it as ``cls(*exc.args)``. The text is made in ``__str__``. Two errors are equal if they are
the same object, as for every exception.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import ClassVar, Final

#: The exceptions of broken user code: caught around validators, functions of ``by=`` and comparisons. An interruption, such as
#: a time limit, is not one of them.
BUGS: Final = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError)


class Retry(StrEnum):
    """The time at which a message that failed with an error may run again."""

    NEVER = "never"  #: the same message would fail in the same way
    AT_ONCE = "at once"  #: another run committed first: run again from find
    LATER = "later"  #: the store cannot serve it now: the same message is published again, delayed
    DONE = "done"  #: another run of the message committed: there is nothing left to do


def recurs(error: BaseException) -> bool:
    """Return whether a message that failed with an error would fail with it each time it ran.

    An error of the user's code may pass, whatever its class: a ``ValueError`` may come of half an answer of a server.
    """
    return isinstance(error, SagaError) and error.retry is Retry.NEVER


class SagaError(Exception):
    """The root of every error of this library."""

    retry: ClassVar[Retry] = Retry.NEVER

    def __post_init__(self) -> None:
        # Not super(): OSError, of which TimeoutError is a subclass, reads its first arguments as a number and a text.
        Exception.__init__(self, *(getattr(self, each.name) for each in fields(self) if each.init))  # type: ignore[arg-type]


@dataclass(eq=False, repr=False)
class ConfigurationError(SagaError):
    """Raised when a setting is wrong or a backend is unsafe."""

    problem: str
    remedy: str = ""

    def __str__(self) -> str:
        return _sentences(self.problem, self.remedy)


class MissingExtra(ConfigurationError, ImportError):
    """Raised when a package cannot be imported that an extra installs."""


@contextmanager
def needs_extra(extra: str, what: str) -> Iterator[None]:
    """Say which extra is to be installed, if something cannot be imported meanwhile.

    Args:
        extra: Its name.
        what: What it installs, or what needs it, as the subject of a sentence.

    Raises:
        MissingExtra: A package cannot be imported.
    """
    try:
        yield
    except MissingExtra:
        raise
    except ImportError as exc:
        raise MissingExtra(f"{what} cannot be imported ({exc})", f'Run pip install "celery-sagas[{extra}]"') from exc


class UnsafeBackend(ConfigurationError):
    """Raised when a backend cannot keep the promise; ``saga_unsafe_backend = "warn"`` runs it all the same."""


@dataclass(eq=False, repr=False)
class DefinitionError(SagaError):
    """Raised when a saga or a step is declared wrongly: at import, or when the app is finalised."""

    subject: str
    problem: str
    remedy: str = ""

    def __str__(self) -> str:
        return _sentences(f"{self.subject}: {self.problem}", self.remedy)


@dataclass(eq=False, repr=False)
class MisuseError(SagaError):
    """Raised when the library is called where it cannot work, such as a step called inline from another step."""

    problem: str
    remedy: str = ""

    def __str__(self) -> str:
        return _sentences(self.problem, self.remedy)


@dataclass(eq=False, repr=False)
class HistoryError(SagaError):
    """Raised when the history of an instance cannot be read, or not be replayed from its beginning."""

    saga: str
    key: str
    problem: str
    remedy: str = ""

    def __str__(self) -> str:
        subject = f"{self.saga} {self.key!r}: " if self.saga else ""
        return _sentences(f"{subject}{self.problem}", self.remedy)


class MessageError(SagaError):
    """The base of errors that a message cannot outlive: it is never retried."""


@dataclass(eq=False, repr=False)
class InvalidMessage(MessageError):
    """Raised when the arguments of a message do not fit the annotations of its step."""

    step: str
    problems: Sequence[Sequence[str]]  #: pairs of path and text

    def __str__(self) -> str:
        return f"The message does not fit {self.step}: {problems_text(self.problems)}. Nothing was stored or sent."


@dataclass(eq=False, repr=False)
class AnswerNotKept(InvalidMessage):
    """Raised by ``ask`` when the step has handled the message, and what it has returned cannot be had."""

    step: str
    problems: Sequence[Sequence[str]] = field(init=False, default=())  #: the one problem
    problem: str

    def __post_init__(self) -> None:
        super().__post_init__()
        self.problems = [("", self.problem)]

    def __str__(self) -> str:
        return _sentences(
            f"{self.step} has handled the message, and what it returned cannot be had: {self.problem}",
            "Its effect is committed; read it from the instance",
        )


@dataclass(eq=False, repr=False)
class InvalidState(MessageError):
    """Raised when the state that a handler left behind could not be loaded again."""

    saga: str
    key: str
    problems: Sequence[Sequence[str]]  #: pairs of path and text
    remedy: str = "fix the handler or the field's type"

    def __str__(self) -> str:
        return (
            f"The state of {self.saga} {self.key!r} cannot be stored: {problems_text(self.problems)}. "
            f"Nothing was stored or sent; {self.remedy}."
        )


@dataclass(eq=False, repr=False)
class CorrelationError(MessageError):
    """Raised when a message names no instance, or names it with a value that is not a key; also by look-ups and listings."""

    step: str  #: empty for a look-up or a listing
    problem: str
    saga: str = ""  #: the class that a look-up or a listing is of

    def __str__(self) -> str:
        if self.saga:
            return f"This names no instance of {self.saga}: {self.problem}."
        return f"The message to {self.step} does not say which instance it is for: {self.problem}. Nothing was stored or sent."


@dataclass(eq=False, repr=False)
class TooManyDeliveries(MessageError):
    """Raised when the broker delivers a message again and again, because it ends its worker each time."""

    step: str
    message_id: str
    deliveries: int
    allowed: int

    def __str__(self) -> str:
        return (
            f"The message {self.message_id} was delivered to {self.step} {self.deliveries} times, and never handled to the end; "
            f"saga_max_deliveries allows {self.allowed}. Look in the workers' logs for what ended them (memory, a crash), "
            "fix it, and retry the dead letter."
        )


@dataclass(eq=False, repr=False)
class UndoFailed(MessageError):
    """Raised when a task that undoes something has failed for good: the rest of the compensation waits for it."""

    saga: str
    key: str
    task: str  #: the task that undoes
    attempts: int
    failure: str  #: the last one

    def __str__(self) -> str:
        return (
            f"{self.task} could not undo what {self.saga} {self.key!r} has done, in {self.attempts} attempts: {self.failure}. "
            "Mend the cause and retry the dead letter; or discard it, and the undo counts as done."
        )


@dataclass(eq=False, repr=False)
class WrongStatus(MessageError):
    """Raised when a step does not run on an instance in its status: by ``if_not="raise"``, or after ``defer_for``."""

    saga: str
    key: str
    step: str
    status: str  #: empty if the saga has none
    expected: str  #: such as "when it is 'paid'"
    waited: float = 0.0  #: for how many seconds the message was deferred

    def __str__(self) -> str:
        status = f" is {self.status!r}, and" if self.status else ":"
        waited = f" The message was deferred for {self.waited:g} s." if self.waited else ""
        declare = "" if self.waited else '; or declare what becomes of such messages: if_not="ignore", or "defer"'
        problem = f"{self.saga} {self.key!r}{status} {self.step} runs only {self.expected}.{waited}"
        return f"{problem} Retry the dead letter once that is so{declare}."


@dataclass(eq=False, repr=False)
class SagaNotFound(SagaError):
    """Raised by the policy ``if_missing="raise"``, by ``"defer"`` after ``defer_for``, and where a wait is in vain."""

    saga: str
    property: str
    value: str
    completed: bool = False

    def __str__(self) -> str:
        by = "key" if ", " in self.property else self.property
        gone = "it has ended" if by == "id" else f"none that the journal knows by this {by}"
        why = "it has completed" if self.completed else f"none was started, or {gone}"
        return f"There is no {self.saga} with {self.property}={self.value!r}: {why}."


@dataclass(eq=False, repr=False)
class WaitTimeout(SagaError, TimeoutError):
    """Raised when what ``wait`` waits for has not come in time."""

    saga: str
    property: str
    value: str
    seconds: float
    version: int = 0  #: of the instance when it was last seen; 0 if it never was
    completed: bool = False  #: whether the journal has a completed instance with this key

    def __str__(self) -> str:
        gone = "the journal knows of one that has completed" if self.completed else "none is there"
        seen = f"it is at version {self.version}" if self.version else gone
        return (
            f"After {self.seconds:g} s the {self.saga} with {self.property}={self.value!r} is not as it was waited for: {seen}. "
            "See whether workers run and what became of its messages (celery sagas dead list), or wait longer."
        )


@dataclass(eq=False, repr=False)
class AskTimeout(WaitTimeout):
    """Raised by ``ask`` when no answer has come in time: the message may still be handled."""

    step: str = ""
    id: str = ""  #: of the message: asking again with it handles nothing twice

    def __str__(self) -> str:
        return (
            f"{self.step} has not answered within {self.seconds:g} s ({self.saga}, {self.property}={self.value!r}). The message "
            f"may still be handled: ask again with id={self.id!r}, and it is handled once, whenever that is."
        )


@dataclass(eq=False, repr=False)
class StepFailed(SagaError):
    """Raised by ``ask`` when the step has failed, and its message is a dead letter."""

    step: str
    error: str  #: the class name of the step's error
    text: str  #: of the step's error; empty once the dead letter is gone
    letter: str  #: the id of the dead letter; empty in eager mode, which keeps none

    def __str__(self) -> str:
        what = f"{self.step} has failed with {self.error}{f': {self.text}' if self.text else ''}"
        kept = f"Nothing was changed; its message is kept as the dead letter {self.letter}" if self.letter else ""
        return _sentences(what, kept)


@dataclass(eq=False, repr=False)
class SagaAlreadyExists(SagaError):
    """Raised by the policy ``if_exists="raise"``."""

    saga: str
    property: str
    value: str
    instance_id: str

    def __str__(self) -> str:
        return f"A {self.saga} with {self.property}={self.value!r} is already there: instance {self.instance_id}."


@dataclass(eq=False, repr=False)
class KeyTaken(SagaError):
    """Raised when an alternate key that a handler set belongs to another live instance."""

    saga: str
    property: str
    value: str
    instance_id: str  #: of the other instance
    key: str = ""  #: of the other instance: the text of its correlation key; empty in what an older process pickled

    def __str__(self) -> str:
        return (
            f"{self.property}={self.value!r} belongs to the live {self.saga} {self.key!r} (instance {self.instance_id}). "
            "An alternate key is unique among live instances: use another value, or complete that one first."
        )


@dataclass(eq=False, repr=False)
class PublishError(SagaError):
    """Raised when the broker did not confirm a message; it may have arrived all the same. The broker's error is the cause."""

    retry = Retry.LATER
    reason: str
    connection: bool = False  #: whether the error says nothing about this message: the broker may be away

    def __str__(self) -> str:
        return _sentences(f"The broker did not confirm the message: {self.reason}", "It may have arrived all the same")


class Unconfirmed(PublishError):
    """Raised when the broker was reached and did not confirm a message: the cause may be the message, or the broker."""


@dataclass(eq=False, repr=False)
class Unroutable(PublishError):
    """Raised when RabbitMQ returned a message because no queue takes it: it has not arrived."""

    reason: str = field(init=False)
    connection: bool = field(init=False, default=False)
    exchange: str
    routing_key: str

    def __post_init__(self) -> None:
        super().__post_init__()
        known = f"the exchange {self.exchange!r} with the routing key {self.routing_key!r}"
        route = known if self.exchange else f"the queue {self.routing_key!r}"
        self.reason = (
            f"no queue takes what is sent to {route}: declare and bind the queue, or correct the route. "
            "What may find no queue is sent with .set(mandatory=False)"
        )

    def __str__(self) -> str:
        return _sentences(f"RabbitMQ returned the message: {self.reason}")


class StoreError(SagaError):
    """The base of everything that a store raises."""


@dataclass(eq=False, repr=False)
class RevisionConflict(StoreError):
    """Raised when the instance is no longer as it was found, or another commit has inserted one of its keys."""

    retry = Retry.AT_ONCE
    saga: str
    key: str
    reason: str  #: "version", "unique", "locked" or "deadlock"

    def __str__(self) -> str:
        return (
            f"{self.saga} {self.key!r} was changed by another message since it was found ({self.reason}). Nothing was stored; "
            "a step runs again from find."
        )


@dataclass(eq=False, repr=False)
class TooManyDeferred(StoreError):
    """Raised when no more messages can wait with an instance for another status: the message is redelivered later."""

    retry = Retry.LATER
    saga: str
    key: str
    step: str
    problem: str

    def __str__(self) -> str:
        return (
            f"A message to {self.step} cannot be deferred with {self.saga} {self.key!r}: {self.problem}. "
            "It is redelivered later; see why the instance does not come into the status that they wait for."
        )


@dataclass(eq=False, repr=False)
class AlreadyHandled(StoreError):
    """Raised when another run of the same message has committed: nothing was written."""

    retry = Retry.DONE
    step: str
    message_id: str

    def __str__(self) -> str:
        return f"The message {self.message_id} was already handled by {self.step}."


@dataclass(eq=False, repr=False)
class StillUnsent(StoreError):
    """Raised when a message was handled before, and what it sends has not been published yet.

    Another process has it under a lease. If that process is dead, the repeat of the message publishes it later.
    """

    retry = Retry.LATER
    step: str
    message_id: str
    rows: int

    def __str__(self) -> str:
        return (
            f"{self.step} has handled the message {self.message_id}, and {self.rows} messages that it sends are not published "
            "yet, or not confirmed."
        )


@dataclass(eq=False, repr=False)
class StoreUnavailable(StoreError):
    """Raised when the store cannot be reached or cannot serve; the driver's error is the cause."""

    retry = Retry.LATER
    store: str  #: the backend's URL without its password
    problem: str

    def __str__(self) -> str:
        return _sentences(f"The saga backend {self.store} is unavailable: {self.problem}")


@dataclass(eq=False, repr=False)
class NewerState(StoreUnavailable):
    """Raised when an instance was written by newer code: a worker that runs it can handle the message."""

    store: str = field(init=False, default="")
    problem: str = field(init=False, default="newer code wrote the state")
    saga: str
    key: str
    stored: int
    known: int
    number: str = "schema version"  #: which number of it is newer

    def __str__(self) -> str:
        return (
            f"The state of {self.saga} {self.key!r} has {self.number} {self.stored}, this code knows {self.known}. "
            "Newer code has written it, and is needed here; messages are kept for a worker that runs it."
        )


@dataclass(eq=False, repr=False)
class StepHeld(StoreError):
    """Raised when an operator holds a step, or all steps of its saga: the message waits until it is released."""

    retry = Retry.LATER
    step: str
    name: str  #: what is held: the step, or its saga
    actor: str
    reason: str

    def __str__(self) -> str:
        which = "is held" if self.name == self.step else f"is held with all steps of {self.name}"
        return _sentences(f"{self.step} {which}, by {self.actor!r}: {self.reason!r}", "Nothing was handled")


@dataclass(eq=False, repr=False)
class UnreadableState(StoreError):
    """Raised when a stored state can be neither decoded nor validated."""

    saga: str
    key: str
    problem: str
    remedy: str = "Raise schema_version and write an upgrade() if the saga has changed, or fix the record"

    def __str__(self) -> str:
        return _sentences(f"The stored state of {self.saga} {self.key!r} cannot be read: {self.problem}", self.remedy)


@dataclass(eq=False, repr=False)
class UnreadableItem(StoreError):
    """Raised when a buffered item does not fit the type of its aggregator's items."""

    aggregator: str  #: the aggregator's name
    group: str  #: the text of its group
    id: str  #: the item's id
    problems: Sequence[Sequence[str]]  #: pairs of a path into the item and a text

    def __str__(self) -> str:
        return (
            f"The item {self.id!r} of {self.aggregator}{_of_group(self.group)} cannot be read: {problems_text(self.problems)}. "
            "It stays buffered: deploy code that can read it, or remove it by its id."
        )


@dataclass(eq=False, repr=False)
class ItemRejected(SagaError):
    """The error in the dead letter of an item that an aggregator has rejected; it is never raised."""

    aggregator: str
    group: str
    id: str
    reason: str

    def __str__(self) -> str:
        return _sentences(f"The item {self.id!r} of {self.aggregator}{_of_group(self.group)} was rejected: {self.reason}")


@dataclass(eq=False, repr=False)
class BufferFull(StoreError):
    """Raised when a group of an aggregator has ``max_buffered`` items: nothing is dropped, the producer must wait."""

    retry = Retry.LATER
    aggregator: str
    group: str
    max_buffered: int
    refused: Sequence[str] = ()  #: the ids of the items that were not added, in every full group of the call

    def __str__(self) -> str:
        return (
            f"The buffer of {self.aggregator}{_of_group(self.group)} is full: max_buffered allows {self.max_buffered:,} items. "
            f"{len(self.refused)} items were not added; add them again, under their ids, when its workers have caught up."
        )


@dataclass(eq=False, repr=False)
class LeaseLost(StoreError):
    """Raised when a flush took longer than its lease, and another flush has its items now: this one has removed none."""

    retry = Retry.DONE
    aggregator: str
    group: str
    token: str

    def __str__(self) -> str:
        return (
            f"A flush of {self.aggregator}{_of_group(self.group)} has lost its lease, because its worker stood still, or the "
            "store was away, for longer than saga_lease_ttl. Its items are flushed again."
        )


class NotBuffered(StoreError):
    """The base of errors about an item that is not in the buffer, or cannot be removed from it."""


@dataclass(eq=False, repr=False)
class NothingBuffered(NotBuffered):
    """Raised when a group, or an aggregator, has no items."""

    aggregator: str
    group: str

    def __str__(self) -> str:
        return f"{self.aggregator}{_of_group(self.group)} has nothing buffered."


@dataclass(eq=False, repr=False)
class ItemNotBuffered(NotBuffered):
    """Raised when a group, or an aggregator, has items, but none with this id, or correlation id, that is under no lease."""

    aggregator: str  #: the aggregator's name
    group: str  #: the text of the group; empty too if all groups were searched
    id: str  #: the item's id; or the correlation id
    buffered: int  #: how many items there are
    correlate_by: str = ""  #: the field of the correlation id; empty if the item's own id is meant

    def __str__(self) -> str:
        which = f"{self.correlate_by}={self.id!r}" if self.correlate_by else f"the id {self.id!r}"
        return (
            f"{self.aggregator}{_of_group(self.group)} has {self.buffered} items, and none with {which} that could be removed: "
            "it was flushed, or a flush has it now."
        )


def _of_group(group: str) -> str:
    return f" (group {group!r})" if group else ""


def _sentences(*parts: str) -> str:
    return " ".join(part if part.endswith((".", "!", "?")) else f"{part}." for part in parts if part)


def problems_text(problems: Sequence[Sequence[str]]) -> str:
    """Return pairs of path and text as one text."""
    return "; ".join(f"{path}: {text}" if path else text for path, text in problems)
