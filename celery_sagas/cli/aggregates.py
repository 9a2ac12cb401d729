"""``celery sagas aggregates``: the buffered items of aggregators, and the unreadable ones among them."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import click

from celery_sagas.cli import tables
from celery_sagas.cli.acts import ACTOR, JSON, REASON, operator_for
from celery_sagas.cli.app import app_of, opened
from celery_sagas.cli.revealing import operator_to_reveal, revealing
from celery_sagas.core.registry import registry
from celery_sagas.errors import InvalidMessage
from celery_sagas.operate.items import AggregatorItems, buffers_of, items_text, place_of, redacted_text
from celery_sagas.stores.items import Counts, Group, Item
from celery_sagas.stores.ports import Backend
from celery_sagas.worker.aggregators.client import stored_items
from celery_sagas.worker.runtime import Runtime

#: An item, and the group in which it is.
_Found = tuple[str, Item]
#: Items to read at once.
_PAGE = 100
_AGGREGATORS = ("NAME", "GROUPS", "BUFFERED", "UNRESOLVED", "DEFINED")
_GROUPS = ("GROUP", "FREE", "LEASED", "UNRESOLVED", "DUE")
_ITEMS = ("GROUP", "ID", "STATE", "ATTEMPTS", "BUFFERED", "ITEM")
_UNREADABLE = ("GROUP", "ID", "BUFFERED", "WHY", "ITEM")

_LIMIT = click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="How many, at most.")
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object in each line, with everything that is known.")
_JSON_OF_EACH = click.option("--json", "as_json", is_flag=True, help="One JSON object in each line: what has come of each item.")


@click.group()
def aggregates() -> None:
    """Inspect the buffers of aggregators, and discard unreadable items."""


@aggregates.command("list")
@click.argument("name", required=False)
@_LIMIT
@tables.LOCAL
@_JSON
@click.pass_context
def list_buffers(context: click.Context, name: str | None, limit: int, as_json: bool) -> None:
    """Show every aggregator of the app and of its store, or the groups of one."""
    with opened(context) as runtime:
        if name is None:
            _print_counts(buffers_of(runtime.batches, limit), as_json=as_json)
        else:
            _check_name(runtime.batches, name)
            _print_groups(name, runtime.batches.buffers.groups(name, limit), as_json=as_json)


@aggregates.command()
@click.argument("name")
@click.argument("group", required=False)
@_LIMIT
@tables.LOCAL
@_JSON
@revealing
@click.pass_context
def items(context: click.Context, /, name: str, group: str | None, limit: int, as_json: bool, **options: Any) -> None:
    """Show the items that an aggregator, or one of its groups, has buffered: group by group, the oldest first.

    What is hidden is shown as three dots: see saga_hidden.
    """
    with opened(context) as runtime:
        _check_name(runtime.batches, name)
        found = islice(stored_items(runtime.batches.buffers, name, group, min(limit, _PAGE)), limit)
        shown = _shown(runtime, name, group, found, **options)
        if as_json:
            tables.print_json({"group": each, **item._asdict()} for each, item in shown)
        else:
            tables.print_table(_ITEMS, [_item_row(*each) for each in shown], f"{name} has nothing buffered{_in(group)}.")


@aggregates.command()
@click.argument("name")
@_LIMIT
@tables.LOCAL
@_JSON
@revealing
@click.pass_context
def unreadable(context: click.Context, /, name: str, limit: int, as_json: bool, **options: Any) -> None:
    """Show the items of an aggregator that could not be read: group by group, the oldest first.

    What is hidden is shown as three dots: see saga_hidden.
    """
    with opened(context) as runtime:
        _check_name(runtime.batches, name)
        found = list(islice(_unreadable(runtime.batches, name, min(limit, _PAGE)), limit))
        shown = _shown(runtime, name, None, found, **options)
        if as_json:
            tables.print_json({"group": group, **item._asdict()} for group, item in shown)
        else:
            why = [_problem(name, item) for _, item in found]
            rows = [_unreadable_row(*each, reason) for each, reason in zip(shown, why, strict=True)]
            tables.print_table(_UNREADABLE, rows, f"{name} has no unreadable items.")


@aggregates.command()
@click.argument("name")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--group", help="Only those of this group.")
@click.option("--all", "everything", is_flag=True, help="All unreadable items that there are now.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@REASON
@ACTOR
@_JSON_OF_EACH
@click.pass_context
def discard(
    context: click.Context,
    /,
    name: str,
    ids: tuple[str, ...],
    group: str | None,
    everything: bool,
    yes: bool,
    reason: str,
    actor: str | None,
    as_json: bool,
) -> None:
    """Remove unreadable items permanently: no batch will contain them."""
    if bool(ids) is everything:
        raise click.UsageError("name the ids of items, or give --all")
    with opened(context) as runtime:
        _check_name(runtime.batches, name)
        operated = AggregatorItems(runtime, name, operator_for(runtime, actor, reason).actor, reason)
        found = [(of, item.id) for of, item in _unreadable(runtime.batches, name, _PAGE) if group in (None, of)]
        chosen = [(of, id) for of, id in found if everything or id in ids]
        if chosen and not yes:
            click.confirm(f"Remove {items_text(len(chosen))} of {name} for good?", abort=True, err=True)
        count = 0
        for each in operated.discard(chosen):
            count += each.discarded
            if as_json:
                tables.print_json([{"act": "discard", "aggregator": name, **each._asdict()}])
    unknown = [id for id in dict.fromkeys(ids) if id not in {id for _, id in chosen}]
    if as_json:
        about = {"act": "discard", "aggregator": name, "group": group}
        tables.print_json({**about, "id": id, "discarded": False} for id in unknown)
    else:
        click.echo(f"{items_text(count)} of {name} {_were(count)} discarded.")
    if missing := len(chosen) - count + len(unknown):
        click.echo(f"Error: {items_text(missing)} {_were(missing)} not discarded: no unreadable item has the id", err=True)
        raise click.exceptions.Exit(1)


@aggregates.command()
@click.argument("name")
@click.argument("group", required=False)
@REASON
@ACTOR
@JSON
@click.pass_context
def flush(context: click.Context, /, name: str, group: str | None, reason: str, actor: str | None, as_json: bool) -> None:
    """Request an immediate flush of a group, or of all groups, whether or not they are due."""
    if app_of(context).conf.task_always_eager:
        raise click.ClickException("with task_always_eager nothing is sent: the function would run here")
    with opened(context) as runtime:
        operated = AggregatorItems(runtime, name, operator_for(runtime, actor, reason).actor, reason)
        count = _flush(runtime, operated, group)
    if as_json:
        tables.print_json([{"act": "flush", "aggregator": name, "group": group, "groups": count}])
        return
    click.echo(f"{count} {'group' if count == 1 else 'groups'} of {name} will be flushed.")


def _print_counts(counts: Sequence[tuple[str, Counts]], *, as_json: bool) -> None:
    if as_json:
        tables.print_json([{"name": name, **each._asdict(), "defined": name in registry.aggregators} for name, each in counts])
        return
    rows = [(name, *map(str, each), place_of(name)) for name, each in counts]
    tables.print_table(_AGGREGATORS, rows, "There are no aggregators.")


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


def _unreadable_row(group: str, item: Item, why: str) -> tables.Row:
    return (group, item.id, tables.time(item.at), tables.short(why), tables.short(item.payload))


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


def _shown(
    runtime: Runtime,
    name: str,
    group: str | None,
    found: Iterable[_Found],
    *,
    reveal: bool,
    reason: str | None,
    actor: str | None,
) -> Iterable[_Found]:
    """Return items as they are shown: redacted, or for a reason as they are."""
    if not reveal:
        return ((of, item._replace(payload=redacted_text(name, item.payload, runtime.settings.hidden))) for of, item in found)
    operator, why = operator_to_reveal(runtime, actor, reason)
    revealed = list(found)
    if revealed:
        AggregatorItems(runtime, name, operator.actor, why).reveal(group, len(revealed))
    return revealed


def _flush(runtime: Runtime, operated: AggregatorItems, group: str | None) -> int:
    name = operated.name
    _check_name(runtime.batches, name)
    definition = registry.aggregators.get(name)
    if definition is None:
        raise click.ClickException(
            f"{name} has items in the store, and this app does not define it: run the command with an app that does (celery -A …)"
        )
    try:
        return operated.flush(definition, group)
    except ValueError as exc:
        raise click.BadParameter(tables.line(str(exc)), param_hint="GROUP") from exc


def _in(group: str | None) -> str:
    return f" in the group {tables.line(group)}" if group else ""


def _were(count: int) -> str:
    return "was" if count == 1 else "were"
