"""``Batch``: the argument of an aggregator's function."""

from collections.abc import Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar, overload

from celery_sagas.core.aggregators.rules import Reason
from celery_sagas.core.delays import Delay
from celery_sagas.core.signatures import Piped, SignatureOf
from celery_sagas.errors import MisuseError

ItemT = TypeVar("ItemT")

#: How many characters of a reason are kept.
REASON_CHARACTERS = 2_000


class Sender(Protocol):
    """Sends the messages of a batch."""

    def send(self, signature: object, after: Delay | None) -> str:
        """Encode a message now, to be sent if the items are removed; return its id."""


class Batch(Sequence[ItemT], Generic[ItemT]):
    """Items of one group, in the order in which they were buffered; never empty.

    When the function returns, the items that it has not rejected are removed from the buffer, and its messages are sent. When it
    raises, they go back to the buffer and are flushed again, and nothing is sent.
    """

    def __init__(
        self,
        items: Sequence[ItemT],
        *,
        ids: Sequence[str] = (),
        name: str = "",
        group: str = "",
        reason: Reason = "size",
        unresolved_count: int = 0,
    ) -> None:
        """Make a batch; your own tests need to pass only the items."""
        self._items = tuple(items)
        #: The id of each item, under which it is buffered once: the message's id, or one given by the producer.
        self.ids: tuple[str, ...] = tuple(ids) or tuple(str(number) for number in range(len(self._items)))
        #: The aggregator's name.
        self.name = name
        #: The text of the group; empty without ``group_by``.
        self.group = group
        #: Why it is flushed: ``"size"``, ``"age"``, ``"idle"``, ``"requested"`` (``flush()``), or ``"again"`` after a failure.
        self.reason = reason
        #: How many items of the group this code cannot read; they are not in the batch.
        self.unresolved_count = unresolved_count
        self._rejected: dict[int, str] = {}
        self._sender: Sender | None = None

    @overload
    def __getitem__(self, index: int) -> ItemT: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ItemT]: ...
    def __getitem__(self, index: int | slice) -> ItemT | Sequence[ItemT]:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[ItemT]:
        return iter(self._items)

    def __repr__(self) -> str:
        group = f", group={self.group!r}" if self.group else ""
        return f"<Batch of {len(self)}: name={self.name!r}{group}, reason={self.reason!r}>"

    def reject(self, item: ItemT, reason: object = "") -> None:
        """Reject one item, which becomes a dead letter whatever happens to the others.

        The rejection takes effect when the function returns or raises. Rejecting an item again replaces the reason.

        Args:
            item: An item of the batch: this very object, or else the first equal one that was not rejected.
            reason: For operators: a text, or an exception; the first 2,000 characters of it are kept.

        Raises:
            ValueError: The item is not in the batch.
        """
        self._rejected[self._position_of(item)] = str(reason)[:REASON_CHARACTERS]

    def send(self, signature: SignatureOf[Any] | Piped, *, after: Delay | None = None) -> str:
        """Send a message: stored with the removal of the batch's items, published right after it, or not at all.

        It is sent if and only if the items are removed, at least once and then under the same id. A function that raises sends
        nothing; it runs again, and sends under other ids.

        Args:
            signature: A signature of one task, or a chain. It is encoded now: later changes of its arguments have no effect. A
                ``countdown`` or ``eta`` in its options has the effect of ``after``.
            after: How long it waits in the backend, not in the broker; a ``timedelta`` or seconds.

        Returns:
            The message's id; for a chain, its last task's.

        Raises:
            TypeError: It is a group or a chord, or not a signature.
            InvalidMessage: It cannot be encoded as JSON, or is larger than ``saga_max_state_bytes``; or its task does not accept
                these arguments.
            MisuseError: No function runs on this batch; or it sends more than 1,000 messages, or more bytes in all than 8 times
                ``saga_max_state_bytes``.
            ConfigurationError: The backend stores no messages with a removal.
        """
        if self._sender is None:
            raise MisuseError("send() was called on a batch of no flush", "In a test, call aggregator.handler(Batch([…]))")
        return self._sender.send(signature, after)

    @property
    def rejected(self) -> dict[int, str]:
        """The reasons of the items that were rejected, by their positions."""
        return dict(self._rejected)

    def _position_of(self, item: ItemT) -> int:
        same = [position for position, each in enumerate(self._items) if each is item]
        found = same or [position for position, each in enumerate(self._items) if each == item]
        if not found:
            raise ValueError("the item is none of this batch")
        return next((position for position in found if position not in self._rejected), found[0])


def attach(batch: Batch[Any], sender: Sender) -> None:
    """Have a batch send its messages through a sender."""
    batch._sender = sender


def sender_of(batch: Batch[Any]) -> Sender | None:
    """Return what sends a batch's messages, if a function was given it."""
    return batch._sender
