"""``celery sagas each``: one act on many instances."""

import json
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol, TextIO

import click

from celery_sagas.cli import tables
from celery_sagas.cli.acts import ACTOR, REASON, facts_of, operator_for
from celery_sagas.cli.app import opened, saga_named
from celery_sagas.cli.scanning import Scan, choices, selection_of
from celery_sagas.core.ids import time_ordered_id
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.operate.choosing import Selection
from celery_sagas.operate.each import VERBS, WITH_NAME, Each, told
from celery_sagas.operate.operator import Operator
from celery_sagas.stores.instances import Glance

#: How many instances one command acts on at most, unless it reindexes: all of a saga may need that.
_MOST: Final = 100_000
#: Seconds between two lines about the progress.
_PROGRESS_S: Final = 2.0
_UNLIMITED: Final = ("reindex",)


@click.command("each")
@click.argument("verb", type=click.Choice(list(VERBS)), metavar="VERB")
@click.argument("name", metavar="SAGA")
@click.argument("what", required=False, metavar="[NAME]")
@choices
@click.option("--from", "given", type=click.File("r", encoding="utf-8"), help="Those in a file that --failed-to has written.")
@REASON
@ACTOR
@click.option("--expect", type=click.IntRange(min=0), help="Do not ask, and act only if there are so many.")
@click.option("--per-second", type=click.FloatRange(min=0, min_open=True), help="How many at most, in a second.")
@click.option("--failed-to", type=click.File("w", encoding="utf-8"), help="Write those for which it failed into this file.")
@click.option("--batch", metavar="ID", help="Go on with an earlier run: leave those alone on which it has acted.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and write nothing.")
@tables.LOCAL
@click.option("--json", "as_json", is_flag=True, help="One JSON object in each line.")
@click.pass_context
def act_on_each(
    context: click.Context,
    /,
    verb: str,
    name: str,
    what: str | None,
    reason: str,
    actor: str | None,
    expect: int | None,
    per_second: float | None,
    failed_to: TextIO | None,
    batch: str | None,
    dry_run: bool,
    as_json: bool,
    given: TextIO | None,
    scanned: int,
    **chosen: Any,
) -> None:
    """Act on each of the chosen instances of a saga: pause, resume, terminate, fire, skip or reindex.

    Without --by, --paused, --idle, --late, --where and --from it acts on all. NAME is that of the timeout, for fire and skip.
    reindex has instances be found by the fields that the saga names today in also_by and search_by. It counts first, and asks.
    Ctrl-C ends it after the one at hand; run it again with the --batch that it names to go on. The exit status is 1 if it failed
    for one, or one cannot be read for --where.
    """
    if (what is not None) != (verb in WITH_NAME):
        raise click.UsageError(f"{verb} takes {'the NAME of a timeout' if verb in WITH_NAME else 'no NAME'}")
    selection = selection_of(**chosen)
    _check_files(selection, given, failed_to)
    with opened(context) as runtime:
        saga = saga_named(name)
        operator = _in_batch(operator_for(runtime, actor, reason, dry_run=dry_run), batch)
        scan = Scan(runtime, saga, selection, scanned)
        ids = _ids(verb, scan.find(), given, saga)
        scan.tell()
        _agree(verb, saga, len(ids), expect, dry_run)
        each = Each(operator, saga, verb, reason, what or "", is_first=not batch)
        run = _Run(each, failed_to, as_json=as_json)
        is_whole = run.act_on(ids, per_second)
    if not is_whole:
        raise click.exceptions.Exit(1)
    scan.end()


def _check_files(selection: Selection, given: TextIO | None, failed_to: TextIO | None) -> None:
    if given is not None and selection != Selection():
        raise click.UsageError("--from names the instances: no other option chooses")
    if given is not None and failed_to is not None and _is_same(given.name, failed_to.name):
        raise click.UsageError("--failed-to would overwrite the file of --from")


def _in_batch(operator: Operator, batch: str | None) -> Operator:
    try:
        return replace(operator, batch=batch or time_ordered_id())
    except ValueError as exc:
        raise click.BadParameter(tables.line(str(exc)), param_hint="--batch") from exc


def _ids(verb: str, chosen: Iterator[Glance], given: TextIO | None, saga: SagaDefinition) -> list[str]:
    """Return the ids of the instances that are meant: of the chosen ones, or those in a file, each once."""
    found = (glance.id for glance in chosen) if given is None else _read(given, saga)
    return list(dict.fromkeys(found if verb in _UNLIMITED else _few(found)))


def _is_same(name: str, other: str) -> bool:
    return name == other or (Path(name).exists() and Path(other).exists() and Path(name).samefile(other))


def _few(ids: Iterator[str]) -> Iterator[str]:
    """Yield ids, and refuse too many."""
    yield from islice(ids, _MOST)
    if next(ids, None) is not None:
        raise click.ClickException(f"there are more than {_MOST:,} such instances: choose fewer")


def _read(file: TextIO, saga: SagaDefinition) -> Iterator[str]:
    for number, text in enumerate(file, start=1):
        try:
            known = json.loads(text)
            name, id = known["saga"], known["id"]
        except (ValueError, KeyError, TypeError, RecursionError) as exc:
            raise click.ClickException(f"line {number} is none that --failed-to has written") from exc
        if name not in saga.names or not isinstance(id, str):
            raise click.ClickException(f"line {number} is about {tables.line(str(name))}, and not about {saga.name}")
        yield id


def _agree(verb: str, saga: SagaDefinition, count: int, expect: int | None, dry_run: bool) -> None:
    """Ask whether so many are meant, unless it is known."""
    if expect is not None and expect != count:
        raise click.ClickException(f"there are {count:,} such instances, and {expect:,} were expected: nothing was done")
    if expect is None and count and not dry_run:
        click.confirm(f"{verb} {count:,} instance{'s' if count != 1 else ''} of {saga.name}?", abort=True, err=True)


class _Run:
    """One act on many instances, whatever comes of each."""

    def __init__(self, each: Each, failed_to: TextIO | None, *, as_json: bool) -> None:
        self._each = each
        self._failed_to = failed_to
        self._as_json = as_json
        self._counts = Counter[str]()
        self.is_stopped = False

    def act_on(self, ids: list[str], per_second: float | None) -> bool:
        """Act on each, until it is stopped, and say what has come of it; return whether there is nothing left."""
        if self._failed_to is not None:
            self._failed_to.write("")  # click opens it now: what an earlier run has written is gone
        try:
            with interruptible(self):
                self._act_on_each(ids, per_second)
        finally:
            is_whole = self._report(len(ids))
        return is_whole

    def _act_on_each(self, ids: list[str], per_second: float | None) -> None:
        began = told_at = time.monotonic()
        for number, id in enumerate(ids):
            if per_second is not None:
                self._wait_until(began + number / per_second)
            if self.is_stopped:
                return
            self._one(id)
            if time.monotonic() - told_at > _PROGRESS_S:
                told_at = time.monotonic()
                click.echo(f"{number + 1:,} of {len(ids):,}", err=True)

    def _wait_until(self, at: float) -> None:
        while not self.is_stopped and (left := at - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))  # Ctrl-C does not end it

    def _report(self, count: int) -> bool:
        """Say what has come of it, and how to go on; return whether there is nothing left."""
        counted, operator = self._counts.total(), self._each.operator
        click.echo(told(self._counts, dry_run=operator.dry_run), err=True)
        if counted < count:
            click.echo(f"Stopped after {counted:,} of {count:,}.", err=True)
        is_whole = counted == count and not self._counts["failed"]
        if not (is_whole or operator.dry_run):
            click.echo(f"Run it again with --batch {tables.line(operator.batch)} to go on.", err=True)
        return is_whole

    def _one(self, id: str) -> None:
        acted = self._each.act(id)
        self._counts[acted.outcome] += 1
        if acted.error is not None:
            click.echo(f"Error: {tables.line(str(acted.error))}", err=True)
            if self._failed_to is not None:
                self._failed_to.write(json.dumps({"saga": self._each.saga.name, "id": id, "error": str(acted.error)}) + "\n")
                self._failed_to.flush()
        if acted.done is not None and self._as_json:
            tables.print_json([facts_of(acted.done)])
        elif acted.done is not None:
            is_idle = acted.outcome == "idle"
            click.echo(tables.line(f"{acted.done.saga} {acted.done.key or acted.done.id}{':' * is_idle} {acted.done.text}"))


class Stoppable(Protocol):
    """A run that ends after the instance at hand, once it is stopped."""

    is_stopped: bool


@contextmanager
def interruptible(run: Stoppable) -> Iterator[None]:
    """Have Ctrl-C stop a run after the instance at hand, and a second one at once."""

    def stop(number: int, frame: object) -> None:
        run.is_stopped = True
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
