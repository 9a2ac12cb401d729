"""``celery sagas list``: the live instances."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any, Final

import click

from celery_sagas.cli import tables
from celery_sagas.cli.app import opened, saga_named
from celery_sagas.cli.following import Tail, follow
from celery_sagas.cli.scanning import Scan, choices, selection_of
from celery_sagas.core.registry import registry
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.engine.listing import changed, count_live, glances
from celery_sagas.errors import StoreUnavailable
from celery_sagas.operate import counting
from celery_sagas.operate.choosing import Selection
from celery_sagas.operate.glances import facts_of, waits_for
from celery_sagas.stores.instances import Glance
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import Entry
from celery_sagas.worker.runtime import Runtime

#: Of so many instances it is remembered which version was shown.
_REMEMBERED: Final = 100_000
_SAGAS: Final = ("SAGA", "INSTANCES")
_INSTANCES: Final = ("KEY", "VERSION", "CREATED", "CHANGED", "WAITS FOR", "ID")


@click.command("list")
@click.argument("name", required=False, metavar="[SAGA]")
@choices
@click.option("--oldest-first", is_flag=True, help="Begin with those that no message has changed for the longest time.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="How many, at most.")
@click.option("--follow", "follows", is_flag=True, help="Then show each instance that is changed, until Ctrl-C.")
@tables.LOCAL
@click.option("--json", "as_json", is_flag=True, help="One JSON object in each line, with everything that is known.")
@click.pass_context
def list_instances(
    context: click.Context,
    /,
    name: str | None,
    scanned: int,
    limit: int,
    follows: bool,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Show the live instances of a saga, the ones that were changed last first; or without SAGA, how many there are of each.

    --by, --paused, --idle and --late read indexes. --where reads states, those that were changed last first, or as these and
    --oldest-first say, and names those that cannot be read; the exit status is 1 then.
    """
    selection = selection_of(**chosen)
    if name is None and (selection != Selection() or follows):
        raise click.UsageError("name a saga with options that choose, --oldest-first and --follow")
    if follows and selection != Selection():
        raise click.UsageError("--follow is for all instances, the ones that were changed last at the end")
    with suppress(*[KeyboardInterrupt] * follows), opened(context) as runtime:
        if name is None:
            _print_counts(runtime, as_json=as_json)
            return
        saga = saga_named(name)
        if follows:
            _follow(runtime.backends.of(saga), saga, limit, as_json=as_json)
        scan = Scan(runtime, saga, selection, scanned)
        _print_instances(saga, list(islice(scan.find(), limit)), as_json=as_json)
        scan.tell()
        scan.end()


def _print_counts(runtime: Runtime, *, as_json: bool) -> None:
    counts, away = list[tuple[str, int]](), list[str]()
    for saga in registry.sagas.values():
        try:
            counts.append((saga.name, count_live(runtime.backends.of(saga), saga, counting.COUNTED + 1)))
        except StoreUnavailable as exc:
            away.append(f"{saga.name}: {exc}")
    if as_json:
        most = counting.COUNTED
        tables.print_json([{"saga": name, "instances": min(count, most), "more": count > most} for name, count in counts])
    else:
        shown = [(name, counting.count_text(count)) for name, count in counts]
        tables.print_table(_SAGAS, shown, "" if away else "The app defines no sagas.")
    for problem in away:
        click.echo(f"Error: {tables.sentence(problem)}", err=True)
    if away:
        raise click.exceptions.Exit(1)


def _follow(backend: Backend, saga: SagaDefinition, limit: int, *, as_json: bool) -> None:
    """Show the instances that were changed last, then each one again in which another version is seen."""
    tail = Tail(backend, saga.names)
    tail.look()
    newest = list(islice(glances(backend, saga, None), limit))[::-1]
    versions, feed = dict[str, int](), None if as_json else tables.Feed(_INSTANCES)
    for found in chain([newest], _changes(backend, saga, tail)):
        new = [glance for glance in found if versions.get(glance.id) != glance.version]
        if len(versions) > _REMEMBERED:
            versions.clear()
        versions |= {glance.id: glance.version for glance in new}
        if feed is None:
            tables.print_json(map(facts_of, new))
        else:
            feed.print(map(_row, new))


def _changes(backend: Backend, saga: SagaDefinition, tail: Tail) -> Iterator[list[Glance]]:
    """Yield the instances that are changed, again and again."""
    left: list[Entry] = []
    for entries in follow([tail]):
        left += entries
        try:
            found = list(changed(backend, saga, left))
        except StoreUnavailable:
            continue  # the next look says so
        left = []
        yield found


def _print_instances(saga: SagaDefinition, found: Sequence[Glance], *, as_json: bool) -> None:
    if as_json:
        tables.print_json(map(facts_of, found))
    else:
        tables.print_table(_INSTANCES, list(map(_row, found)), f"There are no such instances of {saga.name}.")


def _row(glance: Glance) -> tables.Row:
    times = tables.time(glance.created_at), tables.time(glance.updated_at)
    return glance.key, str(glance.version), *times, waits_for(glance), glance.id
