"""A message that is being handled: its session, its delivery to a step, and the attempts to handle it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from celery_sagas.connections import OnFailure
from celery_sagas.core.requests.requests import Addressed, ReturnAddress
from celery_sagas.core.sending import Sending, SerializedMessage
from celery_sagas.core.step import StepDefinition
from celery_sagas.engine.tracing import MessageTrace
from celery_sagas.errors import MisuseError

#: How many saga types a message's causation names at most; the oldest is left out.
MAX_CAUSATION = 8


@dataclass(slots=True)
class Session:
    """A message, from the moment its task begins to the moment it ends, and what it passes on to the messages it causes."""

    message_id: str
    causation: dict[str, str] = field(default_factory=dict)  #: saga name to instance id
    task_id: str = ""  #: Celery's; also the message's id, unless its producer has set another
    publication: str = ""  #: which publication it is: a plain task's message may have a fixed id, and another night's the same
    sending: Sending | None = None  #: where messages go while a step's handler runs
    published: int = 0  #: published directly by its task: events, and messages to steps
    publications: dict[str, int] = field(default_factory=dict)  #: messages to plain tasks that it has published, by ids

    def belongs_to(self, saga: str, instance_id: str) -> None:
        """Correlate the messages that this one causes with an instance."""
        self.causation.pop(saga, None)
        self.causation[saga] = instance_id
        for oldest in list(self.causation)[:-MAX_CAUSATION]:
            del self.causation[oldest]

    @contextmanager
    def on_behalf_of(self, saga: str, instance_id: str) -> Iterator[None]:
        """Have the messages that this one causes belong to an instance, unless the block fails."""
        inherited = dict(self.causation)
        self.belongs_to(saga, instance_id)
        with OnFailure(lambda: setattr(self, "causation", inherited)):
            yield

    @contextmanager
    def running(self, sending: Sending) -> Iterator[None]:
        """Collect the messages that a handler sends, until it ends."""
        self.sending = sending
        try:
            yield
        finally:
            sending.closed = True
            self.sending = None


class Deferral(NamedTuple):
    """What is needed to defer a message."""

    since: int  #: when it was deferred first, or now; milliseconds since the epoch
    now: int  #: milliseconds since the epoch
    message: Callable[[], SerializedMessage]  #: returns it as it can be published again
    has_waited: bool = False  #: with an instance: if that is gone, the message is late


class Delivery(NamedTuple):
    """One delivery of a message to a step."""

    step: StepDefinition
    message_id: str
    bound: Mapping[str, Any]  #: the arguments by name, as received
    session: Session
    call: Callable[..., Any]  #: calls a function with a first argument, and the arguments by name
    addressed: Addressed | None = None  #: for a timeout, or the outcome of a request
    max_deliveries: int | None = None  #: if the broker has delivered it before
    task: str = ""  #: the name of the step in the message, if that is a former one
    return_address: ReturnAddress | None = None  #: if it requests an answer
    at: datetime | None = None  #: when its handling began, if its saga keeps its history
    deferral: Callable[[], Deferral] | None = None  #: ``None``: there is nothing that could be published again
    question: str = ""  #: stands for its arguments, if somebody outside awaits what its step returns
    trace: MessageTrace | None = None  #: if steps are traced

    @property
    def first_argument(self) -> Any:
        """The message's first argument, as received: the outcome of a request, if its step is given that."""
        return self.bound.get(next(iter(self.step.arguments.annotations), ""))

    @property
    def asked_by(self) -> dict[str, Any] | None:
        """The stored return address, if the message requests an answer."""
        return self.return_address.to_json() if self.return_address and self.return_address.then else None


class Attempt(NamedTuple):
    """The conditions of an attempt to handle a message, as the attempts before it have left them."""

    lock_owner: str = ""  #: under which it locks the instance, after many conflicts
    lock_ms: int = 0
    unique: int = 0  #: how many of the conflicts were about a key


def refuse_inline(step: str, around: Iterable[Session]) -> None:
    """Refuse to run a step inside another step: both would commit, whatever the outcome of the outer one.

    Args:
        step: The step's name.
        around: The sessions that are open here.

    Raises:
        MisuseError: A step's handler is running.
    """
    for session in around:
        if session.sending is not None:
            raise MisuseError(f"the step {step} was called inside {session.sending.step}", "send it: order.send(step.s(…))")
