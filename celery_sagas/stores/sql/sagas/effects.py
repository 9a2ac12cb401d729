"""The effects of a commit besides the instance: its line in the journal, its outgoing rows, and the audit's entry."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, Column, ColumnElement, Delete, Insert, any_, bindparam, case, delete, func, insert, select
from sqlalchemy import literal_column as literal
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.types import TypeEngine

from celery_sagas.stores.records import AuditEntry, Effects, Entry, Outgoing, Sends
from celery_sagas.stores.sql.connection.statements import PREFIX, Execution, Values, bound, chunks, now, one_of
from celery_sagas.stores.sql.tables import ENDS_WITH_INSTANCE, audit, journal, outbox

#: What the store does not set itself, and the names of the parameters for it.
ENTRY = tuple(name for name in Entry._fields if name != "at")
_ENTRY_PARAMETERS = tuple(f"entry_{name}" for name in ENTRY)
#: The same of the audit's entry.
AUDITED = tuple(name for name in AuditEntry._fields if name != "at")
#: The columns in which the outgoing rows of a commit differ.
OUTGOING = Outgoing._fields


def insert_entry() -> Insert:
    """Insert the journal's line."""
    columns = entry_columns()
    return insert(journal).from_select(list(columns), select(*columns.values()))


def entry_columns() -> dict[str, ColumnElement[Any]]:
    """Return the columns of the journal's line."""
    return {"prefix": PREFIX, **{name: _of_entry(name) for name in ENTRY}, "at": now()}


def _of_entry(name: str) -> ColumnElement[Any]:
    return bound(journal.c[name], f"entry_{name}")


def entry_values(entry: Entry) -> Values:
    """Return the parameters of the journal's line."""
    return dict(zip(_ENTRY_PARAMETERS, entry, strict=False))  # all but the time, which is the last field


def insert_audit() -> Insert:
    """Insert the audit's entry."""
    columns = audit_columns()
    return insert(audit).from_select(list(columns), select(*columns.values()))


def audit_columns() -> dict[str, ColumnElement[Any]]:
    """Return the columns of the audit's entry."""
    return {"prefix": PREFIX, **{name: bound(audit.c[name], f"audit_{name}") for name in AUDITED}, "at": now()}


def audit_values(entry: AuditEntry | None) -> Values:
    """Return the parameters of the audit's entry, if there is one."""
    return {f"audit_{name}": getattr(entry, name) for name in AUDITED} if entry else {}


def _of_commit(name: str) -> ColumnElement[Any]:
    types: Mapping[str, TypeEngine[Any]] = {"owner": outbox.c.token.type, "grace_ms": BigInteger()}
    return bindparam(name, type_=types[name]) if name in types else _of_entry(name)


def outgoing_columns(
    own: Callable[[Column[Any]], ColumnElement[Any]], of_commit: Callable[[str], ColumnElement[Any]] = _of_commit
) -> dict[str, ColumnElement[Any]]:
    """Return the columns of an outgoing row; one that waits for its due time is under no lease.

    Args:
        own: Gives the value of a column in which the rows of a commit differ.
        of_commit: Gives what they have in common: the lease, and values of the journal's line.
    """
    due_at = own(outbox.c.due_at)
    waits = due_at > literal("0")
    until = now() + of_commit("grace_ms")
    return {
        "prefix": PREFIX,
        **{name: own(outbox.c[name]) for name in OUTGOING},
        "available_at": case((waits, due_at), else_=until),
        "leased_until": case((waits, literal("0", BigInteger())), else_=until),
        "token": case((waits, literal("''", outbox.c.token.type)), else_=of_commit("owner")),
        "attempts": literal("0", outbox.c.attempts.type),
        "error": literal("''", outbox.c.error.type),
        "instance_id": of_commit("instance_id"),
        "step": of_commit("step"),
        "cause": of_commit("message_id"),
    }


def lease_values(decided: Effects | Sends) -> Values:
    """Return the parameters that the outgoing rows have in common, but for those of the journal's line."""
    return {"owner": decided.owner, "grace_ms": decided.grace_ms}


def _insert_outgoing(count: int) -> Insert:
    def column_of(number: int) -> Callable[[Column[Any]], ColumnElement[Any]]:
        return lambda column: bound(column, f"{column.name}_{number}")

    return insert(outbox).values([outgoing_columns(column_of(number)) for number in range(count)])


def effect_steps(effects: Effects) -> list[Execution]:
    """Return the statements that write the effects one table after the other."""
    line = entry_values(effects.entry)
    audited = [Execution(insert_audit, (), audit_values(effects.audit))] if effects.audit else []
    return [Execution(insert_entry, (), line), *_outgoing_steps(effects.outgoing, {**line, **lease_values(effects)}), *audited]


def send_steps(sends: Sends) -> list[Execution]:
    """Return the statements that write the outgoing rows of a removal."""
    decided = {"entry_instance_id": "", "entry_step": sends.step, "entry_message_id": sends.cause}
    return _outgoing_steps(sends.outgoing, {**decided, **lease_values(sends)})


def _outgoing_steps(outgoing: Sequence[Outgoing], common: Values) -> list[Execution]:
    return [Execution(_insert_outgoing, (len(rows),), {**common, **_row_values(rows)}) for rows in chunks(outgoing)]


def _row_values(rows: Sequence[Outgoing]) -> Values:
    return {f"{name}_{number}": getattr(row, name) for number, row in enumerate(rows) for name in OUTGOING}


def delete_rows_of_instance() -> Delete:
    """Remove what is scheduled for an instance, and its deadlines."""
    return delete(outbox).where(*rows_of_instance())


def rows_of_instance() -> list[ColumnElement[bool]]:
    """Conditions: the rows end with the instance."""
    return [*decided_by_instance(), ENDS_WITH_INSTANCE]


def delete_cancelled(count: int) -> Delete:
    """Remove this many rows that an instance has cancelled."""
    return delete(outbox).where(*decided_by_instance(), one_of(outbox.c.id, "cancelled", count))


def decided_by_instance() -> list[ColumnElement[bool]]:
    """Conditions: the instance decided the rows."""
    return [outbox.c.prefix == PREFIX, outbox.c.instance_id == bound(outbox.c.instance_id, "id")]


def in_order(*conditions: ColumnElement[bool]) -> list[ColumnElement[bool]]:
    """Make PostgreSQL lock the rows in the order of their ids, as MySQL does anyway, to prevent deadlocks.

    The ids are an array, by which it looks for the rows: joined with a subquery, it would read all rows of the prefix, where the
    plan of the statement is of a time at which there were few. They are sorted by an expression: an index that has all rows in
    order would be read as a whole, too.
    """
    locked = select(outbox.c.id).where(*conditions).order_by(outbox.c.id.concat(literal("''"))).with_for_update()
    return [outbox.c.prefix == PREFIX, outbox.c.id == any_(func.array(locked.scalar_subquery(), type_=ARRAY(outbox.c.id.type)))]
