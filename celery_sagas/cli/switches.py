"""``celery sagas hold``, ``release`` and ``held``: switches of sagas and steps, for all workers."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from celery_sagas.cli import tables
from celery_sagas.cli.acts import ACTOR, DRY_RUN, JSON, operator_for
from celery_sagas.cli.app import opened
from celery_sagas.errors import StoreUnavailable
from celery_sagas.operate.operator import Operator
from celery_sagas.operate.switching import Switched, held_in
from celery_sagas.stores.switches import Switch

#: The command that helps.
RELEASE: Final = "celery -A proj sagas release NAME --reason TEXT    has its messages handled again"
_COLUMNS: Final = ("HELD", "SINCE", "WHO", "REASON")
_NAME = click.argument("name", metavar="SAGA|STEP")
_REASON = click.option("--reason", required=True, metavar="TEXT", help="Why: the audit keeps it.")


@click.command()
@_NAME
@_REASON
@ACTOR
@DRY_RUN
@JSON
@click.pass_context
def hold(context: click.Context, /, **options: Any) -> None:
    """Have the messages of a step, or of all steps of a saga, wait in all workers, until it is released.

    A worker sees it after a second at most; what it is handling then, it handles. Timeouts and answers wait, too. STEP is the
    name of a step's task, such as order.charge_card.
    """
    _switch(context, lambda operator, name, reason: operator.hold(name, reason), **options)


@click.command()
@_NAME
@_REASON
@ACTOR
@DRY_RUN
@JSON
@click.pass_context
def release(context: click.Context, /, **options: Any) -> None:
    """Have the messages of a held step, or saga, handled again.

    Each that waited comes when its delay is over: after half a minute at most.
    """
    _switch(context, lambda operator, name, reason: operator.release(name, reason), **options)


def _switch(
    context: click.Context,
    act: Callable[[Operator, str, str], Switched],
    *,
    name: str,
    reason: str,
    actor: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    with opened(context) as runtime:
        done = act(operator_for(runtime, actor, reason, dry_run=dry_run), name, reason)
    if as_json:
        tables.print_json([{"act": str(context.info_name), "dry_run": dry_run, **done._asdict()}])
        return
    plan = ": this is a dry run, and nothing was written" if done.planned else ""
    text = f"{done.name} {done.text}{plan}." if done.changed or done.planned else f"{done.name}: nothing to be done, {done.text}."
    click.echo(tables.line(text))


@click.command()
@tables.LOCAL
@click.option("--json", "as_json", is_flag=True, help="One JSON object in each line.")
@click.pass_context
def held(context: click.Context, as_json: bool) -> None:
    """Show which steps and sagas are held, since when, by whom, and why."""
    switches, away = dict[Switch, None](), list[StoreUnavailable]()
    with opened(context) as runtime:
        for backend in runtime.backends:
            try:
                switches |= dict.fromkeys(held_in(backend))  # two names may be one database
            except StoreUnavailable as exc:
                away.append(exc)
    if as_json:
        tables.print_json(map(Switch._asdict, switches))
    elif switches or not away:
        print_held(list(switches))
    for error in away:
        click.echo(f"Error: {tables.sentence(str(error))}", err=True)
    if away:
        raise click.exceptions.Exit(1)


def print_held(switches: Sequence[Switch]) -> None:
    """Print what is held, with the command that helps."""
    rows = [(each.name, tables.time(each.at), each.actor, each.reason) for each in switches]
    tables.print_table(_COLUMNS, rows, "Nothing is held.")
    if rows:
        click.echo(f"  → {RELEASE}")
