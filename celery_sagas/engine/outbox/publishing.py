"""The ports through which committed messages reach the broker."""

from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Protocol

from celery_sagas.errors import Doubtful, PublishError


class Message(Protocol):
    """A row of the outbox, as far as publishing needs it."""

    @property
    def id(self) -> str: ...
    @property
    def message_id(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def payload(self) -> str: ...


class Publisher(Protocol):
    """Hands messages to the broker."""

    #: Whether publishing runs the task here and now (eager mode), so that its errors are the caller's.
    inline: bool

    def publish(self, message: Message) -> None:
        """Publish one message and wait until the broker has confirmed it.

        Raises:
            PublishError: It was not confirmed; it may have arrived all the same. ``Doubtful`` if the connection was there, and
                nobody can tell whether the message is to blame; ``connection`` alone if there was none.
        """

    def probe(self) -> None:
        """Have the broker take a message that is for nobody.

        Raises:
            PublishError: It is away, or takes no messages now.
        """


@contextmanager
def probing(publisher: Publisher) -> Iterator[None]:
    """Probe the broker after a doubtful failure: if it takes messages, the one that failed is to blame.

    An outage that ends between the two counts as a failure of the message.

    Raises:
        PublishError: It was not confirmed; ``connection`` if that says nothing about the message. It is never ``Doubtful``.
    """
    try:
        yield
    except Doubtful as exc:
        publisher.probe()
        raise PublishError(exc.reason, connection=False) from exc.__cause__


class Postbox(Protocol):
    """Hands messages to the broker in order and without waiting, and tells later which of them it has confirmed.

    What the broker refuses, or does not confirm in time, and what is lost with its connection, is never told of.
    """

    def post(self, message: Message) -> bool:
        """Write a message; return whether it was written. Whoever publishes it alone learns why it was not.

        Raises:
            PublishError: There is no connection, or nobody should wait for it any longer; it may have arrived all the same.
        """

    def collect(self) -> Sequence[str]:
        """Return the ids of the rows that the broker has confirmed since the last call; do not wait."""

    def awaited(self) -> Set[str]:
        """Return the ids of the rows of which the broker has said nothing yet. They become fewer with each ``collect``."""

    def close(self) -> None:
        """Expect no confirmation any more, and take no message."""
