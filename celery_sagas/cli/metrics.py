"""``celery sagas metrics``: the gauges of what is stored, for Prometheus."""

import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from celery_sagas.cli import tables
from celery_sagas.cli.app import opened
from celery_sagas.connections import place_of
from celery_sagas.telemetry.serving import MetricsServer
from celery_sagas.telemetry.stored import registry_of


@click.command()
@click.option("--listen", metavar="[HOST]:PORT", help='Serve them there until SIGTERM or SIGINT: ":9557".')
@click.option("--textfile", type=click.Path(dir_okay=False, path_type=Path), help="Replace this file by one with them.")
@click.pass_context
def metrics(context: click.Context, listen: str | None, textfile: Path | None) -> None:
    """Print how many instances, messages and dead letters there are, as gauges for Prometheus.

    They are read again when they are older than 15 seconds, counts when they are older than a minute. A backend that is away has
    celery_sagas_up 0, and no other gauge. --textfile is for the node exporter: run it every minute. The counters of a worker are
    served by itself: see saga_metrics.
    """
    if listen is not None and textfile is not None:
        raise click.UsageError("give --listen or --textfile, not both")
    if listen is not None:
        _check(listen)
    with opened(context) as runtime:
        registry, client = registry_of(runtime), import_module("prometheus_client")
        if listen is not None:
            _serve(listen, client.make_wsgi_app(registry))
        elif textfile is not None:
            _write(textfile, client.generate_latest(registry))
        else:
            click.echo(client.generate_latest(registry), nl=False)


def _check(address: str) -> None:
    try:
        place_of(address)
    except ValueError as exc:
        raise click.UsageError(f"--listen {tables.line(address)}: {exc}") from exc


def _serve(address: str, application: Any) -> None:
    server = MetricsServer(address, application)
    try:
        server.open()
    except OSError as exc:
        raise click.ClickException(f"the metrics cannot be served on {tables.line(address)}: {exc.strerror or exc}.") from exc
    with _told_to_end() as wait:
        server.start()
        click.echo(f"Metrics are served on {tables.line(address)}.")
        wait()
        server.stop()


@contextmanager
def _told_to_end() -> Iterator[Callable[[], bool]]:
    """Yield a function that waits for SIGTERM or SIGINT."""
    told = threading.Event()
    before = {each: signal.signal(each, lambda *_: told.set()) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield told.wait
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _write(file: Path, text: bytes) -> None:
    """Replace a file by another one with a text: who reads it sees the whole of one of them."""
    try:
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        try:
            with os.fdopen(handle, "wb") as written:
                written.write(text)
                os.fchmod(handle, 0o644)  # the exporter is another user
                written.flush()
                os.fsync(handle)
            os.replace(name, file)
        except OSError:
            with suppress(OSError):
                os.unlink(name)
            raise
    except OSError as exc:
        raise click.ClickException(f"{tables.line(str(file))} cannot be written: {exc.strerror or exc}.") from exc
