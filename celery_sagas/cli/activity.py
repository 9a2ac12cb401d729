"""``celery sagas activity``: what was handled lately, of all instances."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from heapq import merge
from itertools import chain, islice
from typing import Final

import click

from celery_sagas.cli import tables
from celery_sagas.cli.app import opened, saga_named
from celery_sagas.cli.following import Tail, follow
from celery_sagas.engine.outcomes import Kind
from celery_sagas.errors import StoreUnavailable
from celery_sagas.operate.entries import facts_of, outcome_of
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.recent import EntryPlace
from celery_sagas.stores.records import Entry
from celery_sagas.worker.runtime import Runtime

_COLUMNS: Final = ("AT", "SAGA", "KEY", "STEP", "OUTCOME", "VERSION")
_OUTCOMES: Final = [kind.value for kind in Kind if kind not in (Kind.DROPPED, Kind.DUPLICATE)]
#: Entries to ask for at once: few that are chosen are found by looking at many.
_LEAST, _MOST = 50, 500
#: The most calls to one backend.
_CALLS: Final = 100


@click.command()
@click.argument("name", required=False, metavar="[SAGA]")
@click.option(
    "--outcome", "outcomes", multiple=True, type=click.Choice(_OUTCOMES), help="Only these; may be given several times."
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="The newest, at most.")
@click.option("--follow", "follows", is_flag=True, help="Then show what comes, the newest last, until Ctrl-C.")
@tables.LOCAL
@click.option("--json", "as_json", is_flag=True, help="One JSON object in each line.")
@click.pass_context
def activity(
    context: click.Context, name: str | None, outcomes: tuple[str, ...], limit: int, follows: bool, as_json: bool
) -> None:
    """Show what was handled lately, of all instances or of those of a saga, the newest first: while the journal remembers it."""
    with suppress(*[KeyboardInterrupt] * follows), opened(context) as runtime:
        journals = _Journals(runtime, name, outcomes)
        if follows:
            _follow(journals, limit, as_json=as_json)
            return
        found = list(islice(journals.newest(limit), limit))
        if as_json:
            tables.print_json(map(facts_of, found))
        elif found or journals.are_whole:
            tables.print_table(_COLUMNS, list(map(_row, found)), "The journal has nothing of the kind.")
        journals.report()


def _follow(journals: "_Journals", limit: int, *, as_json: bool) -> None:
    tails = [Tail(backend, journals.names, journals.outcomes) for backend in journals.backends]
    for tail in tails:
        tail.look()
    newest = list(islice(journals.newest(limit), limit))[::-1]
    for tail in tails:
        tail.skip(newest)
    feed = None if as_json else tables.Feed(_COLUMNS)
    for found in chain([newest], follow(tails)):
        if feed is None:
            tables.print_json(map(facts_of, found))
        else:
            feed.print(map(_row, found))


class _Journals:
    """The journals in all backends; one that is away does not hide what is in the others."""

    def __init__(self, runtime: Runtime, name: str | None, outcomes: Sequence[str]) -> None:
        saga = saga_named(name) if name is not None else None
        self.backends = runtime.backends.of_sagas() if saga is None else [runtime.backends.of(saga)]
        self.names = saga.names if saga is not None else ()
        self.outcomes = outcomes
        self._away: list[StoreUnavailable] = []
        self._looked_back_to = 0

    @property
    def are_whole(self) -> bool:
        """Whether everything that they have was looked at."""
        return not self._away and not self._looked_back_to

    def newest(self, limit: int) -> Iterator[Entry]:
        """Yield entries, the newest first: each once, even if two of the backends are one database."""
        at_once, seen = min(max(limit, _LEAST), _MOST), set[EntryPlace]()
        for entry in merge(*(self._pages(backend, at_once) for backend in self.backends), key=lambda each: -each.at):
            if (place := EntryPlace.of(entry)) not in seen:
                seen.add(place)
                yield entry

    def report(self) -> None:
        """Say what was not looked at; exit with status 1 if a backend could not be read."""
        if self._looked_back_to:
            click.echo(
                f"There may be more: what was handled before {tables.time(self._looked_back_to)} was not looked at.", err=True
            )
        for error in self._away:
            click.echo(f"Error: {tables.sentence(str(error))}", err=True)
        if self._away:
            raise click.exceptions.Exit(1)

    def _pages(self, backend: Backend, at_once: int) -> Iterator[Entry]:
        after, since = "", 0
        try:
            for _ in range(_CALLS):
                entries, after, since = backend.journal.recent(at_once, after, self.names, self.outcomes)
                yield from entries
                if not after:
                    return
        except StoreUnavailable as exc:
            self._away.append(exc)
            return
        self._looked_back_to = max(self._looked_back_to, since)


def _row(entry: Entry) -> tables.Row:
    return tables.time(entry.at), entry.saga, entry.key, entry.step, outcome_of(entry), str(entry.version or "-")
