"""The messages that the function of an aggregator sends: stored with the removal of its items, and published after it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from celery_sagas.core.delays import Delay
from celery_sagas.core.ids import row_id
from celery_sagas.core.sending import Sending, Serialize, SerializedMessage
from celery_sagas.engine.commit import MESSAGES, STATES_IN_MESSAGES
from celery_sagas.engine.outbox.dispatch import Dispatcher
from celery_sagas.errors import ConfigurationError, MisuseError
from celery_sagas.stores.aggregates import AggregateStore, can_send
from celery_sagas.stores.records import Outgoing, Sends


@dataclass(frozen=True, slots=True)
class SendTerms:
    """What the functions of a process's aggregators send messages with."""

    serialize: Serialize
    due_at: Callable[[Delay], int]  #: returns when a message is due, in milliseconds since the epoch; 0: at once
    state_bytes: int  #: the maximum size of a message


@dataclass(slots=True)
class BatchMessages:
    """The messages of one run of a function, under ids derived from that of the run."""

    name: str  #: of the aggregator
    run_id: str
    terms: SendTerms
    store: AggregateStore | None = None  #: of the items; ``None`` if the batch is a test's own
    _sending: Sending = field(init=False)
    _bytes: int = 0

    def __post_init__(self) -> None:
        self._sending = Sending(self.name, self.run_id, self.terms.serialize, closed=True)

    @property
    def sent(self) -> Sequence[SerializedMessage]:
        """The messages so far."""
        return self._sending.messages

    def send(self, signature: object, after: Delay | None) -> str:
        """Encode a message now; return its id.

        Raises:
            MisuseError: The function has ended; or there are too many messages, or they are too large together.
            ConfigurationError: The store writes no messages with a removal.
        """
        if not self.sent and self.store is not None and not can_send(self.store):
            problem = f"batch.send() was called by {self.name}, whose backend stores no messages with the removal of items"
            raise ConfigurationError(problem, "Set saga_aggregator_backend to the URL of a backend that does")
        id = self._sending.send(signature, None if after is None else self.terms.due_at(after))
        self._bytes += len(self.sent[-1].payload.encode())
        allowed = self.terms.state_bytes * STATES_IN_MESSAGES
        if len(self.sent) > MESSAGES:
            raise self._refuse(f"{MESSAGES:,} messages are allowed")
        if self._bytes > allowed:
            bound = f"{STATES_IN_MESSAGES} times saga_max_state_bytes, {allowed}, are allowed"
            raise self._refuse(f"its messages have {self._bytes} bytes in all; {bound}")
        return id

    def _refuse(self, problem: str) -> MisuseError:
        """Return the error for a message that is one too many, and take it back: the function may go on without it."""
        self._bytes -= len(self._sending.messages.pop().payload.encode())
        return MisuseError(f"a batch of {self.name} sends too much: {problem}", "Send a task that sends them, or lower size=")

    @property
    def is_open(self) -> bool:
        """Whether the function runs."""
        return not self._sending.closed

    @contextmanager
    def running(self) -> Iterator[None]:
        """Take messages while the function runs, and refuse them once it has ended."""
        self._sending.closed = False
        try:
            yield
        finally:
            self._sending.closed = True


def sends_of(messages: BatchMessages, new_id: str, dispatcher: Dispatcher) -> Sends:
    """Return what the removal of a batch sends.

    Args:
        messages: Those of its function.
        new_id: The beginning of the rows' ids, from the store.
        dispatcher: Publishes them.
    """
    rows = [
        Outgoing(row_id(new_id, number), "sent", message.message_id, message.task, message.payload, message.due_at)
        for number, message in enumerate(messages.sent)
    ]
    return Sends(tuple(rows), messages.name, messages.run_id, dispatcher.owner, int(dispatcher.grace_s * 1000))
