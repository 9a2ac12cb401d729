"""``celery sagas dead``: inspect, retry or discard messages that have failed permanently, and rejected items."""

import json
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Any

import click

from celery_sagas.cli import tables
from celery_sagas.cli.app import opened
from celery_sagas.core.requests.requests import UNDONE
from celery_sagas.errors import SagaError
from celery_sagas.stores.ports import DeadLetters
from celery_sagas.stores.records import DeadLetter
from celery_sagas.worker.failures.dead_letters import tries_of
from celery_sagas.worker.operators import discard_dead_letter, retry_dead_letter
from celery_sagas.worker.runtime import Runtime

#: Dead letters to read at once.
_PAGE = 500
_COLUMNS = ("ID", "SINCE", "TASK", "KEY", "ERROR")
_IDS = click.argument("ids", nargs=-1, metavar="[ID]...")
_ALL = click.option("--all", "everything", is_flag=True, help="All dead letters that there are now.")
_TASK = click.option("--task", metavar="NAME", help="Those of a task, or of an aggregator.")


@click.group()
def dead() -> None:
    """Inspect, retry or discard messages that have failed permanently, and rejected items."""


@dead.command("list")
@_TASK
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="How many, at most.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object in each line, with everything that is known.")
@click.pass_context
def list_dead_letters(context: click.Context, task: str | None, limit: int, as_json: bool) -> None:
    """Show the dead letters, the newest first."""
    with opened(context) as runtime:
        found = list(islice(_dead_letters(runtime, task, min(limit, _PAGE)), limit))
    if as_json:
        tables.print_json([{**dead_letter._asdict(), "tries": tries_of(dead_letter)} for dead_letter in found])
    else:
        tables.print_table(_COLUMNS, list(map(_row, found)), "There are no dead letters.")


@dead.command()
@click.argument("id")
@click.pass_context
def show(context: click.Context, id: str) -> None:
    """Show all details of one dead letter."""
    with opened(context) as runtime:
        dead_letter = _get(runtime, id)
    click.echo("\n".join(_description(dead_letter)))


@dead.command()
@_IDS
@_ALL
@_TASK
@click.pass_context
def retry(context: click.Context, ids: tuple[str, ...], everything: bool, task: str | None) -> None:
    """Send the messages of dead letters again, each under a new id, put rejected items back, and remove the dead letters."""
    with opened(context) as runtime:
        _each(runtime, _chosen(runtime, ids, everything, task), _retry)


@dead.command()
@_IDS
@_ALL
@_TASK
@click.option("--yes", is_flag=True, help="Do not ask where no ids are named.")
@click.pass_context
def discard(context: click.Context, ids: tuple[str, ...], everything: bool, task: str | None, yes: bool) -> None:
    """Remove dead letters; messages are never handled, items never flushed, and no instance waits for timeouts among them."""
    with opened(context) as runtime:
        chosen = _chosen(runtime, ids, everything, task)
        if chosen and not ids and not yes:
            click.confirm(f"Remove {len(chosen):,} dead letters for good?", abort=True)
        _each(runtime, chosen, _discard)


def _chosen(runtime: Runtime, ids: Sequence[str], everything: bool, task: str | None) -> Sequence[str]:
    """Return the named ids, or those of all dead letters in the order in which they failed: an answer before its failure."""
    if [bool(ids), everything, task is not None].count(True) != 1:
        raise click.UsageError("name the ids of dead letters, or give --all, or --task")
    return ids or [dead_letter.id for dead_letter in _dead_letters(runtime, task, _PAGE)][::-1]


def _each(runtime: Runtime, ids: Sequence[str], act: Callable[[Runtime, DeadLetter], str]) -> None:
    """Act on each dead letter, whatever the outcome of the others; exit with status 1 if one of them fails."""
    failed = 0
    for id in ids:
        try:
            click.echo(tables.line(act(runtime, _get(runtime, id))))
        except (SagaError, click.ClickException) as exc:
            failed += 1
            text = exc.format_message() if isinstance(exc, click.ClickException) else str(exc)
            click.echo(f"Error: {tables.block(text)}", err=True)
    if failed:
        raise click.exceptions.Exit(1)


def _retry(runtime: Runtime, dead_letter: DeadLetter) -> str:
    if runtime.app.conf.task_always_eager and not dead_letter.number:
        raise click.ClickException("with task_always_eager nothing is sent: the message would run here, and its failure be lost")
    retried = retry_dead_letter(runtime, dead_letter)
    if dead_letter.number:
        return f"{dead_letter.id}: the item {dead_letter.message_id} of {dead_letter.task} was put back."
    if not retried.id:
        return f"{dead_letter.id}: {dead_letter.task} {retried.reason}; the dead letter was removed and nothing was sent."
    return f"{dead_letter.id}: {dead_letter.task} was sent again as {retried.id}."


def _discard(runtime: Runtime, dead_letter: DeadLetter) -> str:
    waited = discard_dead_letter(runtime, dead_letter)
    what = f"the item {dead_letter.message_id} of {dead_letter.task}" if dead_letter.number else dead_letter.task
    if waited and dead_letter.task.endswith(UNDONE):
        return f"{dead_letter.id}: what could not be undone counts as undone, and {dead_letter.saga} {dead_letter.key} goes on."
    return f"{dead_letter.id}: {what} was discarded{', and its instance no longer waits for it' if waited else ''}."


def _get(runtime: Runtime, id: str) -> DeadLetter:
    for backend in runtime.backends:
        if dead_letter := backend.dead.get(id):
            return dead_letter
    raise click.ClickException(f"there is no dead letter {id}; `celery sagas dead list` shows those that there are")


def _dead_letters(runtime: Runtime, task: str | None, at_once: int) -> Iterator[DeadLetter]:
    """Yield the dead letters of all backends, or those of one task or aggregator, the newest first.

    Each once, even if two of the backends are one database.
    """
    seen: set[str] = set()
    for dead_letter in merge(*(_pages(backend.dead, at_once) for backend in runtime.backends), key=lambda each: -each.at):
        if task in (None, dead_letter.task) and dead_letter.id not in seen:
            seen.add(dead_letter.id)
            yield dead_letter


def _pages(dead_letters: DeadLetters, at_once: int) -> Iterator[DeadLetter]:
    page = dead_letters.list(at_once)
    while page:
        yield from page
        page = dead_letters.list(at_once, page[-1].id)


def _row(dead_letter: DeadLetter) -> tables.Row:
    return (dead_letter.id, tables.time(dead_letter.at), dead_letter.task, dead_letter.key, dead_letter.error)


def _description(dead_letter: DeadLetter) -> list[str]:
    about = {"task": dead_letter.task, "message": dead_letter.message_id, "saga": dead_letter.saga, "key": dead_letter.key}
    if dead_letter.number:
        about = {
            "task": dead_letter.task,
            "item": dead_letter.message_id,
            "group": dead_letter.key,
            "came": tables.time(dead_letter.buffered_at),
        }
    facts = {
        "id": dead_letter.id,
        "since": tables.time(dead_letter.at),
        **about,
        "tries": str(tries) if (tries := tries_of(dead_letter)) > 1 else "",
        "error": f"{dead_letter.error}: {dead_letter.text}",
    }
    lines = [f"{name + ':':9}{tables.line(value)}" for name, value in facts.items() if value]
    traceback = tables.block(dead_letter.traceback.rstrip())
    return [
        *lines,
        "",
        "The item:" if dead_letter.number else "The message:",
        _pretty(dead_letter.payload),
        "",
        "Traceback:",
        traceback or "none",
    ]


def _pretty(payload: str) -> str:
    """Return JSON text with indentation; text that is not JSON, or nested too deeply, in one line."""
    try:
        value: Any = json.loads(payload)
    except (ValueError, RecursionError):
        return tables.line(payload)
    return tables.block(json.dumps(value, indent=2, ensure_ascii=False))
