"""Observers: who measures what this process does. Without any, an event costs a look at an empty list."""

from typing import Final, Protocol


class Observer(Protocol):
    """Is called with each event. It must raise nothing, wait for nothing, and have no values of keys, ids or messages.

    What signals already say (dead letters, flushed batches) is not repeated here.
    """

    def handled(self, saga: str, step: str, outcome: str, seconds: float) -> object:
        """Take note that a message was handled, or that an attempt to handle it raised an error: the outcome ``RAISED``."""

    def conflicted(self, saga: str, step: str) -> object:
        """Take note that a run of a step lost against another commit, and runs again."""

    def redelivered(self, task: str, reason: str) -> object:
        """Take note that a message was published again, to be handled later, with the class of the error."""

    def published(self, confirmed: int, failed: int) -> object:
        """Take note of committed messages that the broker has confirmed, or that stay in the outbox since it did not."""

    def lagged(self, backend: str, seconds: float) -> object:
        """Take note of how long the longest due message had been due when a relay took it; 0: nothing was due."""


#: The outcome of a message whose handling has raised an error: nothing was written.
RAISED: Final = "raised"
#: Those of this process. Add to it before the pool of a worker forks.
observers: Final[list[Observer]] = []
