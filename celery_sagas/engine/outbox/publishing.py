"""The port through which committed messages reach the broker."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from celery_sagas.errors import PublishError, Unconfirmed


class OutgoingMessage(Protocol):
    """A row of the outbox, as required for publishing."""

    @property
    def id(self) -> str: ...
    @property
    def message_id(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def payload(self) -> str: ...
    @property
    def kind(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Receipt:
    """The result of publishing many messages, as ids of rows; the other messages were refused, or never published."""

    confirmed: Set[str] = frozenset()
    unconfirmed: Set[str] = frozenset()  #: published, and neither confirmed nor refused: they may have arrived


class Publisher(ABC):
    """Publishes messages to the broker, at least one by one."""

    #: Whether publishing runs the task at once (eager mode), so that its errors are the caller's.
    inline: bool

    @abstractmethod
    def publish(self, message: OutgoingMessage) -> None:
        """Publish one message and wait until the broker has confirmed it.

        Raises:
            PublishError: It was not confirmed, but may have arrived. ``Unconfirmed`` if the connection was there, and
                the cause may be the message or the broker; ``connection`` alone if there was none.
        """

    def publish_many(self, messages: Sequence[OutgoingMessage]) -> Receipt:
        """Publish messages in order before waiting for the broker. For those that it leaves, ``publish`` raises the reason.

        Raises:
            PublishError: There is no connection, or the time to wait for it is over.
        """
        return Receipt()

    @abstractmethod
    def probe(self) -> None:
        """Publish a message without a recipient, to see whether the broker accepts it.

        Raises:
            PublishError: It is away, or accepts no messages now.
        """

    def post(self, messages: Iterable[OutgoingMessage]) -> int:
        """Write messages after those that were posted before, without waiting; return how many were written.

        The next message is asked for once the one before it was written; those that follow one that was not are not written.
        ``collect`` returns a message once the broker has confirmed it. It never returns messages that the broker refuses, or does
        not confirm in time, or that are lost with its connection. For one that is not written, ``publish`` raises the reason.

        Raises:
            PublishError: There is no connection, or the time to wait for it is over; the last message may have arrived.
        """
        return 0

    def collect(self) -> Sequence[str]:
        """Return the ids of the posted rows that the broker has confirmed since the last call, without waiting."""
        return ()

    def awaited(self) -> Set[str]:
        """Return the ids of the posted rows without a response of the broker yet; each ``collect`` reduces them."""
        return frozenset()

    @abstractmethod
    def close(self) -> None:
        """Close the connections; expect no more confirmations, and accept no messages."""


@contextmanager
def probing(publisher: Publisher) -> Iterator[None]:
    """Probe the broker after an unconfirmed message: if it accepts others, the failure is about this message.

    An outage that ends between the two counts as a failure of the message.

    Raises:
        PublishError: It was not confirmed; ``connection`` if that says nothing about the message. It is never ``Unconfirmed``.
    """
    try:
        yield
    except Unconfirmed as exc:
        publisher.probe()
        raise PublishError(exc.reason, connection=False) from exc.__cause__
