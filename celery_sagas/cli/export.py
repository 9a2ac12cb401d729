"""``celery sagas export``: the history of an instance, as JSON."""

from typing import TextIO

import click

from celery_sagas.cli import tables
from celery_sagas.cli.addresses import key_text
from celery_sagas.cli.app import opened, saga_named
from celery_sagas.engine.history import history_of


@click.command()
@click.argument("name", metavar="SAGA")
@click.argument("key", nargs=-1, required=True, metavar="KEY...")
@click.option("-o", "--output", type=click.File("w", encoding="utf-8", lazy=True), default="-", help="Write it into this file.")
@click.pass_context
def export(context: click.Context, name: str, key: tuple[str, ...], output: TextIO) -> None:
    """Write the messages that the newest instance with a key has handled, so that they can be replayed.

    The saga says history="messages". The key of several parts has a word for each, or is their JSON array, such as '["eu","42"]'.
    """
    with opened(context) as runtime:
        saga = saga_named(name)
        history = history_of(runtime.backends.of(saga).journal, saga, key_text(saga, key))
        output.write(tables.json_text(history.to_text()))
