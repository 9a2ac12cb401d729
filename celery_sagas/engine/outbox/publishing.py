"""The port through which committed messages reach the broker."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from celery_sagas.errors import PublishError, Unconfirmed


class OutgoingMessage(Protocol):
    """A row of the outbox, as far as publishing needs it."""

    @property
    def id(self) -> str: ...
    @property
    def message_id(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def payload(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of messages that were published at once, as ids of rows; the others were refused, or never published."""

    confirmed: Set[str] = frozenset()
    unconfirmed: Set[str] = frozenset()  #: published, and neither confirmed nor refused: they may have arrived


class Publisher(ABC):
    """Hands messages to the broker; at least one by one."""

    #: Whether publishing runs the task here and now (eager mode), so that its errors are the caller's.
    inline: bool

    @abstractmethod
    def publish(self, message: OutgoingMessage) -> None:
        """Publish one message and wait until the broker has confirmed it.

        Raises:
            PublishError: It was not confirmed; it may have arrived all the same. ``Unconfirmed`` if the connection was there, and
                the cause may be the message or the broker; ``connection`` alone if there was none.
        """

    def publish_many(self, messages: Sequence[OutgoingMessage]) -> Receipt:
        """Publish messages in order before waiting for the broker. Of those that it leaves, ``publish`` tells why.

        Raises:
            PublishError: There is no connection, or nobody should wait for it any longer.
        """
        return Receipt()

    @abstractmethod
    def probe(self) -> None:
        """Have the broker take a message that is for nobody.

        Raises:
            PublishError: It is away, or takes no messages now.
        """

    def post(self, message: OutgoingMessage) -> bool:
        """Write a message behind those that were posted before, without waiting; return whether it was written.

        ``collect`` tells when the broker has confirmed it. What the broker refuses, or does not confirm in time, and what is lost
        with its connection, is never told of. Of what is not written ``publish`` tells why.

        Raises:
            PublishError: There is no connection, or nobody should wait for it any longer; it may have arrived all the same.
        """
        return False

    def collect(self) -> Sequence[str]:
        """Return the ids of the posted rows that the broker has confirmed since the last call; do not wait."""
        return ()

    def awaited(self) -> Set[str]:
        """Return the ids of the posted rows of which the broker has said nothing yet; they become fewer with each ``collect``."""
        return frozenset()

    @abstractmethod
    def close(self) -> None:
        """Close the connections; expect no confirmation any more, and take no message."""


@contextmanager
def probing(publisher: Publisher) -> Iterator[None]:
    """Probe the broker after an unconfirmed message: if it takes others, the failure is about this message.

    An outage that ends between the two counts as a failure of the message.

    Raises:
        PublishError: It was not confirmed; ``connection`` if that says nothing about the message. It is never ``Unconfirmed``.
    """
    try:
        yield
    except Unconfirmed as exc:
        publisher.probe()
        raise PublishError(exc.reason, connection=False) from exc.__cause__
