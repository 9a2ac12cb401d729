"""``celery sagas dead``: inspect, retry or discard messages that have failed permanently, and rejected items."""

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from itertools import islice, takewhile
from typing import Any, NamedTuple

import click
from celery import Celery

from celery_sagas.cli import tables
from celery_sagas.cli.acts import ACTOR, JSON, REASON, operator_for
from celery_sagas.cli.ages import milliseconds
from celery_sagas.cli.app import opened, unknown_saga, unknown_task
from celery_sagas.cli.options import adding
from celery_sagas.cli.revealing import operator_to_reveal, revealing
from celery_sagas.clock import time_s
from celery_sagas.errors import SagaError, StoreUnavailable
from celery_sagas.operate.dead_letters import DeadLetters, Treated, dead_letter_of, facts_of, redacted_payload
from celery_sagas.operate.groups import GROUPED, Group, grouped
from celery_sagas.operate.redact import MARK
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import DeadLetter
from celery_sagas.worker.failures.dead_letters import tries_of
from celery_sagas.worker.runtime import Runtime

#: Dead letters to read at once.
_PAGE = 500
_COLUMNS = ("ID", "SINCE", "TASK", "KEY", "ERROR")
_GROUP_COLUMNS = ("TASK", "ERROR", "DEAD LETTERS", "NEWEST", "OLDEST")
_NONE = "There are no dead letters."
_IDS = click.argument("ids", nargs=-1, metavar="[ID]...")
_ALL = click.option("--all", "everything", is_flag=True, help="All dead letters that there are now.")
_TASK = click.option("--task", metavar="NAME", help="Those of a task, or of an aggregator.")
_SAGA = click.option("--saga", metavar="NAME", help="Those of a saga, by its stored name.")
_ERROR = click.option("--error", metavar="NAME", help="Those of an error, by the name of its class.")
_SINCE = click.option("--since", callback=milliseconds, help="Those of this time until now, such as 1d, 12h, 30m or 2w.")
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object in each line, with everything that is known.")
_JSON_OF_EACH = click.option("--json", "as_json", is_flag=True, help="One JSON object in each line: what has come of each.")


#: Adds what acts on dead letters are given.
_acting = adding(_IDS, _ALL, _TASK, _SAGA, _ERROR, _SINCE, REASON, ACTOR, _JSON_OF_EACH)


class _Wanted(NamedTuple):
    """Which dead letters are meant: those for which everything that is given is so."""

    task: str | None
    saga: str | None
    error: str | None
    since: int | None  #: milliseconds

    def first_at(self) -> float:
        """Return the time of the oldest dead letters that are meant, in milliseconds."""
        return 0 if self.since is None else time_s() * 1000 - self.since

    def takes(self, dead_letter: DeadLetter) -> bool:
        """Return whether a dead letter is meant, if it is new enough."""
        given = (self.task, dead_letter.task), (self.saga, dead_letter.saga), (self.error, dead_letter.error)
        return all(wanted in (None, value) for wanted, value in given)

    def say_unknown(self, app: Celery) -> None:
        """Say which of the names the app does not have, and which it may be."""
        saga = unknown_saga(self.saga) if self.saga is not None else ""
        task = unknown_task(app, self.task) if self.task is not None else ""
        for sentence in filter(None, (saga, task)):
            click.echo(sentence, err=True)


@click.group()
def dead() -> None:
    """Inspect, retry or discard messages that have failed permanently, and rejected items."""


@dead.command("list")
@_TASK
@_SAGA
@_ERROR
@_SINCE
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="How many, at most.")
@tables.LOCAL
@_JSON
@click.pass_context
def list_dead_letters(context: click.Context, /, limit: int, as_json: bool, **wanted: Any) -> None:
    """Show the dead letters, the newest first."""
    with opened(context) as runtime:
        kept, which = _Kept(runtime, min(limit, _PAGE)), _Wanted(**wanted)
        found = list(islice(kept.wanted(which), limit))
        if as_json:
            tables.print_json([facts_of(dead_letter, runtime.settings.hidden) for dead_letter in found])
        else:
            kept.print_table(_COLUMNS, list(map(_row, found)))
        if not found:
            which.say_unknown(runtime.app)
        kept.report()


@dead.command()
@_TASK
@_SAGA
@_ERROR
@_SINCE
@tables.LOCAL
@_JSON
@click.pass_context
def groups(context: click.Context, /, as_json: bool, **wanted: Any) -> None:
    """Count the dead letters by task and error, those with the most first; it looks at the newest 10,000."""
    with opened(context) as runtime:
        kept, which = _Kept(runtime, _PAGE), _Wanted(**wanted)
        found = list(islice(kept.wanted(which), GROUPED + 1))
        counted = grouped(found[:GROUPED])
        if as_json:
            tables.print_json(map(Group._asdict, counted))
        else:
            kept.print_table(_GROUP_COLUMNS, list(map(_group_row, counted)))
        if len(found) > GROUPED:
            click.echo(f"There are more: these are the newest {GROUPED:,}.", err=True)
        if not found:
            which.say_unknown(runtime.app)
        kept.report()


@dead.command()
@click.argument("id")
@revealing
@tables.LOCAL
@JSON
@click.pass_context
def show(context: click.Context, /, id: str, reveal: bool, reason: str | None, actor: str | None, as_json: bool) -> None:
    """Show all details of one dead letter. What is hidden is shown as three dots: see saga_hidden."""
    with opened(context) as runtime:
        hidden = None if reveal else runtime.settings.hidden
        if reveal:
            operator, why = operator_to_reveal(runtime, actor, reason)
            dead_letter = operator.dead_letters(why).reveal(id)
        else:
            dead_letter = dead_letter_of(runtime, id)
    if as_json:
        tables.print_json([facts_of(dead_letter, hidden)])
    else:
        click.echo("\n".join(_description(dead_letter, hidden)))


@dead.command()
@_acting
@click.pass_context
def retry(context: click.Context, /, **options: Any) -> None:
    """Send the messages of dead letters again, each under a new id, put rejected items back, and remove the dead letters."""
    _act(context, DeadLetters.retry, **options)


@dead.command()
@_acting
@click.option("--yes", is_flag=True, help="Do not ask where no ids are named.")
@click.pass_context
def discard(context: click.Context, /, **options: Any) -> None:
    """Remove dead letters; messages are never handled, items never flushed, and no instance waits for timeouts among them."""
    _act(context, DeadLetters.discard, **options)


class _Kept:
    """The dead letters in all backends; one that is away does not hide those in the others."""

    def __init__(self, runtime: Runtime, at_once: int) -> None:
        self._backends = runtime.backends
        self._at_once = at_once
        self._away: list[StoreUnavailable] = []

    def wanted(self, wanted: _Wanted) -> Iterator[DeadLetter]:
        """Yield those that are meant, the newest first: each once, even if two of the backends are one database."""
        seen: set[str] = set()
        first_at = wanted.first_at()
        newest_first = merge(*map(self._pages, self._backends), key=lambda each: -each.at)
        for dead_letter in takewhile(lambda each: each.at >= first_at, newest_first):
            if wanted.takes(dead_letter) and dead_letter.id not in seen:
                seen.add(dead_letter.id)
                yield dead_letter

    def print_table(self, header: tables.Row, rows: Sequence[tables.Row]) -> None:
        """Print rows below a header; say that there are none only if all backends were read."""
        if rows or not self._away:
            tables.print_table(header, rows, _NONE)

    def say_none(self, *, as_json: bool) -> None:
        """Say that there are none, if all backends were read; a program is told nothing."""
        if not self._away and not as_json:
            click.echo(_NONE)

    def report(self) -> None:
        """Say which backends could not be read, and exit with status 1 if there are any."""
        for error in self._away:
            click.echo(f"Error: {tables.sentence(str(error))}", err=True)
        if self._away:
            raise click.exceptions.Exit(1)

    def _pages(self, backend: Backend) -> Iterator[DeadLetter]:
        try:
            page = backend.dead.list(self._at_once)
            while page:
                yield from page
                page = backend.dead.list(self._at_once, page[-1].id)
        except StoreUnavailable as exc:
            self._away.append(exc)


def _act(
    context: click.Context,
    act: Callable[[DeadLetters, str], Treated],
    *,
    ids: Sequence[str],
    everything: bool,
    reason: str,
    actor: str | None,
    as_json: bool,
    yes: bool = True,
    **wanted: Any,
) -> None:
    """Act on the dead letters that are named, or meant."""
    which = _Wanted(**wanted)
    if [bool(ids), everything, any(each is not None for each in which)].count(True) != 1:
        raise click.UsageError("name the ids of dead letters, or give --all, or say which: --task, --saga, --error, --since")
    with opened(context) as runtime:
        kept, dead_letters = _Kept(runtime, _PAGE), operator_for(runtime, actor, reason).dead_letters(reason)
        # in the order in which they failed: an answer before its failure
        chosen = ids or [dead_letter.id for dead_letter in kept.wanted(which)][::-1]
        if not chosen:
            kept.say_none(as_json=as_json)
            which.say_unknown(runtime.app)
        elif not ids and not yes:
            click.confirm(f"Remove {len(chosen):,} dead letters for good?", abort=True, err=True)
        _each(kept, chosen, str(context.info_name), functools.partial(act, dead_letters), as_json=as_json)


def _each(kept: _Kept, ids: Sequence[str], name: str, act: Callable[[str], Treated], *, as_json: bool) -> None:
    """Act on each dead letter, whatever the outcome of the others; exit with status 1 if one of them fails."""
    failed = 0
    for id in ids:
        try:
            treated, is_done = act(id), True
        except SagaError as exc:
            failed += 1
            treated, is_done = Treated(id, str(exc)), False
            click.echo(f"Error: {tables.sentence(str(exc))}", err=True)
        if as_json:
            tables.print_json([{"act": name, "done": is_done, **treated._asdict()}])
        elif is_done:
            click.echo(tables.line(f"{id}: {treated.text}."))
    kept.report()
    if failed:
        raise click.exceptions.Exit(1)


def _row(dead_letter: DeadLetter) -> tables.Row:
    return (dead_letter.id, tables.time(dead_letter.at), dead_letter.task, dead_letter.key, dead_letter.error)


def _group_row(group: Group) -> tables.Row:
    return group.task, group.error, f"{group.dead_letters:,}", tables.time(group.newest), tables.time(group.oldest)


def _description(dead_letter: DeadLetter, hidden: Sequence[str] | None) -> list[str]:
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
        _pretty(dead_letter, hidden),
        "",
        "Traceback:",
        traceback or "none",
    ]


def _pretty(dead_letter: DeadLetter, hidden: Sequence[str] | None) -> str:
    """Return JSON text with indentation; text that is not JSON, or nested too deeply, in one line, or hidden as a whole."""
    try:
        value: Any = json.loads(dead_letter.payload)
        shown = value if hidden is None else redacted_payload(dead_letter, value, hidden)
    except (ValueError, RecursionError):
        return tables.line(dead_letter.payload if hidden is None else MARK)
    return tables.block(json.dumps(shown, indent=2, ensure_ascii=False))
