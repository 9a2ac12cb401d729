"""Removal of old rows, the oldest first and a bounded number at once."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import BigInteger, BindParameter, Column, Delete, Select, TextClause, bindparam, delete, select, text, tuple_

from celery_sagas.stores.sql.connection.database import StatementRunner
from celery_sagas.stores.sql.connection.statements import LIMIT, PREFIX, now
from celery_sagas.stores.sql.tables import has_time, metadata

_BEFORE: BindParameter[int] = bindparam("before", type_=BigInteger())


def purge(database: StatementRunner, time: Column[int], older_than_ms: int, limit: int) -> int:
    """Remove rows of a table that are older, by the store's clock and this column; return how many."""
    ((time_ms,),) = database.fetch(_time, (), {})
    values = {"before": time_ms - older_than_ms, "limit": limit}
    return database.change(_purge, (time.table.name, time.name, database.name), values)


def _time() -> Select[Any]:
    return select(now())


def _purge(name: str, time: str, database: str) -> Delete:
    """Remove the oldest rows of a table."""
    table = metadata.tables[name]
    columns = [column for column in table.primary_key if column.name != "prefix"]
    rows = delete(table).where(table.c.prefix == PREFIX)
    if database == "mysql":
        return rows.where(_mysql_oldest(time, [column.name for column in columns]))
    old = select(*columns).where(table.c.prefix == PREFIX, table.c[time] < _BEFORE, has_time(table.c[time]))
    # By the time alone: as long as PostgreSQL has no statistics of the table, it would sort all that is old to take some.
    oldest = old.order_by(table.c[time]).limit(LIMIT).with_for_update(skip_locked=True)
    chosen = select(oldest.cte("oldest")) if database == "postgresql" else oldest  # which must not run it twice
    return rows.where(tuple_(*columns).in_(chosen))


def _mysql_oldest(time: str, names: Sequence[str]) -> TextClause:
    """MySQL has no ``LIMIT`` in a subquery on the table that it deletes from, but in ``DELETE`` itself; SQLAlchemy has not.

    The order is that of the index by time, with the prefix: given less of it, or another order, MariaDB sorts and locks all
    that is old.
    """
    order = ", ".join(f"`{name}`" for name in ("prefix", time, *names))
    return text(f"{time} < :before ORDER BY {order} LIMIT :limit").bindparams(_BEFORE, LIMIT)
