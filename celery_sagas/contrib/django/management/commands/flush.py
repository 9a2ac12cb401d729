"""``manage.py flush``, which empties the saga tables, too; a ``TransactionTestCase`` calls it after each test."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.commands import flush
from django.db import connections

from celery_sagas.contrib.django.schema import names_in
from celery_sagas.stores.sql.tables import database, layout, metadata


class Command(flush.Command):
    """Django's own command; what is in the saga tables is data, too."""

    def handle(self, **options: Any) -> None:
        """Flush the database."""
        with _saga_tables_known(connections[options["database"]]):
            super().handle(**options)


@contextmanager
def _saga_tables_known(connection: Any) -> Iterator[None]:
    """Have Django take the saga tables for those of models; but for those that say what the database is."""
    introspection, names = connection.introspection, names_in(connection)
    of_models = introspection.django_table_names
    ours = {names.of(table.name) for table in metadata.sorted_tables if table not in (layout, database)}

    def of_all(*args: Any, **kwargs: Any) -> list[str]:
        return [*of_models(*args, **kwargs), *ours.intersection(introspection.table_names())]

    introspection.django_table_names = of_all
    try:
        yield
    finally:
        del introspection.django_table_names
