"""Rows of a statement on PostgreSQL that is the same for any number of them."""

from typing import Any

from sqlalchemy import ColumnElement, bindparam, func
from sqlalchemy import column as named
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql.selectable import TableValuedAlias


def rows_of(name: str, *columns: ColumnElement[Any]) -> TableValuedAlias:
    """Return a table made of arrays: one parameter for each column, named for both."""
    arrays = [bindparam(f"{name}_{column.key}", type_=ARRAY(column.type)) for column in columns]
    return func.unnest(*arrays).table_valued(*(named(str(column.key), column.type) for column in columns)).render_derived(name)
