"""Moves of instances to another name of their saga."""

from typing import Any

from sqlalchemy import ColumnElement, Select, Update, case, func, literal_column, select, update

from celery_sagas.errors import StoreUnavailable
from celery_sagas.stores.records import Renamed
from celery_sagas.stores.sql.connection.database import SqlSession, StatementRunner
from celery_sagas.stores.sql.connection.errors import Fault
from celery_sagas.stores.sql.connection.statements import LIMIT, PREFIX, Values, any_of, bound, one_of
from celery_sagas.stores.sql.sagas.tags import SAGA_DIGITS, digest_of_saga
from celery_sagas.stores.sql.tables import TAG, instance, key


def count_instances(names: int) -> Select[Any]:
    """Count the instances under each of this many names; a name without any has no row."""
    is_one = [instance.c.prefix == PREFIX, one_of(instance.c.saga, "saga", names)]
    return select(instance.c.saga, func.count()).where(*is_one).group_by(instance.c.saga)


def rename(database: StatementRunner, values: Values) -> Renamed:
    """Move the next instances in one transaction; one by one if a key of one of them is taken."""
    page = [(id, text) for id, text in database.fetch(_next, (), values)]
    if not page:
        return Renamed(0, (), "")
    after = page[-1][0] if len(page) == values["limit"] else ""
    moved = _move(database, values, [id for id, _ in page])
    if moved is not None:
        return Renamed(moved, (), after)
    alone = {row: _move(database, values, [row[0]]) for row in page}
    return Renamed(sum(filter(None, alone.values())), tuple(row for row, moved in alone.items() if moved is None), after)


def _next() -> Select[Any]:
    is_next = [*_is_former(), instance.c.id > bound(instance.c.id, "after")]
    return select(instance.c.id, instance.c.key).where(*is_next).order_by(instance.c.id).limit(LIMIT)


def _is_former() -> list[ColumnElement[bool]]:
    return [instance.c.prefix == PREFIX, instance.c.saga == bound(instance.c.saga, "former")]


def _move(database: StatementRunner, values: Values, ids: list[str]) -> int | None:
    """Move instances and return how many; ``None``, with none moved, if a unique key refused one."""
    try:
        return database.in_transaction(lambda session: _move_in(session, values, ids))
    except StoreUnavailable as exc:
        if database.fault_of(exc) is not Fault.UNIQUE:
            raise
        return None


def _move_in(session: SqlSession, values: Values, ids: list[str]) -> int:
    moved = session.change_any(_rename_instances, "id", ids, values)
    session.change_any(_rename_keys, "id", ids, {**values, "digest": digest_of_saga(session.prefix, str(values["name"]))})
    return moved


def _rename_instances(count: int) -> Update:
    return update(instance).where(*_is_former(), any_of(instance.c.id, "id", count)).values(saga=bound(instance.c.saga, "name"))


def _rename_keys(count: int) -> Update:
    """Move keys and tags: the values of the latter begin with the digest of the saga."""
    is_held = [key.c.prefix == PREFIX, any_of(key.c.instance_id, "id", count)]
    of_tag = bound(key.c.value, "digest") + func.substr(key.c.value, literal_column(str(SAGA_DIGITS + 1)))
    value = case((key.c.property == literal_column(f"'{TAG}'"), of_tag), else_=key.c.value)
    return update(key).where(*is_held).values(saga=bound(key.c.saga, "name"), value=value)
