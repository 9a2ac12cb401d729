"""``celery sagas migrate``: what is stored, in the layout of this release."""

import time
from typing import Final

import click

from celery_sagas.cli import tables
from celery_sagas.cli.app import opened
from celery_sagas.errors import SagaError
from celery_sagas.stores.ports import Backend
from celery_sagas.worker.runtime import Runtime

#: Instances to look at in one call.
_BATCH: Final = 200
#: Seconds between two lines that show operators that it works.
_REPORT_S: Final = 1.0


@click.command()
@click.option("--sql", "as_sql", is_flag=True, help="Print the statements instead of running them; nothing is connected.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object in each line: what was done to each backend.")
@click.pass_context
def migrate(context: click.Context, as_sql: bool, as_json: bool) -> None:
    """Bring what is stored from the layout of the release before this one to that of this one, while workers go on.

    Run it with this release before its first worker starts, and again when the last worker of the release before has stopped.
    After an interruption, run it again. If one backend fails, the others are migrated all the same, and the exit status is 1.
    """
    if as_sql and as_json:
        raise click.UsageError("--sql prints statements, and no JSON")
    with opened(context) as runtime:
        if as_sql:
            click.echo("\n".join(filter(None, (backend.migration() for backend in runtime.backends))) or "Nothing is run.")
            return
        failed = list(filter(None, [_migrate(runtime, backend, as_json=as_json) for backend in runtime.backends]))
    for error in failed:
        click.echo(f"Error: {tables.sentence(str(error))}", err=True)
    if failed:
        raise click.exceptions.Exit(1)


def _migrate(runtime: Runtime, backend: Backend, *, as_json: bool) -> SagaError | None:
    """Migrate one backend, and say what was done; return the error if that fails."""
    done, error = list[str](), None
    try:
        for sentence in backend.migrate():
            done.append(sentence)
            if not as_json:
                click.echo(tables.line(sentence))
        _index(runtime, backend, as_json=as_json)
    except SagaError as exc:
        error = exc
    if as_json:
        tables.print_json([{"backend": backend.url, "done": done, "error": str(error) if error else None}])
    elif error is None:
        click.echo(tables.line(f"{backend.url} has the layout of this release."))
    return error


def _index(runtime: Runtime, backend: Backend, *, as_json: bool) -> None:
    """Have each saga of a backend listed completely."""
    if not backend.has_instances:
        return
    for saga in runtime.backends.sagas_in(backend):
        for name in saga.names:
            _index_name(backend, name, as_json=as_json)


def _index_name(backend: Backend, name: str, *, as_json: bool) -> None:
    calls, next_report = 1, time.monotonic() + _REPORT_S
    after = backend.instances.index(name, _BATCH)
    while after:
        if time.monotonic() >= next_report:
            next_report = time.monotonic() + _REPORT_S
            click.echo(f"{name}: about {calls * _BATCH:,} instances were looked at.", err=as_json)
        after, calls = backend.instances.index(name, _BATCH, after), calls + 1
