"""The session of a message that is being handled: what it hands on to the messages that it causes."""

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
    task_id: str = ""  #: Celery's; the message's id too, unless its producer has named another
    publication: str = ""  #: which one it is: the id of a plain task's message may be fixed, and be another night's too
    sending: Sending | None = None  #: where messages go while a step's handler runs
    published: int = 0  #: events, and messages to steps, that its task has published itself
    publications: dict[str, int] = field(default_factory=dict)  #: messages to plain tasks that it has published, by ids

    def belongs_to(self, saga: str, instance_id: str) -> None:
        """Let what this message causes be correlated with an instance."""
        self.causation.pop(saga, None)
        self.causation[saga] = instance_id
        for oldest in list(self.causation)[:-MAX_CAUSATION]:
            del self.causation[oldest]

    @contextmanager
    def on_behalf_of(self, saga: str, instance_id: str) -> Iterator[None]:
        """Have what this message causes belong to an instance, unless what is done for that fails."""
        inherited = dict(self.causation)
        self.belongs_to(saga, instance_id)
        with OnFailure(lambda: setattr(self, "causation", inherited)):
            yield

    @contextmanager
    def running(self, sending: Sending) -> Iterator[None]:
        """Collect what a handler sends, and nothing once it has ended."""
        self.sending = sending
        try:
            yield
        finally:
            sending.closed = True
            self.sending = None


def refuse_inline(step: str, around: Iterable[Session]) -> None:
    """Refuse to run a step inside another step: both would commit, whatever became of the outer one.

    Args:
        step: Its name.
        around: The sessions that are open here.

    Raises:
        MisuseError: A step's handler is running.
    """
    for session in around:
        if session.sending is not None:
            raise MisuseError(f"the step {step} was called inside {session.sending.step}", "send it: order.send(step.s(…))")
