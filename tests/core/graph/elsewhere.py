"""Another module than that of the handlers which are read."""

import functools
from typing import Any


def message_of(secret: str) -> Any:
    """Return a message."""


def end(order: Any) -> None:
    """End an instance."""
    order.complete()


def fill(messages: list[Any]) -> None:
    """Add to a list."""


def look_at(order_id: str) -> None:
    """Do nothing with an instance."""


def wrapped(function: Any) -> Any:
    """Decorate a function, and say which."""

    @functools.wraps(function)
    def inner(*args: Any, **named: Any) -> Any:
        return function(*args, **named)

    return inner
