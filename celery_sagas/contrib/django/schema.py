"""The saga tables in a database of Django's."""

from typing import Any

from celery_sagas.contrib.django.addresses import locate
from celery_sagas.settings import read_settings
from celery_sagas.stores.sql.connection.names import OURS, Names, read_names
from celery_sagas.stores.sql.connection.options import DEFAULTS
from celery_sagas.stores.sql.schema import statements_for
from celery_sagas.stores.sql.tables import metadata
from celery_sagas.worker.celery_internals import current_app


def create_tables(apps: Any, schema_editor: Any) -> None:
    """Create the tables that are missing in the database that is being migrated."""
    connection = schema_editor.connection
    existing = () if schema_editor.collect_sql else connection.introspection.table_names()
    for statement in statements_for(locate(connection.alias), names_in(connection), existing):
        schema_editor.execute(statement, params=None)


def drop_tables(apps: Any, schema_editor: Any) -> None:
    """Drop the tables."""
    for name in quoted_tables(schema_editor.connection):
        schema_editor.execute(f"DROP TABLE {name}", params=None)


def quoted_tables(connection: Any) -> list[str]:
    """Return the names of the tables, quoted, with their schema: first those that refer to others."""
    names, quote = names_in(connection), connection.ops.quote_name
    tables = map(names.table, reversed(metadata.sorted_tables))
    return [".".join(map(quote, filter(None, (table.schema, table.name)))) for table in tables]


def names_in(connection: Any) -> Names:
    """Return the names of the tables in a database: those of ``saga_backend_options``, if ``saga_backend`` is that database."""
    settings = read_settings(current_app().conf)
    if settings.backend != f"django://{connection.alias}":
        return OURS
    return read_names({**DEFAULTS, **settings.backend_options}, connection.vendor)
