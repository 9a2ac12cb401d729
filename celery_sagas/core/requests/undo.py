"""Undo: the tasks that take back what an instance's requests have done, and the order in which they run.

An undo that takes an answer runs if there is one. An undo that takes none runs if its request was sent, whatever came of it: a
task that has failed may have done its work all the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Self

from celery_sagas.core.delays import Backoff
from celery_sagas.core.requests.requests import ReplyKind, Request, Target
from celery_sagas.core.sending import SerializedMessage

#: The most pieces of work that an instance may have to undo.
MOST: Final = 1_000
#: How often an undo is tried again, and how long an answer to it may take, unless ``compensate`` says so.
RETRY: Final = Backoff(10, 10.0, 3600.0)
WITHIN_S: Final = 3600.0


class Undoable(NamedTuple):
    """A piece of work that can be undone."""

    request: str  #: the id under which the work was sent
    task: Target | None  #: what undoes it, with the answer among its arguments; ``None``: its outcome is awaited

    def to_json(self) -> list[Any]:
        """Return it as JSON values."""
        return [self.request, self.task.to_json() if self.task else None]

    @classmethod
    def from_json(cls, value: list[Any]) -> Self:
        """Return what JSON values describe."""
        request, task = value
        return cls(request, Target.from_json(task))


def undoable_by(request: Request, came: str, value: Any) -> list[Undoable]:
    """Return the work that has to be undone after an outcome of a request.

    Args:
        request: One that has an undo.
        came: The kind of its outcome.
        value: The answer; of a gather the JSON values of a ``Gathered``.
    """
    task = request.undo
    if task is None or came == ReplyKind.PROGRESS:
        return []
    if came == ReplyKind.GATHERED and request.members:
        answers = sorted(value["answers"].items(), key=lambda each: int(each[0]))
        return [Undoable(request.member(int(position)), task.given(answer)) for position, answer in answers]
    if came == ReplyKind.ANSWER:
        return [Undoable(request.id, task.given(value) if task.takes else task)]
    return [] if task.takes else [Undoable(request.id, task)]


@dataclass(slots=True)
class Undoing:
    """A compensation that goes on: what is left of it, and what follows it."""

    queue: list[Undoable]  #: the next one first
    then: Target | None = None  #: the step that it ends with
    parallel: bool = False
    retry: Backoff = RETRY
    within_s: float = WITHIN_S
    answers: list[SerializedMessage] = field(default_factory=list)  #: sent when it ends, to those that wait for it
    then_id: str = ""  #: of the message to that step, once it was sent
    then_row: str = ""  #: of the outbox: that message

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        value: dict[str, Any] = {"left": [each.to_json() for each in self.queue], "retry": self.retry, "within": self.within_s}
        if self.then:
            value["then"] = self.then.to_json()
        flags = {"parallel": self.parallel, "then_id": self.then_id, "then_row": self.then_row}
        answers = [[each.message_id, each.answer_id, each.task, each.payload] for each in self.answers]
        return value | {name: given for name, given in {**flags, "answers": answers}.items() if given}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the compensation that JSON values describe."""
        return cls(
            [Undoable.from_json(each) for each in value["left"]],
            Target.from_json(value.get("then")),
            bool(value.get("parallel")),
            Backoff(*value["retry"]),
            value["within"],
            [SerializedMessage(*each) for each in value.get("answers", ())],
            value.get("then_id", ""),
            value.get("then_row", ""),
        )


@dataclass(slots=True)
class Undo:
    """What an instance can undo, and what it is undoing now."""

    log: list[Undoable] = field(default_factory=list)  #: the last outcome last
    undoing: Undoing | None = None

    def __bool__(self) -> bool:
        return bool(self.log) or self.undoing is not None

    def note(self, request: Request, came: str, value: Any) -> None:
        """Keep what an outcome has made undoable, in the place of an earlier outcome of the same request."""
        ready = undoable_by(request, came, value)
        if ready:
            self.log = [each for each in self.log if each.request != request.id] + ready

    def begin(self, given: Undoing, awaited: list[str]) -> None:
        """Begin a compensation, or add to the front of the one that goes on, which then ends as the new one says.

        Args:
            given: The new one; its queue is empty.
            awaited: The requests whose outcomes it waits for, the last sent first.
        """
        left, answers, then = (self.undoing.queue, self.undoing.answers, self.undoing.then) if self.undoing else ([], [], None)
        queued = {each.request for each in left if each.task is None}
        new = [*(Undoable(id, None) for id in awaited if id not in queued), *reversed(self.log)]
        self.log = []
        self.undoing = replace(given, queue=[*new, *left], answers=answers, then=given.then or then)

    def receive(self, request: Request, came: str, value: Any) -> list[Undoable]:
        """Take the outcome of a request that is undone.

        Returns:
            What must be undone at once, since no compensation goes on.
        """
        ready = undoable_by(request, came, value)[::-1]
        if self.undoing is None:
            return ready
        queue, place = self.undoing.queue, Undoable(request.id, None)
        at = queue.index(place) if place in queue else 0
        queue[at : at + (place in queue)] = ready
        return []

    def next(self, is_awaited: Mapping[str, object], *, is_busy: bool) -> list[Undoable]:
        """Remove from the queue what can be undone now, and return it.

        Args:
            is_awaited: The requests that are open, by id: one that is gone is waited for no longer.
            is_busy: Whether an undo is under way.
        """
        if self.undoing is None:
            return []
        queue = [each for each in self.undoing.queue if each.task or each.request in is_awaited]
        if self.undoing.parallel:
            ready, left = [each for each in queue if each.task], [each for each in queue if not each.task]
        else:
            count = 1 if queue and queue[0].task and not is_busy else 0
            ready, left = queue[:count], queue[count:]
        self.undoing.queue = left
        return ready
