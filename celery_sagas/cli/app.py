"""The app that ``celery -A`` names."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches

import click
from celery import Celery

from celery_sagas.cli import tables
from celery_sagas.core.registry import registry
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.errors import ConfigurationError, SagaError
from celery_sagas.worker.runtime import Runtime, close_runtime, refuse_stand_in, runtime_of


def app_of(context: click.Context) -> Celery:
    """Return the app of a command below ``celery``.

    Raises:
        UsageError: No app is named.
    """
    app: Celery = context.obj.app
    try:
        refuse_stand_in(app)
    except ConfigurationError as exc:
        raise click.UsageError("name the app: celery -A proj sagas …") from exc
    return app


@contextmanager
def defined(context: click.Context) -> Iterator[Celery]:
    """Import what a command's app defines; report errors in one sentence."""
    app = app_of(context)
    try:
        app.loader.import_default_modules()
        app.finalize()
        yield app
    except SagaError as exc:
        raise click.ClickException(tables.sentence(str(exc))) from exc


@contextmanager
def opened(context: click.Context) -> Iterator[Runtime]:
    """Open what the sagas and aggregators of a command's app use; report errors in one sentence."""
    app = app_of(context)
    try:
        with defined(context):
            yield runtime_of(app)
    finally:
        close_runtime(app)


def saga_named(name: str) -> SagaDefinition:
    """Return the saga that an operator names: by its stored name, or by that of its class.

    Raises:
        ClickException: There is none.
    """
    named = registry.saga_named(name) or next((saga for saga in registry.sagas.values() if saga.cls.__name__ == name), None)
    if named is None:
        known = f"unknown saga {tables.line(name)}; known: {', '.join(registry.sagas) or 'none'}"
        raise click.ClickException(f"{known}{_nearest(name)}")
    return named


def unknown_saga(name: str) -> str:
    """Return a sentence that no saga has a stored name, with the most similar one; empty if one has it."""
    return "" if registry.saga_named(name) else f"This app has no saga {tables.line(name)}{_nearest(name) or '.'}"


def unknown_task(app: Celery, name: str) -> str:
    """Return a sentence that there is no such task, and no such aggregator, with the most similar name; empty if there is."""
    if name in app.tasks or name in registry.aggregators or registry.step_named(name):
        return ""
    return f"This app has no task {tables.line(name)}{_asked(name, {each: each for each in app.tasks}) or '.'}"


def _nearest(name: str) -> str:
    """Return a question for the name that is most like another; empty if none is."""
    return _asked(name, {each: saga.name for saga in registry.sagas.values() for each in (*saga.names, saga.cls.__name__)})


def _asked(name: str, names: Mapping[str, str]) -> str:
    return "".join(f". Did you mean {names[each]}?" for each in get_close_matches(name, names, n=1))
