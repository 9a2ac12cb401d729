"""``celery sagas audit``: what operators have done, and why."""

from collections.abc import Iterator
from heapq import merge
from itertools import islice, takewhile
from typing import Any, Final

import click

from celery_sagas.cli import tables
from celery_sagas.cli.addresses import key_text, no_key, unknown
from celery_sagas.cli.ages import milliseconds
from celery_sagas.cli.app import opened, saga_named
from celery_sagas.clock import time_s
from celery_sagas.engine.instance import lookup_in
from celery_sagas.errors import StoreUnavailable
from celery_sagas.operate.entries import audited_act, audited_subject
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import KEY, AuditEntry
from celery_sagas.worker.runtime import Runtime

_COLUMNS: Final = ("AT", "WHO", "ACT", "SAGA", "KEY", "VERSION", "REASON")
#: Entries to read at once.
_PAGE: Final = 500


@click.command()
@click.argument("name", required=False, metavar="[SAGA]")
@click.argument("key", nargs=-1, metavar="[KEY]...")
@click.option("--actor", metavar="NAME", help="Only what this one has done.")
@click.option("--since", callback=milliseconds, help="Of this time until now, such as 1d, 12h, 30m or 2w.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="The newest, at most.")
@tables.LOCAL
@click.option("--json", "as_json", is_flag=True, help="One JSON object in each line.")
@click.pass_context
def audit(
    context: click.Context,
    name: str | None,
    key: tuple[str, ...],
    actor: str | None,
    since: int | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show what operators have done to instances, dead letters and items, and why, the newest first: for as long as
    saga_audit_retention says.

    The key of several parts has a word for each, or is their JSON array, such as '["eu","42"]'.
    """
    with opened(context) as runtime:
        audits = _Audits(runtime, name, key)
        first_at = 0 if since is None else time_s() * 1000 - since
        newest = takewhile(lambda entry: entry.at >= first_at, audits.newest())
        found = list(islice((entry for entry in newest if actor in (None, entry.actor)), limit))
        said = "" if found or audits.away else audits.nothing()
        if as_json:
            tables.print_json(map(AuditEntry._asdict, found))
        elif found or said:
            tables.print_table(_COLUMNS, list(map(_row, found)), said)
    for error in audits.away:
        click.echo(f"Error: {tables.sentence(str(error))}", err=True)
    if audits.away:
        raise click.exceptions.Exit(1)


class _Audits:
    """The audits in all backends; one that is away does not hide what is in the others."""

    def __init__(self, runtime: Runtime, name: str | None, key: tuple[str, ...]) -> None:
        self._saga = saga = saga_named(name) if name is not None else None
        self._backends = list(runtime.backends) if saga is None else [runtime.backends.of(saga)]
        self._asked: dict[str, Any] = {"names": saga.names} if saga is not None else {}
        if saga is not None and key:
            self._asked["key"] = key_text(saga, key)
        self.away: list[StoreUnavailable] = []

    def newest(self) -> Iterator[AuditEntry]:
        """Yield entries, the newest first: each once, even if two of the backends are one database."""
        seen = set[str]()
        audited = [backend for backend in self._backends if backend.has_audit]
        for entry in merge(*map(self._pages, audited), key=lambda entry: -entry.at):
            if entry.id not in seen:
                seen.add(entry.id)
                yield entry

    def nothing(self) -> str:
        """Return what is said if there is no entry, with the keys that are most like the one that is given.

        Raises:
            ClickException: That is no key of the saga.
        """
        sentence = "No operator has done anything of the kind."
        if self._saga is None or "key" not in self._asked:
            return sentence
        key = self._asked["key"]
        if problem := no_key(self._saga, key):
            raise click.ClickException(problem)
        return unknown(self._backends[0], self._saga, lookup_in(self._saga, KEY, key), sentence)

    def _pages(self, backend: Backend) -> Iterator[AuditEntry]:
        after, is_first = "", True
        try:
            while after or is_first:
                entries, after = backend.audit.recent(_PAGE, after, **self._asked)
                yield from entries
                is_first = False
        except StoreUnavailable as exc:
            self.away.append(exc)


def _row(entry: AuditEntry) -> tables.Row:
    version = str(entry.version or "-")
    return tables.time(entry.at), entry.actor, audited_act(entry), audited_subject(entry), entry.key, version, entry.reason
