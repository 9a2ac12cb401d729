"""``celery sagas migrate``: what is stored, in the layout of this release."""

import time
from typing import Final

import click

from celery_sagas.cli import tables
from celery_sagas.cli.app import opened
from celery_sagas.stores.ports import Backend
from celery_sagas.worker.runtime import Runtime

#: Instances to look at in one call.
_BATCH: Final = 200
#: Seconds between two lines that show operators that it works.
_REPORT_S: Final = 1.0


@click.command()
@click.option("--sql", "as_sql", is_flag=True, help="Print the statements instead of running them; nothing is connected.")
@click.pass_context
def migrate(context: click.Context, as_sql: bool) -> None:
    """Bring what is stored from the layout of the release before this one to that of this one, while workers go on.

    Run it with this release before its first worker starts, and again when the last worker of the release before has stopped.
    After an interruption, run it again.
    """
    with opened(context) as runtime:
        if as_sql:
            click.echo("\n".join(filter(None, (backend.migration() for backend in runtime.backends))) or "Nothing is run.")
            return
        for backend in runtime.backends:
            for sentence in backend.migrate():
                click.echo(tables.line(sentence))
            _index(runtime, backend)
            click.echo(tables.line(f"{backend.url} has the layout of this release."))


def _index(runtime: Runtime, backend: Backend) -> None:
    """Have each saga of a backend listed completely."""
    if not backend.has_instances:
        return
    for saga in runtime.backends.sagas_in(backend):
        for name in saga.names:
            _index_name(backend, name)


def _index_name(backend: Backend, name: str) -> None:
    calls, next_report = 1, time.monotonic() + _REPORT_S
    after = backend.instances.index(name, _BATCH)
    while after:
        if time.monotonic() >= next_report:
            next_report = time.monotonic() + _REPORT_S
            click.echo(f"{name}: about {calls * _BATCH:,} instances were looked at.")
        after, calls = backend.instances.index(name, _BATCH, after), calls + 1
