"""``celery sagas export``: the history of an instance, as JSON."""

from typing import TextIO

import click

from celery_sagas.cli import tables
from celery_sagas.cli.addresses import key_text, unknown
from celery_sagas.cli.app import opened, saga_named
from celery_sagas.engine.history import NO_INSTANCE, history_of
from celery_sagas.engine.instance import lookup_in
from celery_sagas.errors import HistoryError
from celery_sagas.stores.records import KEY


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
        backend, text = runtime.backends.of(saga), key_text(saga, key)
        try:
            history = history_of(backend.journal, saga, text)
        except HistoryError as exc:
            if exc.problem != NO_INSTANCE:
                raise
            said = unknown(backend, saga, lookup_in(saga, KEY, text), tables.sentence(str(exc)))
            raise click.ClickException(said) from exc
        output.write(tables.json_text(history.to_text()))
