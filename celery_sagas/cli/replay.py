"""``celery sagas replay``: today's code handles what instances have handled, and says for how many it makes a difference."""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import click

from celery_sagas.cli import tables
from celery_sagas.cli.addresses import key_text
from celery_sagas.cli.ages import milliseconds
from celery_sagas.cli.app import opened, saga_named
from celery_sagas.core.history import History
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.engine.history import history_of
from celery_sagas.engine.replay import Replayed
from celery_sagas.errors import HistoryError
from celery_sagas.stores.journal import Journal
from celery_sagas.worker.replaying import replaying

#: The most instances of which a difference, or a reason, is shown.
_SHOWN = 10


@click.command()
@click.argument("name", metavar="SAGA")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("--since", callback=milliseconds, help="All instances that began within this time, such as 1d, 12h, 30m or 2w.")
@click.option(
    "--limit", type=click.IntRange(1, 1_000_000), default=1_000, show_default=True, help="How many of these, at most: the newest."
)
@tables.LOCAL
@click.option("--json", "as_json", is_flag=True, help="One JSON object in each line: what came of each instance.")
@click.pass_context
def replay(context: click.Context, name: str, keys: tuple[str, ...], since: int | None, limit: int, as_json: bool) -> None:
    """Handle again what instances have handled, with the code of this app, and show the first difference of each.

    Nothing is written, published or looked up; but what a handler does by itself, such as a request over HTTP, it does again.
    Each KEY is one word; that of several parts is their JSON array. With - as the only key, keys are read from stdin, one in each
    line. The exit status is 1 if any differs, or none was replayed.
    """
    if bool(keys) == (since is not None):
        raise click.UsageError("name keys, or give --since")
    tally = _Tally(as_json)
    with opened(context) as runtime:
        saga = saga_named(name)
        journal = runtime.backends.of(saga).journal
        with replaying(runtime.app) as run:
            for key in _given(saga, keys) if since is None else journal.began(saga.names, since, limit):
                tally.add(saga.name, key, partial(_replay, run, journal, saga, key))
    if not as_json:
        click.echo(tables.block("\n".join(tally.lines())))
    if tally.different or not tally.replayed:
        raise click.exceptions.Exit(1)


def _given(saga: SagaDefinition, keys: tuple[str, ...]) -> Iterable[str]:
    texts = keys if keys != ("-",) else (line.rstrip("\r\n") for line in sys.stdin if line.strip())
    return dict.fromkeys(key_text(saga, [text]) for text in texts)


@dataclass
class _Tally:
    """What came of many replays."""

    as_json: bool  #: whether each is printed at once
    replayed: int = 0
    different: int = 0
    failed: int = 0  #: those that cannot be replayed
    shown: list[str] = field(default_factory=list)  #: the first of those that differ
    reasons: list[str] = field(default_factory=list)  #: the first of those that cannot be replayed

    def add(self, saga: str, key: str, replay: Callable[[], Replayed]) -> None:
        """Add one."""
        about: dict[str, Any] = {"saga": saga, "key": key, "id": "", "messages": 0, "difference": None, "problem": None}
        try:
            replayed = replay()
        except HistoryError as exc:
            self._fail(str(exc))
            about |= {"problem": str(exc)}
        else:
            self._add(replayed)
            about |= {"id": replayed.history.instance, "messages": replayed.count, "problem": replayed.stopped or None}
            about |= {"difference": str(replayed.difference) if replayed.difference else None}
        if self.as_json:
            tables.print_json([about])

    def _add(self, replayed: Replayed) -> None:
        if replayed.stopped:
            self._fail(str(replayed))
            return
        self.replayed += 1
        if replayed.difference:
            self.different += 1
            self.shown += [replayed.text(tables.time)] if self.different <= _SHOWN else []

    def _fail(self, reason: str) -> None:
        self.failed += 1
        self.reasons += [reason] if self.failed <= _SHOWN else []

    def lines(self) -> Iterator[str]:
        """Yield what is shown."""
        yield from self.shown
        yield from _rest(self.different, "differ")
        yield from self.reasons
        yield from _rest(self.failed, "cannot be replayed")
        yield f"{_instances(self.replayed)} replayed, {self.different:,} of them with a difference."
        if self.failed:
            yield f"{self.failed:,} could not be replayed."


def _replay(run: Callable[[History], Replayed], journal: Journal, saga: SagaDefinition, key: str) -> Replayed:
    return run(history_of(journal, saga, key))


def _rest(count: int, what: str) -> Iterator[str]:
    if count > _SHOWN:
        yield f"and {count - _SHOWN:,} more {what}"


def _instances(count: int) -> str:
    return "1 instance was" if count == 1 else f"{count:,} instances were"
