"""``celery sagas stuck``: what does not go on, and what helps."""

from collections.abc import Callable, Sequence
from functools import partial

import click

from celery_sagas.cli import tables
from celery_sagas.cli.ages import milliseconds
from celery_sagas.cli.app import opened, saga_named
from celery_sagas.cli.switches import RELEASE
from celery_sagas.errors import StoreUnavailable
from celery_sagas.operate.choosing import LOOKED_AT
from celery_sagas.operate.explain import Verdict
from celery_sagas.operate.spans import span
from celery_sagas.operate.stuck import Look, Trouble, each_once
from celery_sagas.worker.runtime import Runtime

#: The exit status if there is trouble.
FOUND = 3
_COLUMNS = ("VERDICT", "SAGA", "KEY", "SINCE", "WHAT")
#: The commands that help, by verdict.
_SHOW = "celery -A proj sagas show SAGA KEY    shows one instance, and what helps"
_HINTS = {
    Verdict.HELD.value: RELEASE,
    Verdict.PAUSED.value: "celery -A proj sagas resume SAGA KEY --reason WHY    lets a paused instance go on",
    **dict.fromkeys((Verdict.OVERDUE.value, Verdict.DEFERRED.value, Verdict.OPEN.value, Verdict.IDLE.value), _SHOW),
    Verdict.UNSENT.value: "celery -A proj inspect sagas_relay    shows which relays run, and what they meet",
    Verdict.FAILING.value: "celery -A proj sagas dead list --task TASK    shows the messages; dead retry sends them again",
}

#: What is said, by what was cut off.
_MOST = {
    "limit": "of each kind {limit} of a saga are shown at most (--limit)",
    "tried": f"{LOOKED_AT:,} messages are looked at that were published and not handled, or could not be",
    "untried": f"{LOOKED_AT:,} messages are looked at that no relay has taken",
}


@click.command()
@click.argument("name", required=False, metavar="[SAGA]")
@click.option("--idle", callback=milliseconds, help="Also instances that no message has changed for so long, such as 3d or 12h.")
@click.option(
    "--late", default="15m", show_default=True, callback=milliseconds, help="Timeouts that were not handled for so long."
)
@click.option(
    "--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="How many of each kind, and saga, at most."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object in each line.")
@click.pass_context
def stuck(context: click.Context, name: str | None, idle: int | None, late: int, limit: int, as_json: bool) -> None:
    """Show what does not go on: held steps, timeouts that are late, messages that cannot be published, dead letters, paused
    instances, and those that no message has changed for longer than the max_idle of their saga.

    The exit status is 3 if there is something, 1 if a backend is away.
    """
    with opened(context) as runtime:
        looks = _looks(runtime, name, partial(Look, limit=limit, idle_ms=idle, late_ms=late))
        troubles, away = _look(looks)
    cut = {each for look in looks for each in look.cut}
    if as_json:
        tables.print_json(each._asdict() for each in troubles)
    else:
        _print(troubles, is_whole=not (away or cut))
    for part, most in _MOST.items():
        if part in cut:
            click.echo(f"There may be more: {most.format(limit=limit)}.", err=True)
    for error in away:
        click.echo(f"Error: {tables.sentence(str(error))}", err=True)
    if away or troubles:
        raise click.exceptions.Exit(1 if away else FOUND)


def _look(looks: Sequence[Look]) -> tuple[list[Trouble], list[StoreUnavailable]]:
    """Return the troubles in all backends, and the errors of those that are away."""
    troubles, away = list[Trouble](), list[StoreUnavailable]()
    for look in looks:
        try:
            troubles += look.troubles()
        except StoreUnavailable as exc:
            away.append(exc)
    return each_once(troubles), away  # two names may be one database


def _looks(runtime: Runtime, name: str | None, look_at: Callable[..., Look]) -> list[Look]:
    if name is not None:
        saga = saga_named(name)
        return [look_at(runtime.backends.of(saga), [saga], is_whole=False)]
    return [look_at(backend, runtime.backends.sagas_in(backend)) for backend in runtime.backends]


def _print(troubles: list[Trouble], *, is_whole: bool) -> None:
    rows = [(each.verdict, each.saga, each.key or each.id, f"{span(each.for_ms)} ago", each.sentence) for each in troubles]
    if rows or is_whole:
        tables.print_table(_COLUMNS, rows, "Nothing is stuck.")
    verdicts = {each.verdict for each in troubles}
    for hint in dict.fromkeys(hint for verdict, hint in _HINTS.items() if verdict in verdicts):
        click.echo(f"  → {hint}")
