"""The tracing of a message, as its unit of work sees it: what traces is given in a worker, and nothing is without it."""

from collections.abc import Generator
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class MessageTrace(Protocol):
    """What traces the handling of one message."""

    #: How long the operation took for which the unit of work waits, if it was performed together with others. Seconds.
    performed: float | None

    def around(self, steps: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """Return a unit of work that does the same, and is traced."""

    def stored(self) -> str:
        """Return what is stored with an instance that the message creates: the context of its span, if that is recorded."""


def traced(steps: Generator[Any, Any, T], trace: MessageTrace | None) -> Generator[Any, Any, T]:
    """Return a unit of work, traced if its message is."""
    return steps if trace is None else trace.around(steps)
