"""The session of the message that is being handled: one for each message, nested in eager mode (NP-03)."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from celery_sagas.core.context import Sending
from celery_sagas.errors import MisuseError

#: How many saga types a message's causation names at most; the oldest is left out.
MAX_CAUSATION = 8


@dataclass(slots=True)
class Session:
    """A message, from the moment its task begins to the moment it ends."""

    message_id: str
    causation: dict[str, str] = field(default_factory=dict)  #: saga name to instance id
    sending: Sending | None = None  #: where messages go while a step's handler runs
    outer: "Session | None" = None  #: the session that this one is nested in
    published: int = 0  #: events that a task other than a step has published

    def belongs_to(self, saga: str, instance_id: str) -> None:
        """Let what this message causes be correlated with an instance."""
        self.causation.pop(saga, None)
        self.causation[saga] = instance_id
        for oldest in list(self.causation)[:-MAX_CAUSATION]:
            del self.causation[oldest]

    def refuse_inline(self, step: str) -> None:
        """Refuse to run a step inside another step: both would commit, whatever became of the outer one (WV-06).

        Raises:
            MisuseError: A step's handler is running around this one.
        """
        session: Session | None = self
        while session is not None:
            if session.sending is not None:
                raise MisuseError(f"the step {step} was called inside {session.sending.step}", "send it: order.send(step.s(…))")
            session = session.outer

    @contextmanager
    def running(self, sending: Sending) -> Iterator[None]:
        """Collect what a handler sends, and nothing once it has ended."""
        self.sending = sending
        try:
            yield
        finally:
            sending.closed = True
            self.sending = None


_current: ContextVar[Session | None] = ContextVar("celery_sagas_session", default=None)


def current_session() -> Session | None:
    """Return the session of the message that runs here, if there is one."""
    return _current.get()


def open_session(message_id: str, causation: Mapping[str, str]) -> Session:
    """Begin a session inside the one that runs here, if any."""
    session = Session(str(message_id), dict(causation), outer=_current.get())
    _current.set(session)
    return session


def close_session(session: Session) -> None:
    """End a session, and all that were left open inside it: the one around it, if any, is current again."""
    _current.set(session.outer)
