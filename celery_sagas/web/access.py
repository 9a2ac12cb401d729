"""Who may see what, and who may act."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from starlette.requests import Request

#: What somebody may do; each level has what those before it have.
#:
#: * ``none``: nothing.
#: * ``look``: see which instances there are and how they fare; no states, no messages, no texts of the errors of steps.
#: * ``read``: see states and messages, too, without what is hidden.
#: * ``act``: act on instances and dead letters.
Level = Literal["none", "look", "read", "act"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)


@dataclass(frozen=True)
class Access:
    """What somebody may do, and who it is.

    Args:
        level: ``"none"``, ``"look"``, ``"read"`` or ``"act"``.
        actor: The name that the audit keeps, such as a login; needed to act.

    Raises:
        ValueError: There is no such level, or nobody is named who may act.
    """

    level: Level
    actor: str = ""

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ValueError(f"{self.level!r} is no level of access: {', '.join(LEVELS)}")
        if self.level == "act" and not self.actor.strip():
            raise ValueError("who may act needs a name, which the audit keeps: Access('act', actor=…)")

    def may(self, level: Level) -> bool:
        """Return whether it has a level."""
        return LEVELS.index(self.level) >= LEVELS.index(level)


#: Nobody.
NOBODY: Final = Access("none")

#: Says what the sender of a request may do; ``None`` is nothing. A function that is not async runs in a thread.
AccessOf: TypeAlias = Callable[[Request], Access | Awaitable[Access | None] | None]
