"""``celery sagas dead``: messages that failed for good and rejected items, to be looked at, retried or discarded."""

import json
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Any

import click

from celery_sagas.cli import tables
from celery_sagas.cli.app import app_of, opened
from celery_sagas.errors import SagaError
from celery_sagas.stores.ports import DeadLetters
from celery_sagas.stores.records import DeadLetter
from celery_sagas.worker.operators import discard_letter, retry_letter
from celery_sagas.worker.runtime import Runtime

#: Letters that are read at once.
_PAGE = 500
_COLUMNS = ("ID", "SINCE", "TASK", "KEY", "ERROR")
_IDS = click.argument("ids", nargs=-1, metavar="[ID]...")
_ALL = click.option("--all", "everything", is_flag=True, help="All dead letters that there are now.")
_TASK = click.option("--task", metavar="NAME", help="Those of a task, or of an aggregator.")


@click.group()
def dead() -> None:
    """Look at messages that failed for good and at rejected items, retry or discard them."""


@dead.command("list")
@_TASK
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="How many, at most.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object in each line, with everything that is known.")
@click.pass_context
def list_letters(context: click.Context, task: str | None, limit: int, as_json: bool) -> None:
    """Show the dead letters, the newest first."""
    with opened(app_of(context)) as runtime:
        found = list(islice(_letters(runtime, task, min(limit, _PAGE)), limit))
    if as_json:
        tables.print_json([letter._asdict() for letter in found])
    else:
        tables.print_table(_COLUMNS, list(map(_row, found)), "There are no dead letters.")


@dead.command()
@click.argument("id")
@click.pass_context
def show(context: click.Context, id: str) -> None:
    """Show everything that is known of one dead letter."""
    with opened(app_of(context)) as runtime:
        letter = _get(runtime, id)
    click.echo("\n".join(_description(letter)))


@dead.command()
@_IDS
@_ALL
@_TASK
@click.pass_context
def retry(context: click.Context, ids: tuple[str, ...], everything: bool, task: str | None) -> None:
    """Send the messages of dead letters again, each under a new id, put rejected items back, and remove the letters."""
    app = app_of(context)
    with opened(app) as runtime:
        _each(_chosen(runtime, ids, everything, task), lambda id: _retry(runtime, _get(runtime, id)))


@dead.command()
@_IDS
@_ALL
@_TASK
@click.option("--yes", is_flag=True, help="Do not ask where no ids are named.")
@click.pass_context
def discard(context: click.Context, ids: tuple[str, ...], everything: bool, task: str | None, yes: bool) -> None:
    """Remove dead letters; messages are never handled, items never flushed, and no instance waits for timeouts among them."""
    app = app_of(context)
    with opened(app) as runtime:
        chosen = _chosen(runtime, ids, everything, task)
        if chosen and not ids and not yes:
            click.confirm(f"Remove {len(chosen):,} dead letters for good?", abort=True)
        _each(chosen, lambda id: _discard(runtime, _get(runtime, id)))


def _chosen(runtime: Runtime, ids: Sequence[str], everything: bool, task: str | None) -> Sequence[str]:
    """Return the ids that were named, or those of all letters in the order in which they failed: an answer before its failure."""
    if [bool(ids), everything, task is not None].count(True) != 1:
        raise click.UsageError("name the ids of dead letters, or give --all, or --task")
    return ids or [letter.id for letter in _letters(runtime, task, _PAGE)][::-1]


def _each(ids: Sequence[str], act: Callable[[str], str]) -> None:
    """Act on each letter, whatever becomes of the others; end with 1 if one could not be acted on."""
    failed = 0
    for id in ids:
        try:
            click.echo(tables.line(act(id)))
        except (SagaError, click.ClickException) as exc:
            failed += 1
            text = exc.format_message() if isinstance(exc, click.ClickException) else str(exc)
            click.echo(f"Error: {tables.block(text)}", err=True)
    if failed:
        raise click.exceptions.Exit(1)


def _retry(runtime: Runtime, letter: DeadLetter) -> str:
    if runtime.app.conf.task_always_eager and not letter.number:
        raise click.ClickException("with task_always_eager nothing is sent: the message would run here, and its failure be lost")
    retried = retry_letter(runtime, letter)
    if letter.number:
        return f"{letter.id}: the item {letter.message_id} of {letter.task} was put back."
    if not retried.id:
        return f"{letter.id}: {letter.task} {retried.reason}; the dead letter was removed and nothing was sent."
    return f"{letter.id}: {letter.task} was sent again as {retried.id}."


def _discard(runtime: Runtime, letter: DeadLetter) -> str:
    waited = discard_letter(runtime, letter)
    what = f"the item {letter.message_id} of {letter.task}" if letter.number else letter.task
    return f"{letter.id}: {what} was discarded{', and its instance no longer waits for it' if waited else ''}."


def _get(runtime: Runtime, id: str) -> DeadLetter:
    for backend in runtime.backends:
        if letter := backend.dead.get(id):
            return letter
    raise click.ClickException(f"there is no dead letter {id}; `celery sagas dead list` shows those that there are")


def _letters(runtime: Runtime, task: str | None, at_once: int) -> Iterator[DeadLetter]:
    """Yield the letters of all backends, or those of one task or aggregator, the newest first."""
    found = merge(*(_pages(backend.dead, at_once) for backend in runtime.backends), key=lambda letter: -letter.at)
    return (letter for letter in found if task in (None, letter.task))


def _pages(letters: DeadLetters, at_once: int) -> Iterator[DeadLetter]:
    page = letters.list(at_once)
    while page:
        yield from page
        page = letters.list(at_once, page[-1].id)


def _row(letter: DeadLetter) -> tables.Row:
    return (letter.id, tables.time(letter.at), letter.task, letter.key, letter.error)


def _description(letter: DeadLetter) -> list[str]:
    about = {"task": letter.task, "message": letter.message_id, "saga": letter.saga, "key": letter.key}
    if letter.number:
        about = {"task": letter.task, "item": letter.message_id, "group": letter.key, "came": tables.time(letter.buffered_at)}
    facts = {"id": letter.id, "since": tables.time(letter.at), **about, "error": f"{letter.error}: {letter.text}"}
    lines = [f"{name + ':':9}{tables.line(value)}" for name, value in facts.items() if value]
    traceback = tables.block(letter.traceback.rstrip())
    return [
        *lines,
        "",
        "The item:" if letter.number else "The message:",
        _pretty(letter.payload),
        "",
        "Traceback:",
        traceback or "none",
    ]


def _pretty(payload: str) -> str:
    """Return JSON text as a person reads it; what is no JSON, or nested too deep, in one line."""
    try:
        value: Any = json.loads(payload)
    except (ValueError, RecursionError):
        return tables.line(payload)
    return tables.block(json.dumps(value, indent=2, ensure_ascii=False))
