"""The names of the tables in a database: the schema that they are in, and what they begin with."""

import re
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from sqlalchemy import Dialect, MetaData, Table

from celery_sagas.errors import ConfigurationError
from celery_sagas.stores.sql.tables import metadata

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: By option, so that PostgreSQL's 63 characters (MySQL's 64) are enough for every name, those that it makes itself included.
_MOST_CHARACTERS: Final = {"schema": 63, "table_prefix": 40}


@dataclass(frozen=True)
class Names:
    """What the tables of a database are called; those of ``tables`` have the names without schema and prefix.

    Args:
        schema: A schema of PostgreSQL's, or a database of MySQL's; empty: the one that a connection has.
        prefix: Begins the name of every table, index and constraint.
    """

    schema: str = ""
    prefix: str = ""

    @property
    def shown(self) -> str:
        """The tables, as a text calls them."""
        place = f"{self.schema}." if self.schema else ""
        return f"saga tables {place}{self.prefix}saga_*" if self.schema or self.prefix else "saga tables"

    def of(self, name: str) -> str:
        """Return the name of a table, an index or a constraint."""
        return f"{self.prefix}{name}"

    def table(self, table: Table) -> Table:
        """Return a table under its name and in its schema: for statements over a connection of any engine, and for DDL."""
        return self._tables[table.name]

    @cached_property
    def _tables(self) -> Mapping[str, Table]:
        if self == OURS:
            return metadata.tables
        copies = MetaData()
        return {name: self._copied(table, copies) for name, table in metadata.tables.items()}

    def _copied(self, table: Table, copies: MetaData) -> Table:
        schema: Any = self.schema or None
        copied = table.to_metadata(copies, schema=schema, name=self.of(table.name))
        parts: list[Any] = [*copied.indexes, *copied.constraints]
        for part in parts:
            if part.name:  # the database names the others, after the table
                part.name = self.of(part.name)
        return copied

    def used_by(self, dialect: Dialect) -> Dialect:
        """Return a dialect that compiles statements with the tables of ``tables`` to a text with these names."""
        if self == OURS:
            return dialect
        named: Any = copy(dialect)
        plain, preparer = named.identifier_preparer, copy(named.identifier_preparer)
        ours = {name: self.of(name) for name in metadata.tables}
        preparer.quote = lambda name, *force: plain.quote(ours.get(name, name), *force)
        preparer.quote_schema = plain.quote_schema
        preparer.schema_for_object = lambda each: self.schema or None if isinstance(each, Table) else each.schema
        named.identifier_preparer = preparer
        return named  # type: ignore[no-any-return]


#: Those without options.
OURS: Final = Names()


def read_names(options: Mapping[str, Any], database: str) -> Names:
    """Return the names that ``saga_backend_options`` ask for, in a kind of database.

    Raises:
        ConfigurationError: One is no name, is too long, or is one that this kind of database does not have.
    """
    for option, most in _MOST_CHARACTERS.items():
        if options[option] and not (_NAME.fullmatch(options[option]) and len(options[option]) <= most):
            raise ConfigurationError(
                f"the option {option} is {options[option]!r}",
                f"Write letters from A to Z or a to z, digits and underscores, no digit first, at most {most} characters",
            )
    if options["schema"] and database == "sqlite":
        raise ConfigurationError(
            f"the option schema is {options['schema']!r}, and SQLite has no schemas",
            "Leave it out; with table_prefix the tables have names of their own in a file",
        )
    return Names(options["schema"], options["table_prefix"])
