"""The tables as the release before made them."""

import re
from pathlib import Path

from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.stores.sql.connection.names import Names

_PARTS = re.compile(r"(CREATE TABLE |ON |INTO |CREATE INDEX |CONSTRAINT )(saga_\w+)")


def create(sql: SqlBackend) -> None:
    """Create them under the names that a backend looks for."""
    with sql.database.connect() as connection:
        for statement in statements(sql.database.name, sql.database.names):
            connection.exec_driver_sql(statement)


def statements(database: str, names: Names) -> list[str]:
    """Return the statements for a kind of database."""
    quote = "`" if database == "mysql" else '"'
    schema = f"{quote}{names.schema}{quote}." if names.schema else ""

    def named(match: re.Match[str]) -> str:
        is_table = match[1] in ("CREATE TABLE ", "ON ", "INTO ")
        return f"{match[1]}{schema if is_table else ''}{quote}{names.of(match[2])}{quote}"

    text = _PARTS.sub(named, Path(__file__).with_name(f"layout_5_{database}.sql").read_text())
    made = [f"CREATE SCHEMA {schema.rstrip('.')}"] if schema else []
    return [*made, *(statement for statement in text.split(";\n") if statement.strip())]
