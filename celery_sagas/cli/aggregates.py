"""``celery sagas aggregates``: the buffered items of aggregators, and the unreadable ones among them."""

from collections.abc import Iterator, Sequence
from itertools import islice

import click

from celery_sagas.cli import tables
from celery_sagas.cli.app import app_of, opened
from celery_sagas.core.registry import registry
from celery_sagas.engine.requests.gathering import buffer_of
from celery_sagas.errors import InvalidMessage, NotBuffered
from celery_sagas.stores.items import Counts, Group, Item
from celery_sagas.stores.ports import Backend
from celery_sagas.worker.aggregators.client import AggregatorClient, stored_items
from celery_sagas.worker.runtime import Runtime

#: Items to read at once.
_PAGE = 100
_AGGREGATORS = ("NAME", "GROUPS", "BUFFERED", "UNRESOLVED", "DEFINED")
_GROUPS = ("GROUP", "FREE", "LEASED", "UNRESOLVED", "DUE")
_ITEMS = ("GROUP", "ID", "STATE", "ATTEMPTS", "BUFFERED", "ITEM")
_UNREADABLE = ("GROUP", "ID", "BUFFERED", "WHY", "ITEM")

_LIMIT = click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="How many, at most.")
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object in each line, with everything that is known.")


@click.group()
def aggregates() -> None:
    """Inspect the buffers of aggregators, and discard unreadable items."""


@aggregates.command("list")
@click.argument("name", required=False)
@_LIMIT
@_JSON
@click.pass_context
def list_buffers(context: click.Context, name: str | None, limit: int, as_json: bool) -> None:
    """Show every aggregator of the app and of its store, or the groups of one."""
    with opened(context) as runtime:
        if name is None:
            _print_counts(_counts(runtime.batches, limit), as_json=as_json)
        else:
            _check_name(runtime.batches, name)
            _print_groups(name, runtime.batches.buffers.groups(name, limit), as_json=as_json)


@aggregates.command()
@click.argument("name")
@click.argument("group", required=False)
@_LIMIT
@_JSON
@click.pass_context
def items(context: click.Context, name: str, group: str | None, limit: int, as_json: bool) -> None:
    """Show the items that an aggregator, or one of its groups, has buffered: group by group, the oldest first."""
    with opened(context) as runtime:
        _check_name(runtime.batches, name)
        found = islice(stored_items(runtime.batches.buffers, name, group, min(limit, _PAGE)), limit)
        if as_json:
            tables.print_json({"group": each, **item._asdict()} for each, item in found)
        else:
            tables.print_table(_ITEMS, [_item_row(*each) for each in found], f"{name} has nothing buffered{_in(group)}.")


@aggregates.command()
@click.argument("name")
@_LIMIT
@_JSON
@click.pass_context
def unreadable(context: click.Context, name: str, limit: int, as_json: bool) -> None:
    """Show the items of an aggregator that could not be read: group by group, the oldest first."""
    with opened(context) as runtime:
        _check_name(runtime.batches, name)
        found = islice(_unreadable(runtime.batches, name, min(limit, _PAGE)), limit)
        if as_json:
            tables.print_json({"group": group, **item._asdict()} for group, item in found)
        else:
            rows = [_unreadable_row(name, *each) for each in found]
            tables.print_table(_UNREADABLE, rows, f"{name} has no unreadable items.")


@aggregates.command()
@click.argument("name")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--group", help="Only those of this group.")
@click.option("--all", "everything", is_flag=True, help="All unreadable items that there are now.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def discard(context: click.Context, name: str, ids: tuple[str, ...], group: str | None, everything: bool, yes: bool) -> None:
    """Remove unreadable items permanently: no batch will contain them."""
    if bool(ids) is everything:
        raise click.UsageError("name the ids of items, or give --all")
    with opened(context) as runtime:
        _check_name(runtime.batches, name)
        found = [(of, item.id) for of, item in _unreadable(runtime.batches, name, _PAGE) if group in (None, of)]
        chosen = [(of, id) for of, id in found if everything or id in ids]
        if chosen and not yes:
            click.confirm(f"Remove {_items(len(chosen))} of {name} for good?", abort=True)
        count = sum(_discard(runtime, name, *each) for each in chosen)
    click.echo(f"{_items(count)} of {name} {_were(count)} discarded.")
    if missing := len(chosen) - count + len(set(ids) - {id for _, id in chosen}):
        click.echo(f"Error: {_items(missing)} {_were(missing)} not discarded: no unreadable item has the id", err=True)
        raise click.exceptions.Exit(1)


@aggregates.command()
@click.argument("name")
@click.argument("group", required=False)
@click.pass_context
def flush(context: click.Context, name: str, group: str | None) -> None:
    """Request an immediate flush of a group, or of all groups, whether or not they are due."""
    if app_of(context).conf.task_always_eager:
        raise click.ClickException("with task_always_eager nothing is sent: the function would run here")
    with opened(context) as runtime:
        count = _flush(runtime, name, group)
    click.echo(f"{count} {'group' if count == 1 else 'groups'} of {name} will be flushed.")


def _counts(batches: Backend, limit: int) -> list[tuple[str, Counts]]:
    names = sorted({*registry.aggregators, *batches.buffers.names()})
    return [(name, batches.buffers.count(name)) for name in names[:limit]]


def _print_counts(counts: Sequence[tuple[str, Counts]], *, as_json: bool) -> None:
    if as_json:
        tables.print_json([{"name": name, **each._asdict(), "defined": name in registry.aggregators} for name, each in counts])
        return
    rows = [(name, *map(str, each), _place_of(name)) for name, each in counts]
    tables.print_table(_AGGREGATORS, rows, "There are no aggregators.")


def _place_of(name: str) -> str:
    """Return whether an aggregator is defined here; the collected answers of gathers are listed under the saga's name."""
    if name in registry.aggregators:
        return "yes"
    gathers = {buffer_of(saga) for definition in registry.sagas.values() for saga in definition.names}
    return "answers to gathers" if name in gathers else "not in this app"


def _print_groups(name: str, groups: Sequence[Group], *, as_json: bool) -> None:
    if as_json:
        tables.print_json([group._asdict() for group in groups])
    else:
        tables.print_table(_GROUPS, [_group_row(group) for group in groups], f"{name} has nothing buffered.")


def _group_row(group: Group) -> tables.Row:
    due = tables.time(group.due_at) if group.due_at else "with its next item"
    return (group.group, str(group.free), str(group.leased), str(group.unresolved), due)


def _item_row(group: str, item: Item) -> tables.Row:
    return (group, item.id, item.state, str(item.attempts), tables.time(item.at), tables.short(item.payload))


def _unreadable(batches: Backend, name: str, at_once: int) -> Iterator[tuple[str, Item]]:
    after = None
    while page := batches.buffers.unresolved(name, at_once, after):
        yield from page
        group, last = page[-1]
        after = group, last.number


def _discard(runtime: Runtime, name: str, group: str, id: str) -> bool:
    """Remove an item, unless it can be read now; return whether it was removed."""
    try:
        runtime.batches.buffers.remove(runtime.rules_named(name), group, id, unresolved=True)
    except NotBuffered:
        return False
    return True


def _unreadable_row(name: str, group: str, item: Item) -> tables.Row:
    return (group, item.id, tables.time(item.at), tables.short(_problem(name, item)), tables.short(item.payload))


def _problem(name: str, item: Item) -> str:
    """Return why an item cannot be read, as far as this app's code can determine."""
    definition = registry.aggregators.get(name)
    if definition is None:
        return "not in this app"
    try:
        definition.items.read(item.payload)
    except InvalidMessage as exc:
        return "; ".join(f"{path}: {text}" if path else text for path, text in exc.problems)
    return "readable for this app"


def _check_name(batches: Backend, name: str) -> None:
    """Refuse a name that is unknown to both the app and the store."""
    if name not in registry.aggregators and name not in batches.buffers.names():
        raise click.ClickException(
            f"there is no aggregator {tables.line(name)}; `celery sagas aggregates list` shows those that there are"
        )


def _flush(runtime: Runtime, name: str, group: str | None) -> int:
    _check_name(runtime.batches, name)
    definition = registry.aggregators.get(name)
    if definition is None:
        raise click.ClickException(
            f"{name} has items in the store, and this app does not define it: run the command with an app that does (celery -A …)"
        )
    try:
        return AggregatorClient(runtime, definition).flush(group)
    except ValueError as exc:
        raise click.BadParameter(tables.line(str(exc)), param_hint="GROUP") from exc


def _in(group: str | None) -> str:
    return f" in the group {tables.line(group)}" if group else ""


def _items(count: int) -> str:
    return "1 item" if count == 1 else f"{count:,} items"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"
