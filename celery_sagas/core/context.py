"""What a handler may do beside changing the state, gathered while it runs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from celery_sagas.core.ids import derived_id
from celery_sagas.errors import MisuseError


@dataclass(frozen=True, slots=True)
class MessageView:
    """The message that is being handled."""

    id: str  #: Celery's task id
    step: str  #: the step's name


@dataclass(frozen=True, slots=True)
class SagaView:
    """What the library knows of an instance; ``order.saga`` inside a step and on a copy that ``find`` returned."""

    id: str  #: the instance's id, stable from its first message to its last
    name: str  #: the saga's stored name
    key: str  #: the canonical text of the correlation key
    version: int  #: how many messages it has handled; 0 while the first one runs
    is_new: bool  #: whether this message created it
    created_at: datetime | None  #: aware, UTC; ``None`` while it is new
    updated_at: datetime | None  #: aware, UTC; ``None`` while it is new
    message: MessageView | None  #: ``None`` on a copy that ``find`` returned


@dataclass(frozen=True, slots=True)
class Frozen:
    """A message that a handler decided to send, encoded at the call."""

    message_id: str  #: under which it is published; of a chain, its first task's
    answer_id: str  #: of the task whose answer is the message's; of a chain, its last task's
    task: str  #: the name of the task that is published
    payload: str  #: JSON text


#: Encodes what ``send`` was given, drawing as many message ids as it needs.
TypeOfFreeze = Callable[[object, Callable[[], str]], Frozen]


@dataclass(slots=True)
class Sending:
    """The messages of one run, under ids derived from the message that causes them.

    A second run of the same message derives the same ids, so that its receivers can drop a repeat.
    """

    step: str
    message_id: str
    freeze: TypeOfFreeze
    messages: list[Frozen] = field(default_factory=list)
    closed: bool = False
    _drawn: int = 0

    def send(self, signature: object) -> str:
        """Encode a message now, to be stored with the commit and sent after it."""
        if self.closed:
            raise MisuseError("send() was called after the step had ended", "Call it while the step runs")
        message = self.freeze(signature, self._next_id)
        self.messages.append(message)
        return message.answer_id

    def _next_id(self) -> str:
        name = f"{self.step}/{self._drawn}"
        self._drawn += 1
        return derived_id(self.message_id, name)


@dataclass(slots=True)
class StepContext:
    """One run of a handler on one instance."""

    view: SagaView
    sending: Sending | None  #: ``None`` on a read-only copy
    completed: bool = False

    def require_sending(self, what: str) -> Sending:
        """Return the place where messages go, unless the state is a read-only copy or its step has ended."""
        if self.sending is None or self.sending.closed:
            raise MisuseError(f"{what}() was called outside a step", "Call it while a step of the saga runs")
        return self.sending
