"""``celery sagas relay``: the relay alone, in the foreground."""

import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from celery import Celery
from celery.bin.base import LOG_LEVEL

from celery_sagas.cli import tables
from celery_sagas.cli.app import app_of
from celery_sagas.engine.sweeps import Tally
from celery_sagas.errors import ConfigurationError, DefinitionError, StoreError
from celery_sagas.worker.process.bootsteps import prepare
from celery_sagas.worker.process.relay import RelayThreads
from celery_sagas.worker.runtime import close_runtime

logger = logging.getLogger("celery_sagas")

#: It is one process among others: a backend for a single process is refused.
_PROCESSES = 2
#: Seconds that it may take to end: the store and the broker have deadlines of their own.
_STOP_S = 30.0
#: Seconds between two checks for a signal.
_POLL_S = 0.1
#: Seconds between two lines of the log that show operators that it works.
_REPORT_S = 60.0


@click.command()
@click.option("-l", "--loglevel", default="INFO", show_default=True, type=LOG_LEVEL, help="Logging level.")
@click.option("-f", "--logfile", help="Log to this file, instead of the terminal.")
@click.pass_context
def relay(context: click.Context, loglevel: Any, logfile: str | None) -> None:
    """Send due messages (timeouts, and those that workers left behind) until SIGTERM or SIGINT.

    Workers do this themselves unless saga_relay is off. Any number of relays share the work.
    """
    app = app_of(context)
    app.log.setup(loglevel, logfile)
    with _told_to_end() as is_told:
        try:
            _prepare(app)
        except (ConfigurationError, DefinitionError, StoreError) as exc:
            raise click.ClickException(tables.sentence(str(exc))) from exc
        has_ended = _run(RelayThreads(app), is_told)
    if not has_ended:
        raise click.ClickException("the relay did not end in time: what it is publishing may be published again")
    close_runtime(app)
    if not is_told():
        raise click.ClickException("the relay has ended by itself: the log says why")
    click.echo("The relay has ended.")


def _prepare(app: Celery) -> None:
    """Prepare the app as a worker does before it consumes."""
    if app.conf.task_always_eager:
        raise ConfigurationError("there is nothing to relay while task_always_eager is set", "Turn it off")
    app.loader.import_default_modules()
    app.finalize()
    prepare(app, _PROCESSES)


def _run(thread: RelayThreads, is_told: Callable[[], bool]) -> bool:
    """Run until a signal comes; return whether the relay has ended in time."""
    thread.start()
    click.echo("The relay runs.")
    next_report = time.monotonic() + _REPORT_S
    while thread.is_running and not is_told():
        time.sleep(_POLL_S)
        if time.monotonic() >= next_report:
            next_report = time.monotonic() + _REPORT_S
            for url, tally in thread.tallies:
                _report(url, tally)
    click.echo("The relay ends.")
    return thread.stop(_STOP_S)


def _report(url: str, tally: Tally) -> None:
    if tally.last is None:
        logger.warning("the relay has not ended its first sweep of %s yet", url)
        return
    logger.info(
        "the relay has swept %s %d times, last %.0f s ago: %d messages were sent, %d attempts failed, %d became dead letters",
        url,
        tally.sweeps,
        max(time.time() - tally.last.ended_at, 0.0),
        tally.sent,
        tally.failed,
        tally.dead_lettered,
    )


@contextmanager
def _told_to_end() -> Iterator[Callable[[], bool]]:
    """Note SIGTERM and SIGINT, and yield a function that returns whether one came.

    They raise nothing: an exception during the wait for a thread makes Python consider the thread ended.
    """
    told: list[int] = []
    before = {each: signal.signal(each, lambda number, frame: told.append(number)) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: bool(told)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
