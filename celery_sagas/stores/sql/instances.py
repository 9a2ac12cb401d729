"""Pages of instances in SQL: each is read with one statement, in the order of an index."""

from collections.abc import Sequence
from operator import gt, lt
from typing import Any, Final

from sqlalchemy import ColumnElement, LargeBinary, Select, and_, case, cast, func, select, true, union_all
from sqlalchemy import literal_column as literal

from celery_sagas.stores.instances import PENDING, Glance, Instances, Page, bound_of, check_place
from celery_sagas.stores.records import Record
from celery_sagas.stores.sql.connection.database import Database, Row
from celery_sagas.stores.sql.connection.reads import read
from celery_sagas.stores.sql.connection.statements import LIMIT, PREFIX, Build, Shape, Values, any_of, bound, limit_of_count
from celery_sagas.stores.sql.sagas.tags import beginning_of
from celery_sagas.stores.sql.tables import HAS_SLOT, TAG, instance, key, seen_index

#: How long each statement may take.
SECONDS: Final = 5.0
#: In the order of ``Record``'s fields, but for the lock's owner, which is the last.
_RECORD: list[ColumnElement[Any]] = [instance.c[name] for name in Record._fields if name != "locked_by"]
#: Slots before the first one and after the last one.
_BEFORE, _BEHIND = -1, 2**62
_INDEX = str(seen_index.name)
_IS_UNDER_NAME = (instance.c.prefix == PREFIX, instance.c.saga == bound(instance.c.saga, "saga"))


class SqlInstances(Instances):
    """Pages by the indexes of ``saga_instance`` and ``saga_key``. A statement that takes too long is ended."""

    def __init__(self, database: Database, seconds: float = SECONDS) -> None:
        self._database = database
        self._seconds = seconds

    def page(self, name: str, limit: int, after: str = "", *, oldest_first: bool = False) -> Page:
        slot, id = _slot_and_id(after) if after else (_BEFORE if oldest_first else _BEHIND, "")
        values = {"saga": name, "slot": slot, "id": id, "limit": limit + 1}
        rows = self._fetch(_page, (self._database.name, self._database.names.of(_INDEX), oldest_first), values)
        glances = tuple(_glance(row) for row in rows[:limit])
        return Page(glances, glances[-1].place if len(rows) > limit else "")

    def tagged(self, name: str, tag: tuple[str, str], limit: int, after: str = "") -> Page:
        values = {**self._of_tag(name, tag, after), "limit": limit + 1}
        rows = self._fetch(_tagged, (self._database.name,), values)
        found = [(id, _glance(row)) for id, *row in rows[:limit]]
        return Page(tuple(glance for _, glance in found if glance.id), found[-1][0] if len(rows) > limit else "")

    def read(self, name: str, ids: Sequence[str]) -> list[Record]:
        rows = read(self._database, lambda session: session.fetch_any(_read, "id", ids), self._seconds)
        found = {row[0]: Record(*row) for row in rows}
        return [found[id] for id in ids if id in found and found[id].saga == name]

    def count(self, name: str, at_most: int, tag: tuple[str, str] | None = None) -> int:
        values = {"saga": name} if tag is None else self._of_tag(name, tag)
        ((count,),) = self._fetch(_count, (tag is not None, self._database.name), {**values, "limit": at_most})
        return int(count)

    def _fetch(self, build: Build, shape: Shape, values: Values) -> list[Row]:
        return read(self._database, lambda session: session.fetch(build, shape, values), self._seconds)

    def _of_tag(self, name: str, tag: tuple[str, str], before: str = "") -> Values:
        """Return the bounds of the values that a tag's rows have: all of them, or those of instances before one."""
        beginning = beginning_of(self._database.prefix, name, tag)
        return {"saga": name, "first": beginning, "end": f"{beginning}{bound_of(before)}" if before else _successor(beginning)}


def _slot_and_id(place: str) -> tuple[int, str]:
    check_place(place)
    slot, _, id = place.partition(":")
    return int(slot, 16), id


def _successor(text: str) -> str:
    """Return the first text that does not begin with this one, of those behind it."""
    return text[:-1] + chr(ord(text[-1]) + 1)


def _glance(row: Row) -> Glance:
    id, saga, name, version, schema_version, size, *others = row
    return Glance(id, saga, name, version, schema_version, size and int(size), *others)


def _columns(database: str) -> list[ColumnElement[Any]]:
    """Return the columns, in the order of ``Glance``'s fields. The database measures the state, and keeps it."""
    pending = instance.c.pending
    is_short = _bytes_of(pending, database) <= literal(str(PENDING))
    others = {"size": _bytes_of(instance.c.data, database), "pending": case((is_short, pending))}
    return [others[name].label(name) if name in others else instance.c[name] for name in Glance._fields]


def _bytes_of(column: ColumnElement[str], database: str) -> ColumnElement[int]:
    if database == "sqlite":  # whose length is that in characters, and which has the other function since release 3.43
        return func.length(cast(column, LargeBinary))
    return func.octet_length(column)


def _page(database: str, index: str, oldest_first: bool) -> Select[Any]:
    """Select what follows in the same slot, and what is in others: given ``OR``, databases read the index from its beginning.

    So does MariaDB, unless the index is forced on it.
    """
    slot, id = bound(instance.c.touched_in, "slot"), bound(instance.c.id, "id")
    follows = gt if oldest_first else lt
    parts = [and_(instance.c.touched_in == slot, follows(instance.c.id, id)), follows(instance.c.touched_in, slot)]
    rows = select(*_columns(database), instance.c.touched_in).with_hint(instance, f"FORCE INDEX ({index})", "mysql")
    arms = [rows.where(*_IS_UNDER_NAME, part).order_by(*_order(instance.c, oldest_first)).limit(LIMIT) for part in parts]
    both = union_all(*(select(arm.subquery()) for arm in arms)).subquery("both")
    return select(*(both.c[name] for name in Glance._fields)).order_by(*_order(both.c, oldest_first)).limit(LIMIT)


def _order(columns: Any, oldest_first: bool) -> list[ColumnElement[Any]]:
    order = [columns.touched_in, columns.id]
    return order if oldest_first else [column.desc() for column in order]


def _tagged(database: str) -> Select[Any]:
    """Select the ids in a tag's rows, with the instances that are there under the name."""
    rows = select(key.c.instance_id, key.c.value).where(*_has_tag()).order_by(key.c.value.desc()).limit(LIMIT).subquery("tagged")
    is_it = and_(*_IS_UNDER_NAME, instance.c.id == rows.c.instance_id)
    columns = _columns(database)
    if database == "postgresql":  # which then looks up one by one, however few rows the tables seem to have
        found = select(*columns).where(is_it).limit(literal("1")).lateral("found")
        columns, source = list(found.c), rows.outerjoin(found, true())
    else:
        source = rows.outerjoin(instance, is_it)
    return select(rows.c.instance_id, *columns).select_from(source).order_by(rows.c.value.desc())


def _has_tag() -> list[ColumnElement[bool]]:
    is_tag = [key.c.prefix == PREFIX, key.c.property == literal(f"'{TAG}'", key.c.property.type)]
    return [*is_tag, key.c.value > bound(key.c.value, "first"), key.c.value < bound(key.c.value, "end")]


def _read(count: int) -> Select[Any]:
    """Select by id alone: given the name of the saga, too, a database without statistics might read all under it."""
    return select(*_RECORD).where(instance.c.prefix == PREFIX, any_of(instance.c.id, "id", count))


def _count(has_tag: bool, database: str) -> Select[Any]:
    """Count in the order of an index, so that it is read, and not the table from its beginning."""
    one: Select[Any] = select(literal("1").label("one"))
    tags = one.select_from(key).where(*_has_tag()).order_by(key.c.value)
    instances = one.select_from(instance).where(*_IS_UNDER_NAME, HAS_SLOT).order_by(*_order(instance.c, oldest_first=True))
    counted = (tags if has_tag else instances).limit(limit_of_count(database)).subquery()
    return select(func.count()).select_from(counted)
