"""Following what is handled: the journals are asked again and again, until Ctrl-C."""

from collections.abc import Iterator, Sequence
from time import sleep
from typing import Final

import click

from celery_sagas.cli import tables
from celery_sagas.errors import StoreUnavailable
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.recent import EntryPlace
from celery_sagas.stores.records import Entry

#: Seconds between two looks.
_POLL_S: Final = 1.0
#: So much later than it says, an entry may come into sight: its time is that of its statement, which is committed later.
_OVERLAP_MS: Final = 2_000
#: Entries to read at once, and calls of one look at most.
_PAGE, _CALLS = 500, 20


class Tail:
    """What comes into the journal of a backend: each look returns what has come since the one before; the first one, nothing.

    Args:
        backend: It may be away for a while, which is said once.
        names: The stored names of sagas; empty: of all.
        outcomes: The outcomes; empty: all.
    """

    def __init__(self, backend: Backend, names: Sequence[str] = (), outcomes: Sequence[str] = ()) -> None:
        self._backend = backend
        self._names = names
        self._outcomes = outcomes
        self._begun_at = self._looked_at = 0  #: by the store's clock
        self._shown: dict[EntryPlace, None] = {}  #: what would be found again
        self._is_away = False

    def look(self) -> list[Entry]:
        """Return what is new."""
        try:
            found = self._look()
        except StoreUnavailable as exc:
            if not self._is_away:
                click.echo(f"Error: {tables.sentence(str(exc))}", err=True)
            self._is_away = True
            return []
        self._is_away = False
        return found

    def skip(self, entries: Sequence[Entry]) -> None:
        """Take entries for shown."""
        self._shown |= dict.fromkeys(map(EntryPlace.of, entries))

    def _look(self) -> list[Entry]:
        now = self._backend.outbox.time()
        if not self._begun_at:
            self._begun_at = self._looked_at = now
            self.skip([entry for entry in self._read(now) if entry.at >= now])
            return []
        since = max(self._begun_at, self._looked_at - _OVERLAP_MS)
        found = [entry for entry in self._read(since) if entry.at >= since and EntryPlace.of(entry) not in self._shown]
        self.skip(found)
        self._shown = {place: None for place in self._shown if place.at >= now - _OVERLAP_MS}
        self._looked_at = now
        return found

    def _read(self, since: int) -> Iterator[Entry]:
        after = ""
        for _ in range(_CALLS):
            page = self._backend.journal.recent(_PAGE, after, self._names, self._outcomes)
            yield from page.entries
            after = page.after
            if page.since < since:
                return
        click.echo("More was handled than is shown.", err=True)


def follow(tails: Sequence[Tail]) -> Iterator[list[Entry]]:
    """Yield what is new in journals, the oldest first, again and again."""
    while True:
        sleep(_POLL_S)
        found = {EntryPlace.of(entry): entry for tail in tails for entry in tail.look()}  # two backends may be one database
        yield sorted(found.values(), key=lambda entry: (entry.at, entry.version))
