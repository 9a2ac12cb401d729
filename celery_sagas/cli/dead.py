"""``celery sagas dead``: the messages that failed for good, for people to look at, to retry or to discard."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click
from celery import Celery

from celery_sagas.cli.app import app_of
from celery_sagas.errors import ConfigurationError, DefinitionError, SagaError, StoreError
from celery_sagas.stores.ports import DeadLetters
from celery_sagas.stores.records import DeadLetter
from celery_sagas.worker.discard import discard_letter
from celery_sagas.worker.replay import retry_letter
from celery_sagas.worker.runtime import close_runtime, runtime_of

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
    with _letters(app_of(context)) as letters:
        found = letters.list(limit)
    if as_json:
        for letter in found:
            click.echo(json.dumps(letter._asdict()))
    elif not found:
        click.echo("There are no dead letters.")
    else:
        click.echo("\n".join(_table(found)))


@dead.command()
@click.argument("id")
@click.pass_context
def show(context: click.Context, id: str) -> None:
    """Show everything that is known of one dead letter."""
    with _letters(app_of(context)) as letters:
        letter = _get(letters, id)
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
    with _letters(app) as letters:
        chosen = _all_ids(letters) if everything else ids
        _each(chosen, lambda id: _retry(app, letters, id))


@dead.command()
@_IDS
@click.pass_context
def discard(context: click.Context, ids: tuple[str, ...]) -> None:
    """Remove dead letters; their messages are never handled, and no instance waits for those that were timeouts."""
    if not ids:
        raise click.UsageError("name the ids of dead letters")
    app = app_of(context)
    with _letters(app) as letters:
        _each(ids, lambda id: _discard(app, letters, id))


@contextmanager
def _letters(app: Celery) -> Iterator[DeadLetters]:
    """Open the letters of an app's backend; what goes wrong is told in a sentence."""
    try:
        app.loader.import_default_modules()
        app.finalize()
        yield runtime_of(app).backend.dead
    except (ConfigurationError, DefinitionError, StoreError) as exc:
        raise click.ClickException(str(exc)) from exc
    finally:
        close_runtime(app)


def _each(ids: Sequence[str], act: Callable[[str], str]) -> None:
    """Act on each letter, whatever becomes of the others; end with 1 if one could not be acted on."""
    failed = 0
    for id in ids:
        try:
            click.echo(act(id))
        except (SagaError, click.ClickException) as exc:
            failed += 1
            click.echo(f"Error: {exc.format_message() if isinstance(exc, click.ClickException) else exc}", err=True)
    if failed:
        raise click.exceptions.Exit(1)


def _retry(app: Celery, letters: DeadLetters, id: str) -> str:
    letter = _get(letters, id)
    new_id = retry_letter(app, letter)
    if not new_id:
        return f"{id}: {letter.task} was handled since, under its own id; the letter was removed and nothing was sent."
    return f"{id}: {letter.task} was sent again as {new_id}."


def _discard(app: Celery, letters: DeadLetters, id: str) -> str:
    letter = _get(letters, id)
    waited = discard_letter(app, letter)
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


def _table(letters: Sequence[DeadLetter]) -> list[str]:
    rows = [_COLUMNS, *((letter.id, _time(letter.at), letter.task, letter.key or "-", letter.error) for letter in letters)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _description(letter: DeadLetter) -> list[str]:
    facts = {
        "id": letter.id,
        "since": _time(letter.at),
        "task": letter.task,
        "message": letter.message_id,
        "saga": letter.saga,
        "key": letter.key,
        "error": f"{letter.error}: {letter.text}",
    }
    lines = [f"{name + ':':9}{value}" for name, value in facts.items() if value]
    return [*lines, "", "The message:", _pretty(letter.payload), "", "Traceback:", letter.traceback.rstrip() or "none"]


def _pretty(payload: str) -> str:
    """Return JSON text as a person reads it; what is no JSON as it is."""
    try:
        value: Any = json.loads(payload)
    except ValueError:
        return payload
    return json.dumps(value, indent=2, ensure_ascii=False)


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
