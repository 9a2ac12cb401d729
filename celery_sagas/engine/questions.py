"""Questions from outside: the journal's entry of a message that was asked keeps what its step has returned."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn

from pydantic_core import from_json

from celery_sagas.core.encoding import PROBLEM, REMEDY, UndecodedError, check_decoded
from celery_sagas.core.history import canonical, ordered
from celery_sagas.core.step import StepDefinition
from celery_sagas.engine.instance import lookup_in, shown_property
from celery_sagas.engine.outcomes import Kind
from celery_sagas.engine.polling import Polling, poll
from celery_sagas.engine.results import NOT_KEPT, QUESTION, RESULT, STATUS
from celery_sagas.engine.unit_of_work import correlate
from celery_sagas.errors import (
    AnswerNotKept,
    AskTimeout,
    InvalidMessage,
    SagaAlreadyExists,
    SagaNotFound,
    StepFailed,
    UnreadableState,
    WrongStatus,
)
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import KEY, Entry, Handling, Lookup

#: How many characters stand for the arguments of a message.
_DIGEST: Final = 16


class Answer(NamedTuple):
    """What a step has returned."""

    value: Any


@dataclass(frozen=True, slots=True)
class Question:
    """A message whose outcome somebody awaits outside of all tasks."""

    step: StepDefinition
    lookup: Lookup  #: of its instance
    message_id: str
    digest: str  #: of its arguments, by which another message under the same id is known

    def look(self, backend: Backend) -> Answer | None:
        """Return the answer, if the message was handled.

        Raises:
            StepFailed: It is a dead letter.
            SagaNotFound: There was no instance.
            SagaAlreadyExists: There was one, and it was ignored.
            WrongStatus: It was ignored, as the instance was in another status.
            AnswerNotKept: It was handled, and what its step has returned is not kept, or cannot be read.
            InvalidMessage: Another message had its id.
            UnreadableState: This process cannot decode what the journal keeps.
            StoreError: The store is unavailable.
        """
        entry = backend.sagas.find(self.lookup, Handling(self.step.names, self.message_id)).handled
        if entry is None:
            return None
        if self.lookup.property == KEY and entry.key != self.lookup.value:
            self._refuse_id()
        detail = self._detail(entry)
        if detail.get(QUESTION, self.digest) != self.digest:
            self._refuse_id()
        if entry.outcome == Kind.FAILED:
            raise self._failure(backend, detail)
        return self._answer(entry, detail)

    def _detail(self, entry: Entry) -> Mapping[str, Any]:
        try:
            check_decoded(entry.detail)
        except UndecodedError as exc:
            raise UnreadableState(self.step.saga.name, entry.key, PROBLEM, REMEDY) from exc
        detail: Mapping[str, Any] = from_json(entry.detail)
        return detail

    def _answer(self, entry: Entry, detail: Mapping[str, Any]) -> Answer:
        if entry.outcome in (Kind.IGNORED, Kind.MISSING):
            raise self._in_vain(entry, detail)
        if RESULT not in detail:
            was_sent = "the message was sent under this id without ask(), or handled by an older worker"
            raise AnswerNotKept(self.step.name, detail.get(NOT_KEPT, was_sent))
        return Answer(self.step.results.read(detail[RESULT]))

    def _refuse_id(self) -> NoReturn:
        problem = f"another message was sent under {self.message_id!r}, to this step: each question needs an id of its own"
        raise InvalidMessage(self.step.name, [("id", problem)])

    def _failure(self, backend: Backend, detail: Mapping[str, Any]) -> StepFailed:
        letter = backend.dead.get(detail["dead_letter"])
        return StepFailed(self.step.name, detail["error"], letter.text if letter else "", detail["dead_letter"])

    def _in_vain(self, entry: Entry, detail: Mapping[str, Any]) -> Exception:
        """Return the error for a message that has changed nothing."""
        saga, reason = self.step.saga, detail.get("reason")
        if reason == "exists":
            return SagaAlreadyExists(saga.name, *self.subject, entry.instance_id)
        if reason == "status":
            return WrongStatus(saga.name, entry.key, self.step.name, detail.get(STATUS) or "", self.step.status.expected)
        return SagaNotFound(saga.name, *self.subject, reason == "completed")

    @property
    def subject(self) -> tuple[str, str]:
        """The property by which its instance is found, and its value."""
        return shown_property(self.step.saga, self.lookup), self.lookup.value

    def over(self, timeout_s: float) -> AskTimeout:
        """Return the error for a question whose time is over."""
        subject = self.step.saga.name, *self.subject
        return AskTimeout(*subject, timeout_s, step=self.step.name, id=self.message_id)


def question_of(step: StepDefinition, bound: Mapping[str, Any], message_id: str) -> Question:
    """Return the question that a message asks, given its arguments by name, as they are sent.

    Raises:
        MessageError: They do not fit, or name no instance.
        DefinitionError: There is no JSON for what the step returns.
    """
    (address, arguments), _ = correlate(step, bound, {}), step.results
    lookup = lookup_in(step.saga, address.property, address.text)
    return Question(step, lookup, message_id, _digest_of(bound, arguments))


def _digest_of(bound: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """Return a digest of arguments as they are sent, the same in each process: a set is sent in the order that it has in one."""
    asked = {name: ordered(arguments[name], value) for name, value in bound.items()}
    return hashlib.sha256(canonical(asked).encode()).hexdigest()[:_DIGEST]


def asking(
    question: Question, backend: Backend, publish: Callable[[], object], timeout_s: float, *, is_new: bool
) -> Polling[Answer]:
    """Publish the message of a question, and wait for its answer.

    Args:
        question: The question.
        backend: The backend of its saga.
        publish: Publishes its message.
        timeout_s: Seconds, from then on.
        is_new: Whether nobody can have asked it before. If somebody has, its answer may be there.
    """
    if not is_new and (answer := question.look(backend)):
        return answer
    publish()
    return (yield from poll(partial(question.look, backend), timeout_s, partial(question.over, timeout_s)))
