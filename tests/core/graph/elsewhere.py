"""Another module than that of the handlers which are read."""

import functools
from typing import Any

from tests.core.graph.sagas import Task

deliver = Task("elsewhere.deliver")


def message_of(secret: str) -> Any:
    """Return a message."""


def end(order: Any) -> None:
    """End an instance."""
    order.complete()


def look_at(order_id: str) -> None:
    """Do nothing with an instance."""


def wrapped(function: Any) -> Any:
    """Decorate a function, and say which."""

    @functools.wraps(function)
    def inner(*args: Any, **named: Any) -> Any:
        return function(*args, **named)

    return inner


def replaced(function: Any) -> Any:
    """Decorate a function."""

    def inner(order: Any) -> Any:
        return function(order)

    return inner
