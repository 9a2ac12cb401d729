"""The messages that a run sends: encoded at the call, under ids derived from the message that it handles."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from celery_sagas.core.ids import derived_id
from celery_sagas.errors import MisuseError


@dataclass(frozen=True, slots=True)
class SerializedMessage:
    """A message that a handler decided to send, encoded at the call."""

    message_id: str  #: under which it is published; of a chain, its first task's
    answer_id: str  #: of the task whose answer is the message's; of a chain, its last task's
    task: str  #: the name of the task that is published
    payload: str  #: JSON text
    due_at: int = 0  #: not to be published before; milliseconds since the epoch; 0: at once


#: Encodes what ``send`` was given, drawing as many message ids as it needs.
Serialize = Callable[[object, Callable[[], str]], SerializedMessage]


@dataclass(slots=True)
class Sending:
    """The messages of one run, under ids derived from the message that causes them.

    A second run of the same message derives the same ids, so that its receivers can drop a repeat.
    """

    step: str
    message_id: str
    serialize: Serialize
    messages: list[SerializedMessage] = field(default_factory=list)
    closed: bool = False
    _drawn: int = 0

    def send(self, signature: object, due_at: int | None = None, ids: Sequence[str] = ()) -> str:
        """Encode a message now, to be stored with the commit and sent after it; return its id.

        Args:
            signature: The message.
            due_at: When it is sent; milliseconds since the epoch, 0: at once. ``None`` leaves it to the signature.
            ids: The ids drawn for its members before; else they are drawn now.
        """
        if self.closed:
            raise MisuseError(f"send() was called after {self.step} had ended", "Call it while that runs")
        message = self.serialize(signature, iter(ids).__next__ if ids else self.next_id)
        if due_at is not None:
            if message.due_at:
                raise TypeError("send() was given after=, and a signature with a countdown or eta: use one of them")
            message = replace(message, due_at=due_at)
        self.messages.append(message)
        return message.answer_id

    def next_id(self) -> str:
        """Draw the id of the next message."""
        name = f"{self.step}/{self._drawn}"
        self._drawn += 1
        return derived_id(self.message_id, name)
