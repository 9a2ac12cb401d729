"""``celery sagas schema``: the statements that create the tables."""

import click

from celery_sagas.cli.app import app_of
from celery_sagas.errors import ConfigurationError
from celery_sagas.settings import read_settings
from celery_sagas.stores.urls import open_backend


@click.command()
@click.option("--backend", help="A backend's URL, instead of the app's saga_backend.")
@click.pass_context
def schema(context: click.Context, backend: str | None) -> None:
    """Print the DDL of the app's backend, without connecting to it."""
    try:
        app = context.obj.app if backend else app_of(context)
        settings = read_settings(app.conf)
        options = {} if backend else settings.backend_options
        statements = open_backend(backend or settings.backend, prefix=settings.prefix, options=options).schema()
    except ConfigurationError as exc:
        raise click.ClickException(str(exc)) from exc
    click.echo(statements or "This backend needs no schema.", nl=False)
