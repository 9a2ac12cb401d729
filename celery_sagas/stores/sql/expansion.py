"""What the tables of earlier layouts lack: statements that add it beside workers of the releases."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from sqlalchemy import Dialect, Index, Table, select, update
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable

from celery_sagas.stores.layouts import Layout
from celery_sagas.stores.sql.connection.names import Names
from celery_sagas.stores.sql.tables import (
    LAYOUT,
    audit,
    audit_index,
    audit_key_index,
    instance,
    layout,
    outbox,
    seen_index,
    switch,
    tried_index,
)

#: Runs a query, and returns its rows.
Query: TypeAlias = Callable[[str], Sequence[Sequence[Any]]]

#: What each layout since the one that leads to this one has added.
_COLUMNS: Final = (instance.c.touched_in, outbox.c.tried_at)
_TABLES: Final = (audit, switch)
_INDEXES: Final = ((instance, seen_index), (outbox, tried_index), (audit, audit_index), (audit, audit_key_index))
#: Finds a table.
_HAS_TABLE: Mapping[str, str] = {
    "postgresql": "SELECT 1 WHERE to_regclass('{path}\"{table}\"') IS NOT NULL",
    "mysql": (
        "SELECT 1 FROM information_schema.tables WHERE table_schema = COALESCE({schema}, DATABASE()) AND table_name = '{table}'"
    ),
    "sqlite": "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '{table}'",
}
#: Finds a column.
_HAS_COLUMN: Mapping[str, str] = {
    "postgresql": (
        "SELECT 1 FROM pg_attribute "
        "WHERE attrelid = to_regclass('{path}\"{table}\"') AND attname = '{column}' AND NOT attisdropped"
    ),
    "mysql": (
        "SELECT 1 FROM information_schema.columns "
        "WHERE table_schema = COALESCE({schema}, DATABASE()) AND table_name = '{table}' AND column_name = '{column}'"
    ),
    "sqlite": "SELECT 1 FROM pragma_table_xinfo('{table}') WHERE name = '{column}'",
}
#: Finds an index, and whether it is complete: on PostgreSQL one is not whose making was interrupted.
_HAS_INDEX: Mapping[str, str] = {
    "postgresql": "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('{path}\"{index}\"')",
    "mysql": (
        "SELECT DISTINCT 1 FROM information_schema.statistics "
        "WHERE table_schema = COALESCE({schema}, DATABASE()) AND table_name = '{table}' AND index_name = '{index}'"
    ),
    "sqlite": "SELECT 1 FROM sqlite_master WHERE type = 'index' AND name = '{index}'",
}


class Step(NamedTuple):
    """A statement that is run alone, outside of any transaction."""

    text: str
    done: str  #: what it has done, as one sentence
    locks_table: bool = False  #: whether commits wait until it ends


def steps(query: Query, dialect: Dialect, names: Names) -> Iterator[Step]:
    """Yield what is to be run now, one after the other: what comes next depends on what is there then.

    Nothing is run on tables whose layout does not lead to this one.
    """
    table = names.table(layout)
    stored = [Layout(*row) for row in query(str(select(table.c.version, table.c.oldest).compile(dialect=dialect)))]
    is_old = any(each.leads_to(LAYOUT) for each in stored)
    if not is_old and stored != [LAYOUT]:
        return
    yield from column_steps(query, dialect, names)
    yield from _table_steps(query, dialect, names)
    yield from _index_steps(query, dialect, names)
    if is_old:
        yield Step(_note_layout(table, dialect), f"The tables have the layout {LAYOUT.version} now.")


def column_steps(query: Query, dialect: Dialect, names: Names) -> Iterator[Step]:
    """Yield what adds the columns that are missing."""
    for column in _COLUMNS:
        if not query(_filled(_HAS_COLUMN, dialect, names, column.table, column=column.name)):
            table = names.table(column.table)
            done = f"The column {column.name} was added to {table.fullname}."
            yield Step(_add_column(table, column.name, dialect), done, locks_table=True)


def _table_steps(query: Query, dialect: Dialect, names: Names) -> Iterator[Step]:
    """Yield what creates the tables that are missing, without their indexes."""
    for each in _TABLES:
        if not query(_filled(_HAS_TABLE, dialect, names, each)):
            table = names.table(each)
            yield Step(_create_table(table, dialect), f"The table {table.fullname} was created.")


def _index_steps(query: Query, dialect: Dialect, names: Names) -> Iterator[Step]:
    """Yield what makes the indexes that are missing, and anew one whose making was interrupted."""
    for table, index in _INDEXES:
        name, found = _path_of(index, dialect, names), query(_filled(_HAS_INDEX, dialect, names, table, index=index.name))
        if found and not found[0][0]:
            yield Step(f"DROP INDEX CONCURRENTLY {name}", f"The index {name} was dropped: its making had been interrupted.")
        if not (found and found[0][0]):
            yield Step(_create_index(names.table(table), index, dialect, names), f"The index {name} was made.")


def statements(dialect: Dialect, names: Names) -> list[str]:
    """Return all statements, in order."""
    columns = [_add_column(names.table(column.table), column.name, dialect) for column in _COLUMNS]
    tables = [_create_table(names.table(table), dialect) for table in _TABLES]
    indexes = [_create_index(names.table(table), index, dialect, names) for table, index in _INDEXES]
    return [*columns, *tables, *indexes, _note_layout(names.table(layout), dialect)]


def _add_column(table: Table, name: str, dialect: Dialect) -> str:
    column = CreateColumn(table.c[name]).compile(dialect=dialect)
    return f"ALTER TABLE {dialect.identifier_preparer.format_table(table)} ADD COLUMN {column}"


def _create_table(table: Table, dialect: Dialect) -> str:
    return str(CreateTable(table).compile(dialect=dialect)).strip()


def _create_index(table: Table, index: Index, dialect: Dialect, names: Names) -> str:
    (named,) = (each for each in table.indexes if each.name == names.of(str(index.name)))
    text = str(CreateIndex(named).compile(dialect=dialect))
    return text.replace("CREATE INDEX", "CREATE INDEX CONCURRENTLY", 1) if dialect.name == "postgresql" else text


def _note_layout(table: Table, dialect: Dialect) -> str:
    """Raise the number, unless it is raised already, perhaps by a later release."""
    change = update(table).where(table.c.version < LAYOUT.version).values(**LAYOUT._asdict())
    return str(change.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))


def _path_of(index: Index, dialect: Dialect, names: Names) -> str:
    quote, name = dialect.identifier_preparer.quote, names.of(str(index.name))
    return f"{quote(names.schema)}.{quote(name)}" if names.schema and dialect.name == "postgresql" else quote(name)


def _filled(
    texts: Mapping[str, str], dialect: Dialect, names: Names, table: Table, *, column: str = "", index: str | None = None
) -> str:
    """Fill in the names, which have no character that would have to be quoted in a text."""
    return texts[dialect.name].format(
        path=f'"{names.schema}".' if names.schema else "",
        schema=f"'{names.schema}'" if names.schema else "NULL",
        table=names.of(table.name),
        index=names.of(str(index)),
        column=column,
    )
