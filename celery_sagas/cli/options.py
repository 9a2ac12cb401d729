"""Options that several commands have."""

from collections.abc import Callable
from typing import Any, TypeVar

Command = TypeVar("Command", bound=Callable[..., object])


def adding(*parameters: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return a decorator that adds arguments and options to a command, which its help shows in this order."""

    def add(command: Command) -> Command:
        for each in reversed(parameters):
            command = each(command)
        return command

    return add
