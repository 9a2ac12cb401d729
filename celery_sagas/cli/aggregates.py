"""``celery sagas aggregates``: what aggregators have buffered, and what was set aside, for people to look at and to decide on."""

from collections.abc import Callable, Sequence
from itertools import islice

import click

from celery_sagas.cli import tables
from celery_sagas.cli.app import app_of, opened
from celery_sagas.core.registry import registry
from celery_sagas.engine.requests.gathering import buffer_of
from celery_sagas.errors import InvalidMessage
from celery_sagas.stores.items import Counts, Group, Item, Kept, Rules
from celery_sagas.stores.ports import Backend
from celery_sagas.worker.aggregators.client import Buffered, stored_items
from celery_sagas.worker.runtime import Runtime

#: Items that are read, and handles that are acted on, at once.
_PAGE = 100
_AGGREGATORS = ("NAME", "GROUPS", "BUFFERED", "UNRESOLVED", "REJECTED", "DEFINED")
_GROUPS = ("GROUP", "FREE", "LEASED", "UNRESOLVED", "DUE")
_ITEMS = ("GROUP", "ID", "STATE", "ATTEMPTS", "BUFFERED", "ITEM")
_KEPT = ("HANDLE", "GROUP", "ID", "BUFFERED", "WHY", "ITEM")

_HANDLES = click.argument("handles", nargs=-1, metavar="[HANDLE]...")
_LIMIT = click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="How many, at most.")
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object in each line, with everything that is known.")
_ALL = click.option("--all", "everything", is_flag=True, help="All that there are now, of the same kind as `show` has them.")
_UNRESOLVED = click.option("--unresolved", is_flag=True, help="Items that no code could read, in the place of rejected ones.")


@click.group()
def aggregates() -> None:
    """Look at what aggregators have buffered, put back or discard what was set aside."""


@aggregates.command("list")
@click.argument("name", required=False)
@_LIMIT
@_JSON
@click.pass_context
def list_buffers(context: click.Context, name: str | None, limit: int, as_json: bool) -> None:
    """Show every aggregator of the app and of its store, or the groups of one."""
    with opened(app_of(context)) as runtime:
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
    with opened(app_of(context)) as runtime:
        _check_name(runtime.batches, name)
        found = islice(stored_items(runtime.batches.buffers, name, group, min(limit, _PAGE)), limit)
        if as_json:
            tables.print_json({"group": each, **item._asdict()} for each, item in found)
        else:
            tables.print_table(_ITEMS, [_item_row(*each) for each in found], f"{name} has nothing buffered{_in(group)}.")


@aggregates.command()
@click.argument("name")
@_UNRESOLVED
@_LIMIT
@_JSON
@click.pass_context
def show(context: click.Context, name: str, unresolved: bool, limit: int, as_json: bool) -> None:
    """Show the items of an aggregator that were set aside, the first one first."""
    with opened(app_of(context)) as runtime:
        _check_name(runtime.batches, name)
        found = runtime.batches.leftovers.kept(name, _kind(unresolved), limit)
        if as_json:
            tables.print_json([kept._asdict() for kept in found])
        else:
            tables.print_table(_KEPT, [_kept_row(name, kept) for kept in found], f"{name} has no {_kind(unresolved)} items.")


@aggregates.command()
@click.argument("name")
@_HANDLES
@_ALL
@_UNRESOLVED
@click.pass_context
def retry(context: click.Context, name: str, handles: tuple[str, ...], everything: bool, unresolved: bool) -> None:
    """Put items back into the buffer: they are flushed again, as if no flush of them had failed."""
    with opened(app_of(context)) as runtime:
        chosen = _chosen(runtime.batches, name, handles, everything, _kind(unresolved))
        leftovers, rules = runtime.batches.leftovers, _rules(runtime, name)
        count = _in_parts(chosen, lambda part: leftovers.put_back(rules, part))
    click.echo(f"{_items(count)} of {name} {_were(count)} put back.")
    _tell_left(len(chosen) - count, "put back: nothing has their handle, or their id is buffered again")


@aggregates.command()
@click.argument("name")
@_HANDLES
@_ALL
@_UNRESOLVED
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def discard(context: click.Context, name: str, handles: tuple[str, ...], everything: bool, unresolved: bool, yes: bool) -> None:
    """Remove items for good: no batch will have them."""
    with opened(app_of(context)) as runtime:
        chosen = _chosen(runtime.batches, name, handles, everything, _kind(unresolved))
        if chosen and not yes:
            click.confirm(f"Remove {_items(len(chosen))} of {name} for good?", abort=True)
        leftovers, rules = runtime.batches.leftovers, _rules(runtime, name)
        count = _in_parts(chosen, lambda part: leftovers.discard(rules, part))
    click.echo(f"{_items(count)} of {name} {_were(count)} discarded.")
    _tell_left(len(chosen) - count, "discarded: nothing has their handle")


@aggregates.command()
@click.argument("name")
@click.argument("group", required=False)
@click.pass_context
def flush(context: click.Context, name: str, group: str | None) -> None:
    """Have a group flushed now, or all groups, whatever they wait for."""
    app = app_of(context)
    if app.conf.task_always_eager:
        raise click.ClickException("with task_always_eager nothing is sent: the function would run here")
    with opened(app) as runtime:
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
    """Return whether an aggregator is defined here; what the members of gathers have answered is kept under the saga's name."""
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


def _kept_row(name: str, kept: Kept) -> tables.Row:
    why = kept.note if kept.kind == "rejected" else _problem(name, kept)
    return (kept.handle, kept.group, kept.id, tables.time(kept.at), tables.short(why), tables.short(kept.payload))


def _problem(name: str, kept: Kept) -> str:
    """Return why an item cannot be read, as far as this app's code knows."""
    definition = registry.aggregators.get(name)
    if definition is None:
        return "not in this app"
    try:
        definition.items.read(kept.payload)
    except InvalidMessage as exc:
        return "; ".join(f"{path}: {text}" if path else text for path, text in exc.problems)
    return "readable for this app"


def _check_name(batches: Backend, name: str) -> None:
    """Refuse a name that neither the app nor the store knows."""
    if name not in registry.aggregators and name not in batches.buffers.names():
        raise click.ClickException(f"there is no aggregator {name}; `celery sagas aggregates list` shows those that there are")


def _chosen(batches: Backend, name: str, handles: Sequence[str], everything: bool, kind: str) -> list[str]:
    """Return the handles that were named, each once, or those of all items of a kind."""
    if bool(handles) is everything:
        raise click.UsageError("name the handles of items, or give --all")
    _check_name(batches, name)
    if handles:
        return list(dict.fromkeys(handles))
    found: list[str] = []
    while page := batches.leftovers.kept(name, kind, _PAGE, found[-1] if found else ""):
        found += [kept.handle for kept in page]
    return found


def _rules(runtime: Runtime, name: str) -> Rules:
    """Return what an aggregator asks of its store.

    Of one that this app does not define nobody knows here when its groups are to be flushed. They become due at once, so that a
    relay which knows it looks at them by its rules; ids are remembered for as long as they are without ``dedupe_for``.
    """
    definition = registry.aggregators.get(name)
    if definition is not None:
        return runtime.rules_of(definition)
    settings = runtime.settings
    retention_s = settings.journal_retention or runtime.batches.journal_retention_s
    return Rules(name, within_ms=1, remember_ms=int(retention_s * 1000), lease_ms=int(settings.lease_ttl * 1000))


def _flush(runtime: Runtime, name: str, group: str | None) -> int:
    _check_name(runtime.batches, name)
    definition = registry.aggregators.get(name)
    if definition is None:
        raise click.ClickException(
            f"{name} has items in the store, and this app does not define it: run the command with an app that does (celery -A …)"
        )
    try:
        return Buffered(runtime, definition).flush(group)
    except ValueError as exc:
        raise click.BadParameter(str(exc), param_hint="GROUP") from exc


def _in_parts(handles: Sequence[str], act: Callable[[Sequence[str]], int]) -> int:
    return sum(act(handles[start : start + _PAGE]) for start in range(0, len(handles), _PAGE))


def _tell_left(count: int, what: str) -> None:
    """Tell of items that could not be acted on, and end with 1 if there are any."""
    if count:
        click.echo(f"Error: {_items(count)} {_were(count)} not {what}", err=True)
        raise click.exceptions.Exit(1)


def _in(group: str | None) -> str:
    return f" in the group {tables.line(group)}" if group else ""


def _kind(unresolved: bool) -> str:
    return "unresolved" if unresolved else "rejected"


def _items(count: int) -> str:
    return "1 item" if count == 1 else f"{count:,} items"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"
