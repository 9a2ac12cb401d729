"""``celery -A proj sagas …``: one file for each command."""

import click

from celery_sagas.cli.describe import describe
from celery_sagas.cli.schema import schema


@click.group()
def sagas() -> None:
    """Inspect and set up celery-sagas."""


sagas.add_command(describe)
sagas.add_command(schema)
