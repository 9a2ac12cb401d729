"""The saga tables in a database of Django's."""

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Final

from django.conf import settings
from django.db import OperationalError, connections
from django.db.transaction import atomic
from sqlalchemy import URL, Table

from celery_sagas.contrib.django.addresses import DRIVERS
from celery_sagas.settings import read_settings
from celery_sagas.stores.sql.connection.names import Names, read_names
from celery_sagas.stores.sql.connection.options import DEFAULTS
from celery_sagas.stores.sql.expansion import Step, steps
from celery_sagas.stores.sql.schema import statements_for
from celery_sagas.stores.sql.tables import layout, metadata
from celery_sagas.worker.celery_internals import current_app

_REMEDY: Final = (
    "run `python manage.py sagas migrate`, which tries again until the table is free, and then `python manage.py migrate` again"
)


def create_tables(apps: Any, schema_editor: Any) -> None:
    """Create the tables that are missing in the database that is being migrated, if it is one that can keep sagas."""
    connection = schema_editor.connection
    if connection.vendor not in DRIVERS:
        return
    dialect = URL.create(DRIVERS[connection.vendor]).get_dialect()()
    for names in names_in(connection):
        for statement in statements_for(dialect, names, existing_tables(connection, names)):
            schema_editor.execute(statement, params=None)


def migrate_tables(apps: Any, schema_editor: Any) -> None:
    """Bring tables that an earlier release has created to the layout of this one, while its workers go on."""
    connection = schema_editor.connection
    if connection.vendor not in DRIVERS:
        return
    dialect = URL.create(DRIVERS[connection.vendor]).get_dialect()()
    for names in names_in(connection):
        if names.of(layout.name) in existing_tables(connection, names):
            for step in steps(partial(_rows, connection), dialect, names):
                _run(schema_editor, step)


def _run(schema_editor: Any, step: Step) -> None:
    """Run a statement; where it locks a table, commits wait behind it, so that it waits for others but a moment.

    Raises:
        OperationalError: Others have kept the table locked.
    """
    connection = schema_editor.connection
    if not (step.locks_table and connection.vendor == "postgresql"):
        schema_editor.execute(step.text, params=None)
        return
    try:
        with atomic(using=connection.alias):
            schema_editor.execute("SET LOCAL lock_timeout = '2s'", params=None)
            schema_editor.execute(step.text, params=None)
    except OperationalError as exc:
        raise OperationalError(f"{exc}; {_REMEDY}") from exc


def _rows(connection: Any, query: str) -> Sequence[Any]:
    with connection.cursor() as cursor:
        cursor.execute(query)
        found: Sequence[Any] = cursor.fetchall()
        return found


def create_unmigrated(sender: Any, using: str, **_: Any) -> None:
    """Create the tables after ``migrate`` where migrations are switched off, as by ``pytest --nomigrations``."""
    modules = settings.MIGRATION_MODULES
    if sender.label in modules and modules[sender.label] is None:
        with connections[using].schema_editor() as editor:
            create_tables(None, editor)


def drop_tables(apps: Any, schema_editor: Any) -> None:
    """Drop the tables."""
    for name in quoted_tables(schema_editor.connection):
        schema_editor.execute(f"DROP TABLE {name}", params=None)


def quoted_tables(connection: Any, *, but: Collection[Table] = ()) -> list[str]:
    """Return the names of the tables that exist, quoted, with their schema: first those that refer to others."""
    quote, wanted = connection.ops.quote_name, [table for table in reversed(metadata.sorted_tables) if table not in but]
    found: list[str] = []
    for names in names_in(connection):
        existing, tables = existing_tables(connection, names), map(names.table, wanted)
        found += [".".join(map(quote, filter(None, (table.schema, table.name)))) for table in tables if table.name in existing]
    return found


def existing_tables(connection: Any, names: Names) -> Collection[str]:
    """Return the names of the tables where those of this library are, or would be."""
    if not names.schema:
        return frozenset(connection.introspection.table_names())
    with connection.cursor() as cursor:
        cursor.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = %s", [names.schema])
        return {name for (name,) in cursor.fetchall()}


def names_in(connection: Any) -> list[Names]:
    """Return the names of the tables in a database: for each backend there those of its options, if the settings have some."""
    ours, url = read_settings(current_app().conf), f"django://{connection.alias}"
    backends = [each for each in ours.all_backends() if each.backend == url] or [ours.backend_named(url)]
    return list(dict.fromkeys(read_names({**DEFAULTS, **each.options}, connection.vendor) for each in backends))
