"""The session of a message that is being handled: it carries the context that the message passes on to those it causes."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from celery_sagas.connections import OnFailure
from celery_sagas.core.sending import Sending
from celery_sagas.errors import MisuseError

#: How many saga types a message's causation names at most; the oldest is left out.
MAX_CAUSATION = 8


@dataclass(slots=True)
class Session:
    """A message, from the moment its task begins to the moment it ends."""

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
