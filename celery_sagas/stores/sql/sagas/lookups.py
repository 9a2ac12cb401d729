"""Statements that look for an instance and for the journal's entry of a message."""

from collections.abc import Sequence
from typing import Any, cast

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    CompoundSelect,
    FromClause,
    Integer,
    Select,
    and_,
    any_,
    bindparam,
    case,
    func,
    literal_column,
    select,
    true,
    union_all,
)
from sqlalchemy import column as named
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql.visitors import replacement_traverse

from celery_sagas.stores.records import ID, KEY, Entry, Handling, Lookup, Record
from celery_sagas.stores.sql.connection.bulk import rows_of
from celery_sagas.stores.sql.connection.database import Row
from celery_sagas.stores.sql.connection.statements import PREFIX, Shape, Values, bound, now, numbered, one_of
from celery_sagas.stores.sql.sagas.instances import has_found_name
from celery_sagas.stores.sql.tables import instance, journal, key

_LOCK_OWNER = case((instance.c.locked_until > now(), instance.c.locked_by), else_=literal_column("''"))

#: In the order of ``Record``'s fields.
_RECORD: list[ColumnElement[Any]] = [*(instance.c[name] for name in Record._fields if name != "locked_by"), _LOCK_OWNER]
#: In the order of ``Entry``'s fields.
ENTRY: list[ColumnElement[Any]] = [journal.c[name] for name in Entry._fields]
_COLUMNS = {ID: "id", KEY: "key"}


def find(property: str, names: int, steps: int) -> Select[Any]:
    """Select an instance under any of the names and, if there are steps, the entry of a message: one row, or none of either."""
    if property in _COLUMNS:
        return _one_row(instance, and_(_is_named(names), _has(instance.c[_COLUMNS[property]])), steps)
    return _one_row(key.join(instance, and_(_is_named(names), instance.c.id == key.c.instance_id)), _is_key(), steps)


def find_on_postgresql(property: str, names: int, steps: int) -> Select[Any]:
    """Select what ``find`` does.

    The holders of an alternate key are an array, by which PostgreSQL looks for the instance: joined with the keys, it would read
    all instances of the prefix, where the plan of the statement is of a time at which there were few.
    """
    if property in _COLUMNS:
        return find(property, names, steps)
    holders = func.array(select(key.c.instance_id).where(_is_key()).scalar_subquery(), type_=ARRAY(instance.c.id.type))
    return _one_row(instance, and_(_is_named(names), instance.c.id == any_(holders)), steps)


def _one_row(instances: FromClause, condition: ColumnElement[bool], steps: int) -> Select[Any]:
    one = select(literal_column("1").label("one")).subquery("one")
    source = one.outerjoin(instances, condition)
    if not steps:
        return select(*_RECORD).select_from(source)
    return select(*_RECORD, *ENTRY).select_from(source.outerjoin(journal, _handled(steps)))


def _is_named(names: int) -> ColumnElement[bool]:
    return and_(instance.c.prefix == PREFIX, one_of(instance.c.saga, "saga", names))


def _is_key() -> ColumnElement[bool]:
    return and_(key.c.prefix == PREFIX, key.c.property == bound(key.c.property, "property"), _has(key.c.value))


def _has(column: ColumnElement[str]) -> ColumnElement[bool]:
    return column == bound(column, "value")


def _handled(steps: int) -> ColumnElement[bool]:
    return and_(
        journal.c.prefix == PREFIX,
        one_of(journal.c.step, "step", steps),
        journal.c.message_id == bound(journal.c.message_id, "message_id"),
    )


def sought_by(lookup: Lookup, handling: Handling | None) -> tuple[Shape, Values]:
    """Return the shape and the parameters of ``find``."""
    steps = handling.steps if handling else ()
    values = {"property": lookup.property, "value": lookup.value, **numbered("saga", lookup.names)}
    if handling:
        values |= {"message_id": handling.message_id, **numbered("step", steps)}
    by = lookup.property if lookup.property in (ID, KEY) else ""
    return (by, len(lookup.names), len(steps)), values


def find_numbered(property: str, names: int, steps: int, count: int) -> CompoundSelect[Any]:
    """Select what this many finds do, each with parameters of its own, and its number as the last column, on MySQL."""
    return union_all(*(_numbered_find(number, property, names, steps) for number in range(count)))


def _numbered_find(number: int, *shape: Any) -> Select[Any]:
    def renamed(element: Any, **_: object) -> Any:
        is_own = isinstance(element, BindParameter) and element.key not in (PREFIX.key, "now")
        return bindparam(f"{element.key}_of_{number}", type_=element.type) if is_own else None

    found = find(*shape).add_columns(literal_column(str(number)).label("number"))
    return cast(Select[Any], replacement_traverse(found, {}, renamed))


def numbered_values(values: Sequence[Values]) -> Values:
    """Return the parameters of ``find_numbered``."""
    return {f"{name}_of_{number}": value for number, each in enumerate(values) for name, value in each.items()}


#: The columns of what is sought, in order; the step is null if only the instance is.
SOUGHT = ("number", "saga", "property", "value", "step", "message_id")


def find_each(property: str) -> Select[Any]:
    """Select any number of instances and of messages' entries, on PostgreSQL: one row for each that is sought.

    Each is looked up by itself, so that the plan is that of ``find``, however many rows the tables have or seem to have.
    """
    types = (
        Integer(),
        instance.c.saga.type,
        key.c.property.type,
        key.c.value.type,
        journal.c.step.type,
        journal.c.message_id.type,
    )
    sought = rows_of("sought", *map(named, SOUGHT, types))
    found = _found_by_column(sought, _COLUMNS[property]) if property in _COLUMNS else _found_by_alternate_key(sought)
    is_line = [journal.c.prefix == PREFIX, *(journal.c[name] == sought.c[name] for name in ("step", "message_id"))]
    line = select(*ENTRY).where(*is_line).limit(literal_column("1")).lateral("line")
    both = sought.outerjoin(found, true()).outerjoin(line, true())
    return select(sought.c.number, *found.c, *line.c).select_from(both)


def _found_by_column(sought: FromClause, name: str) -> FromClause:
    return _one_instance("found", instance.c.saga == sought.c.saga, instance.c[name] == sought.c.value)


def _found_by_alternate_key(sought: FromClause) -> FromClause:
    holder = _one_instance("holder", instance.c.saga == sought.c.saga, instance.c.id == key.c.instance_id)
    is_key = [key.c.prefix == PREFIX, *(key.c[name] == sought.c[name] for name in ("property", "value"))]
    found = select(*holder.c).select_from(key.join(holder, true())).where(*is_key)
    return found.limit(literal_column("1")).lateral("found")


def _one_instance(name: str, *conditions: ColumnElement[bool]) -> FromClause:
    return select(*_RECORD).where(instance.c.prefix == PREFIX, *conditions).limit(literal_column("1")).lateral(name)


def find_rivals() -> Select[Any]:
    """Select why a commit was refused: the attempt that handled its message, and the instance's version and lock owner."""
    one = select(literal_column("1").label("one")).subquery("one")
    is_instance = and_(instance.c.prefix == PREFIX, instance.c.id == bound(instance.c.id, "id"), has_found_name())
    source = one.outerjoin(journal, _handled(1)).outerjoin(instance, is_instance)
    return select(journal.c.attempt, instance.c.version, _LOCK_OWNER).select_from(source)


def record_of(row: Row) -> Record | None:
    """Make a record of the columns that ``find`` selects."""
    return None if row[0] is None else Record(*row[: len(_RECORD)])


def handled_of(row: Row) -> Entry | None:
    """Make an entry of what follows the record in ``find``."""
    fields = row[len(_RECORD) :]
    return Entry(*fields) if fields and fields[0] is not None else None
