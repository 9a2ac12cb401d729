"""``celery sagas dead``: the messages that failed for good, for people to look at, to retry or to discard."""

import json
from collections.abc import Callable, Sequence
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


@click.group()
def dead() -> None:
    """Look at messages that failed for good, retry or discard them."""


@dead.command("list")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="How many, at most.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object in each line, with everything that is known.")
@click.pass_context
def list_letters(context: click.Context, limit: int, as_json: bool) -> None:
    """Show the dead letters, the newest first."""
    with opened(app_of(context)) as runtime:
        found = runtime.backend.dead.list(limit)
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
        letter = _get(runtime.backend.dead, id)
    click.echo("\n".join(_description(letter)))


@dead.command()
@_IDS
@click.option("--all", "everything", is_flag=True, help="All dead letters that there are now.")
@click.pass_context
def retry(context: click.Context, ids: tuple[str, ...], everything: bool) -> None:
    """Send the messages of dead letters again, each under a new id, and remove the letters."""
    if bool(ids) is everything:
        raise click.UsageError("name the ids of dead letters, or give --all")
    app = app_of(context)
    if app.conf.task_always_eager:
        raise click.ClickException("with task_always_eager nothing is sent: the message would run here, and its failure be lost")
    with opened(app) as runtime:
        chosen = (
            _all_ids(runtime.backend.dead)[::-1] if everything else ids
        )  # in the order in which they failed: an answer before its failure
        _each(chosen, lambda id: _retry(runtime, id))


@dead.command()
@_IDS
@click.pass_context
def discard(context: click.Context, ids: tuple[str, ...]) -> None:
    """Remove dead letters; their messages are never handled, and no instance waits for those that were timeouts."""
    if not ids:
        raise click.UsageError("name the ids of dead letters")
    app = app_of(context)
    with opened(app) as runtime:
        _each(ids, lambda id: _discard(runtime, id))


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


def _retry(runtime: Runtime, id: str) -> str:
    letter = _get(runtime.backend.dead, id)
    retried = retry_letter(runtime, letter)
    if not retried.id:
        return f"{id}: {letter.task} {retried.reason}; the letter was removed and nothing was sent."
    return f"{id}: {letter.task} was sent again as {retried.id}."


def _discard(runtime: Runtime, id: str) -> str:
    letter = _get(runtime.backend.dead, id)
    waited = discard_letter(runtime, letter)
    return f"{id}: {letter.task} was discarded{', and its instance no longer waits for it' if waited else ''}."


def _get(letters: DeadLetters, id: str) -> DeadLetter:
    letter = letters.get(id)
    if letter is None:
        raise click.ClickException(f"there is no dead letter {id}; `celery sagas dead list` shows those that there are")
    return letter


def _all_ids(letters: DeadLetters) -> list[str]:
    ids: list[str] = []
    while page := letters.list(_PAGE, ids[-1] if ids else None):
        ids += [letter.id for letter in page]
    return ids


def _row(letter: DeadLetter) -> tables.Row:
    return (letter.id, tables.time(letter.at), letter.task, letter.key, letter.error)


def _description(letter: DeadLetter) -> list[str]:
    facts = {
        "id": letter.id,
        "since": tables.time(letter.at),
        "task": letter.task,
        "message": letter.message_id,
        "saga": letter.saga,
        "key": letter.key,
        "error": f"{letter.error}: {letter.text}",
    }
    lines = [f"{name + ':':9}{tables.line(value)}" for name, value in facts.items() if value]
    traceback = tables.block(letter.traceback.rstrip())
    return [*lines, "", "The message:", _pretty(letter.payload), "", "Traceback:", traceback or "none"]


def _pretty(payload: str) -> str:
    """Return JSON text as a person reads it; what is no JSON, or nested too deep, in one line."""
    try:
        value: Any = json.loads(payload)
    except (ValueError, RecursionError):
        return tables.line(payload)
    return tables.block(json.dumps(value, indent=2, ensure_ascii=False))
