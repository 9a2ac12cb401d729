"""``manage.py flush``, which empties the saga tables, too; a ``TransactionTestCase`` calls it after each test."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.commands import flush
from django.db import connections

from celery_sagas.contrib.django.schema import quoted_tables
from celery_sagas.stores.sql.tables import database, layout


class Command(flush.Command):
    """Django's own command; what is in the saga tables is data, too."""

    def handle(self, **options: Any) -> None:
        """Flush the database."""
        with _saga_tables_known(connections[options["database"]]):
            super().handle(**options)


@contextmanager
def _saga_tables_known(connection: Any) -> Iterator[None]:
    """Have Django take the saga tables for those of models; but for those that say what the database is."""
    introspection, ours = connection.introspection, quoted_tables(connection, but=(layout, database))
    of_models = introspection.django_table_names

    def of_all(*args: Any, **kwargs: Any) -> list[str]:
        return [*of_models(*args, **kwargs), *ours]

    introspection.django_table_names = of_all
    try:
        yield
    finally:
        del introspection.django_table_names
