"""Layouts of the stored data: each has a version, and the oldest version whose code may still run on it.

Newer code can thus change the stored data in two steps while workers run: first in a way that older code tolerates, under a
higher version and the same oldest one; then, when no older worker is left, it raises the oldest one too.
"""

from typing import Final, NamedTuple

MIGRATES: Final = "Run `celery -A proj sagas migrate`, then start the workers; those of the release before may go on meanwhile"


class Layout(NamedTuple):
    """The layout of a store, or the one that code knows."""

    version: int
    oldest: int  #: code that knows a lower version must not run on it

    def leads_to(self, known: "Layout") -> bool:
        """Return whether what is stored in this layout can be migrated to one that code knows, while older code goes on."""
        return known.oldest <= self.version < known.version

    def remedy(self, known: "Layout") -> str:
        """Return what to do before code that knows a layout can run on this one; empty if it can.

        Code that is newer than the layout cannot: it reads what is not there yet.
        """
        if known.version < self.oldest:
            return "Upgrade the workers: newer code has changed what is stored, and this release must not run on it"
        if self.leads_to(known):
            return MIGRATES
        if known.version > self.version:
            return (
                "Use the release that made it, or let every saga complete and begin again, in another database or under another "
                "saga_prefix"
            )
        return ""
