"""``celery sagas schema``: the statements that create the tables."""

import click

from celery_sagas.cli.app import app_of
from celery_sagas.errors import ConfigurationError
from celery_sagas.settings import read_settings
from celery_sagas.stores.urls import open_backend


@click.command()
@click.option("--backend", help="A backend's URL, or its name in saga_backends, instead of the app's saga_backend.")
@click.pass_context
def schema(context: click.Context, backend: str | None) -> None:
    """Print the DDL of the app's backend, without connecting to it."""
    try:
        app = context.obj.app if backend else app_of(context)
        settings = read_settings(app.conf)
        given = settings.backend_named(backend, "--backend")
        statements = open_backend(given.backend, prefix=settings.prefix, options=given.options).schema()
    except ConfigurationError as exc:
        raise click.ClickException(str(exc)) from exc
    click.echo(statements or "This backend needs no schema.", nl=False)
