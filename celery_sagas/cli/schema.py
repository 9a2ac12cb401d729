"""``celery sagas schema``: the statements that create the tables."""

import click

from celery_sagas.cli.app import app_of
from celery_sagas.errors import ConfigurationError
from celery_sagas.settings import read_settings
from celery_sagas.stores.urls import schema_of


@click.command()
@click.option("--backend", help="A backend's URL, instead of the app's saga_backend.")
@click.pass_context
def schema(context: click.Context, backend: str | None) -> None:
    """Print the DDL of the app's backend, without connecting to it."""
    try:
        click.echo(schema_of(backend or read_settings(app_of(context).conf).backend))
    except ConfigurationError as exc:
        raise click.ClickException(str(exc)) from exc
