"""The port of the audit. The docstrings are the specification; ``celery_sagas.testing`` tests each sentence.

A backend may lack it: see ``Backend``.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from heapq import nlargest
from typing import Final, NamedTuple, Self

from celery_sagas.stores.records import AuditEntry

#: How many times as many entries as it returns one call of ``Audit.recent`` looks at, at most, where no key is given.
LOOKED_AT: Final = 10
#: A time in milliseconds, 16 digits, and an id; an id has neither U+0000 nor half a surrogate pair.
_PLACE: Final = re.compile("([0-9]{16}):([^\0\ud800-\udfff]*)")


class AuditPage(NamedTuple):
    """The answer to one call of ``Audit.recent``."""

    entries: tuple[AuditEntry, ...]  #: the newest first
    after: str  #: where the next call goes on; empty: that was all


class AuditPlace(NamedTuple):
    """The place of an entry in the order of the audit."""

    at: int
    id: str

    @classmethod
    def of(cls, entry: AuditEntry) -> Self:
        """Return the place of an entry."""
        return cls(entry.at, entry.id)

    @classmethod
    def read(cls, after: str) -> Self:
        """Return the place that ``AuditPage.after`` names.

        Raises:
            ValueError: It names none.
        """
        found = _PLACE.fullmatch(after)
        if found is None:
            raise ValueError(f"{after[:60]!r} is no place in the audit: give what the call before has returned")
        return cls(int(found[1]), found[2])

    def __str__(self) -> str:
        return f"{self.at:016d}:{self.id}"


class Audit(ABC):
    """The record of what operators do: who has done what to which instance, when and why. Only commits, and ``Switches``,
    write entries.

    A commit has at most one, ``Effects.audit``, and writes it with all of its other parts, or nothing. Its replay writes no
    second one. A commit whose entry has the id of another one raises ``RevisionConflict`` (``"unique"``) and writes nothing.

    An entry outlives its instance, and the journal's entry of its commit: only ``purge`` removes it. It stays under the name of
    its saga if the instances get another one.
    """

    @abstractmethod
    def recent(self, limit: int, after: str = "", names: Sequence[str] = (), key: str | None = None) -> AuditPage:
        """Return what was done lately, the newest first: of one time, those with the greatest ids first.

        A call that asks for no key looks at ten times ``limit`` entries at most (a store of several parts: in each): it may
        return fewer than ``limit``, or none, although others follow. Between two calls entries may be added and purged: one that
        is there all the time comes once. A damaged entry hides no others: it comes with its id and without texts, whatever is
        asked for.

        Args:
            limit: How many at most: at least 1.
            after: ``AuditPage.after`` of the call before; empty, to begin.
            names: The stored names of a saga; empty: all sagas.
            key: The key of an instance; ``None``: all keys.

        Raises:
            ValueError: ``after`` is nothing that a call returns, or there is a key without names.
        """

    @abstractmethod
    def purge(self, older_than_ms: int, limit: int) -> int:
        """Remove at most ``limit`` entries that are older, by the store's clock, than this age; return how many."""


def place_behind(after: str, names: Sequence[str], key: str | None) -> AuditPlace | None:
    """Check what a call of ``Audit.recent`` asks for; return the place that it names, or ``None``.

    Raises:
        ValueError: It names none, or there is a key without names.
    """
    if key is not None and not names:
        raise ValueError("a key is that of a saga: give its names, too")
    return AuditPlace.read(after) if after else None


def page_of(audit: Collection[AuditEntry], limit: int, after: str, names: Sequence[str], key: str | None) -> AuditPage:
    """Answer a call of ``Audit.recent`` from all entries that there are.

    Raises:
        ValueError: ``after`` is nothing that a call returns, or there is a key without names.
    """
    before = place_behind(after, names, key)
    left = [each for each in audit if (before is None or AuditPlace.of(each) < before) and key in (None, each.key)]
    found = nlargest(LOOKED_AT * limit if key is None else len(left), left, key=AuditPlace.of)
    wanted = [entry for entry in found if not names or entry.saga in names]
    last = wanted[limit - 1] if len(wanted) > limit else found[-1] if len(found) < len(left) else None
    return AuditPage(tuple(wanted[:limit]), str(AuditPlace.of(last)) if last else "")
