"""Finds of several messages in one statement, and commits of several in one transaction."""

from collections.abc import Iterator, Sequence

from celery_sagas.core.ids import time_ordered_id
from celery_sagas.stores.operations import Find, Update
from celery_sagas.stores.records import ID, KEY, Entry, Found, Record
from celery_sagas.stores.sql.connection.database import Row, SqlSession, StatementRunner
from celery_sagas.stores.sql.connection.statements import Execution, Shape, Values
from celery_sagas.stores.sql.sagas import updates
from celery_sagas.stores.sql.sagas.lookups import (
    SOUGHT,
    find_each,
    find_numbered,
    handled_of,
    numbered_values,
    record_of,
    sought_by,
)
from celery_sagas.stores.sql.sagas.prepared import Prepared

#: The most instances that one statement changes.
_AT_ONCE = 100
#: The numbers of finds for which a ``UNION`` is compiled.
_SIZES = (1, 4, 12, 25, 50)


def find_all(database: StatementRunner, finds: Sequence[Find]) -> list[Found]:
    """Find instances and handled messages on PostgreSQL: one statement for each way of looking for an instance."""
    records: dict[int, Record] = {}
    entries: dict[int, Entry] = {}
    for by, rows in _sought(finds).items():
        values = {f"sought_{name}": column for name, column in zip(SOUGHT, map(list, zip(*rows, strict=True)), strict=True)}
        for number, *row in database.fetch(find_each, (by,), values):
            if record := record_of(row):
                records[number] = record
            if entry := handled_of(row):
                entries[number] = entry
    return [Found(records.get(number), entries.get(number), time_ordered_id()) for number in range(len(finds))]


def _sought(finds: Sequence[Find]) -> dict[str, list[tuple[object, ...]]]:
    """Return the rows of arrays: one for each name of a saga and of a step that a find looks under."""
    sought: dict[str, list[tuple[object, ...]]] = {}
    for number, (lookup, handling) in enumerate(finds):
        rows = sought.setdefault(lookup.property if lookup.property in (ID, KEY) else "", [])
        message_id = handling.message_id if handling else ""
        steps: Sequence[str | None] = handling.steps if handling else (None,)
        alike = (lookup.property, lookup.value)
        rows += [(number, name, *alike, step, message_id) for name in lookup.names for step in steps]
    return sought


def find_in_union(database: StatementRunner, finds: Sequence[Find]) -> list[Found]:
    """Find instances and handled messages on MySQL: a ``UNION`` of the statements of those that are of one shape."""
    alike: dict[Shape, list[tuple[int, Values]]] = {}
    for number, find in enumerate(finds):
        shape, values = sought_by(*find)
        alike.setdefault(shape, []).append((number, values))
    found: dict[int, Found] = {}
    for shape, each in alike.items():
        for start in range(0, len(each), _SIZES[-1]):
            part = each[start : start + _SIZES[-1]]
            rows = _rows_of_union(database, shape, [values for _, values in part])
            found |= {number: _found(rows[place]) for place, (number, _) in enumerate(part)}
    return [found[number] for number in range(len(finds))]


def _rows_of_union(database: StatementRunner, shape: Shape, values: Sequence[Values]) -> dict[int, Row]:
    size = next(size for size in _SIZES if size >= len(values))
    filled = [*values, *[values[-1]] * (size - len(values))]
    rows = database.fetch(find_numbered, (*shape, size), numbered_values(filled))
    return {int(row[-1]): row[:-1] for row in rows}


def _found(row: Row) -> Found:
    return Found(record_of(row), handled_of(row), time_ordered_id())


def write_all(session: SqlSession, commits: Sequence[Prepared]) -> set[int] | None:
    """Write commits in one transaction, in the order of their instances' ids, so that two calls seldom wait for one another.

    Returns:
        The numbers of those that were made; ``None``, with nothing written, if one cannot be left out alone.
    """
    order = sorted(range(len(commits)), key=lambda number: commits[number].effects.entry.instance_id)
    at_once = [number for number in order if session.database == "postgresql" and _is_plain(commits[number])]
    alone = [number for number in order if number not in set(at_once)]
    session.begin()
    done = {*_update_together(session, commits, at_once)}
    for number in alone:
        refused = _refused(session, commits[number].steps)
        if refused:
            session.end("ROLLBACK")
            return None
        if refused is None:
            done.add(number)
    session.end("COMMIT")
    return done


def _is_plain(commit: Prepared) -> bool:
    """Return whether it changes an instance, and but for that only the journal and the outbox."""
    if not isinstance(commit.commit, Update) or commit.effects.audit:
        return False
    change = commit.commit.change
    return not (change.added_keys or change.removed_keys or change.added_tags or change.removed_tags)


def _update_together(session: SqlSession, commits: Sequence[Prepared], numbers: Sequence[int]) -> Iterator[int]:
    for start in range(0, len(numbers), _AT_ONCE):
        part = {number: commits[number].commit for number in numbers[start : start + _AT_ONCE]}
        plain = {number: commit for number, commit in part.items() if isinstance(commit, Update)}
        shape, values = updates.values_of(plain)
        for (number,) in session.fetch(updates.update_each, shape, values):
            yield number


def _refused(session: SqlSession, steps: Sequence[Execution]) -> int | None:
    """Run the statements of a commit; return the position of the one that is required and has changed no row, if there is one."""
    for position, step in enumerate(steps):
        if not session.change(step.build, step.shape, step.values) and step.is_required:
            return position
    return None
