"""Pages of the journal in stores that order entries of one time by message and step."""

import json
from collections.abc import Collection
from heapq import nlargest
from typing import Final, NamedTuple, Self

from celery_sagas.stores.records import Entries, Entry

#: How many times as many entries as it returns one call of ``Journal.recent`` looks at, at most.
LOOKED_AT: Final = 10
#: Times and numbers from here on are none that a call has returned.
_TOO_LARGE: Final = 2**53


class EntryPlace(NamedTuple):
    """The place of an entry in the order of its journal."""

    at: int
    message_id: str
    step: str

    @classmethod
    def of(cls, entry: Entry) -> Self:
        """Return the place of an entry."""
        return cls(entry.at, entry.message_id, entry.step)

    @classmethod
    def read(cls, after: str) -> Self:
        """Return the place that ``Entries.after`` names.

        Raises:
            ValueError: It names none.
        """
        try:
            match json.loads(after):
                case [at, str() as message_id, str() as step] if type(at) is int and _is_time(at) and _is_text(message_id + step):
                    return cls(at, message_id, step)
        except (ValueError, RecursionError):
            pass
        raise no_place(after)

    def __str__(self) -> str:
        return json.dumps(self)


def _is_time(at: int) -> bool:
    return 0 <= at < _TOO_LARGE


def _is_text(text: str) -> bool:
    """Return whether a store may have a text."""
    return "\0" not in text and text.encode(errors="ignore").decode() == text


def no_place(after: str) -> ValueError:
    """Return the error about what names no place in the journal."""
    return ValueError(f"{after[:60]!r} is no place in the journal: give what the call before has returned")


def recent_of(journal: Collection[Entry], limit: int, after: str, names: Collection[str], outcomes: Collection[str]) -> Entries:
    """Answer a call of ``Journal.recent`` from all entries that there are.

    Raises:
        ValueError: ``after`` is nothing that a call returns.
    """
    before = EntryPlace.read(after) if after else None
    left = [entry for entry in journal if before is None or EntryPlace.of(entry) < before]
    found = nlargest(LOOKED_AT * limit, left, key=EntryPlace.of)
    wanted = [each for each in found if (not names or each.saga in names) and (not outcomes or each.outcome in outcomes)]
    last = wanted[limit - 1] if len(wanted) > limit else found[-1] if len(found) < len(left) else None
    return Entries(tuple(wanted[:limit]), str(EntryPlace.of(last)) if last else "", last.at if last else 0)
