"""The journal in SQL."""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import BigInteger, BindParameter, ColumnElement, Integer, Select, and_, bindparam, func, or_, select
from sqlalchemy import literal_column as literal

from celery_sagas.stores.journal import Journal
from celery_sagas.stores.recent import LOOKED_AT, EntryPlace
from celery_sagas.stores.records import BEGINNINGS, Entries, Entry
from celery_sagas.stores.sql.connection.database import Database
from celery_sagas.stores.sql.connection.statements import LIMIT, PREFIX, Values, bound, now, numbered, one_of
from celery_sagas.stores.sql.purges import purge
from celery_sagas.stores.sql.sagas.lookups import ENTRY
from celery_sagas.stores.sql.tables import has_time, journal, journal_index

_INDEX = str(journal_index.name)
#: Before every entry.
_FIRST: Final = EntryPlace(2**62, "", "")
_WITHIN: BindParameter[int] = bindparam("within", type_=BigInteger())
_SKIPPED: BindParameter[int] = bindparam("skipped", type_=Integer())


class SqlJournal(Journal):
    """Entries in the table ``saga_journal``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def outcome_of(self, names: Sequence[str], key: str) -> Entry | None:
        rows = self._database.fetch(_completed, (len(names),), {"key": key, "limit": 1, **numbered("saga", names)})
        return Entry(*rows[0]) if rows else None

    def history(self, names: Sequence[str], key: str, limit: int) -> list[Entry]:
        values = {"key": key, **numbered("saga", names)}
        since = self._since(len(names), values, limit) if self._database.name == "mysql" else None
        rows = self._database.fetch(_newest, (len(names), since is not None), {**values, "limit": limit, "since": since})
        return [Entry(*row) for row in reversed(rows)]

    def began(self, names: Sequence[str], within_ms: int, limit: int) -> list[str]:
        values = {"within": within_ms, "limit": limit, **numbered("saga", names)}
        return list(dict.fromkeys(key for (key,) in self._database.fetch(_began, (len(names),), values)))

    def recent(self, limit: int, after: str = "", names: Sequence[str] = (), outcomes: Sequence[str] = ()) -> Entries:
        place = EntryPlace.read(after) if after else _FIRST
        end = self._end(place, LOOKED_AT * limit) if names or outcomes else None
        shape = (*self._kind, end is not None, len(names), len(outcomes))
        values = {**_values("", place), **numbered("saga", names), **numbered("outcome", outcomes), "limit": limit + 1}
        rows = self._database.fetch(_recent, shape, values | (_values("end_", end) if end else {}))
        entries = [Entry(*row) for row in rows]
        last = EntryPlace.of(entries[limit - 1]) if len(entries) > limit else end
        return Entries(tuple(entries[:limit]), str(last) if last else "", last.at if last else 0)

    def purge(self, older_than_ms: int, limit: int) -> int:
        return purge(self._database, journal.c.at, older_than_ms, limit)

    def oldest_at(self) -> int:
        return int(self._database.fetch(_oldest, (), {})[0][0] or 0)

    def _since(self, names: int, values: Values, count: int) -> int | None:
        """Return the time of the last of so many newest entries of a key; ``None`` if there are fewer.

        MySQL sorts all entries of a key by time and version, unless it knows from when on.
        """
        rows = self._database.fetch(_time_of_key, (names,), {**values, "limit": 1, "skipped": count - 1})
        return int(rows[0][0]) if rows else None

    def _end(self, place: EntryPlace, count: int) -> EntryPlace | None:
        """Return the place of the last of so many entries behind a place; ``None`` if there are fewer."""
        values = {**_values("", place), "limit": count, "skipped": count - 1}
        rows = self._database.fetch(_end, self._kind, values)
        return EntryPlace(*rows[0]) if rows else None

    @property
    def _kind(self) -> tuple[str, str]:
        return self._database.name, self._database.names.of(_INDEX)


def _newest(names: int, has_since: bool = False) -> Select[Any]:
    is_it = [*_is_of_key(names), *([journal.c.at >= bound(journal.c.at, "since")] if has_since else [])]
    return select(*ENTRY).where(*is_it).order_by(journal.c.at.desc(), journal.c.version.desc()).limit(LIMIT)


def _time_of_key(names: int) -> Select[Any]:
    return select(journal.c.at).where(*_is_of_key(names)).order_by(journal.c.at.desc()).limit(LIMIT).offset(_SKIPPED)


def _is_of_key(names: int) -> list[ColumnElement[bool]]:
    return [journal.c.prefix == PREFIX, one_of(journal.c.saga, "saga", names), journal.c.key == bound(journal.c.key, "key")]


def _completed(names: int) -> Select[Any]:
    return _newest(names).where(journal.c.outcome == "completed")


def _values(prefix: str, place: EntryPlace) -> dict[str, object]:
    return {f"{prefix}{name}": value for name, value in place._asdict().items()}


def _recent(database: str, index: str, has_end: bool, names: int, outcomes: int) -> Select[Any]:
    """Select the entries behind a place, perhaps up to an end, or those of them that are of some sagas and have some outcomes."""
    counts = {"saga": names, "outcome": outcomes}
    is_it = [one_of(journal.c[name], name, count) for name, count in counts.items() if count]
    return _in_order(database, index, ENTRY, [*is_it, *(_is_within() if has_end else ())]).limit(LIMIT)


def _end(database: str, index: str) -> Select[Any]:
    columns = [journal.c[name] for name in EntryPlace._fields]
    return _in_order(database, index, columns, []).limit(literal("1")).offset(_SKIPPED)


def _in_order(database: str, index: str, columns: Sequence[Any], conditions: Sequence[Any]) -> Select[Any]:
    """Select behind a place in the order of the index by time, which sorts no more than what is of one time.

    PostgreSQL without statistics of the table would sort all that there is: it orders by the time alone, then what it has taken.
    MySQL's index ends with the primary key, in the same order; MariaDB would still sort, unless the index is forced on it.
    """
    rows = select(*columns).with_hint(journal, f"FORCE INDEX ({index})", "mysql")
    rows = rows.where(journal.c.prefix == PREFIX, *_is_behind(), *conditions)
    if database == "postgresql":
        newest = rows.where(has_time(journal.c.at)).order_by(journal.c.at.desc()).fetch(LIMIT, with_ties=True).subquery("newest")
        return select(newest).order_by(*_order(newest.c))
    return rows.order_by(*_order(journal.c))


def _is_behind() -> list[ColumnElement[bool]]:
    """Return the conditions of what follows a place; where the index is entered must be one of its own."""
    at, message_id, step = (journal.c[name] for name in EntryPlace._fields)
    last_at, last_id, last_step = (bound(column, column.name) for column in (at, message_id, step))
    return [at <= last_at, or_(at < last_at, message_id < last_id, and_(message_id == last_id, step < last_step))]


def _is_within() -> list[ColumnElement[bool]]:
    """Return the conditions of what does not follow the end."""
    at, message_id, step = (journal.c[name] for name in EntryPlace._fields)
    end_at, end_id, end_step = (bound(column, f"end_{column.name}") for column in (at, message_id, step))
    return [at >= end_at, or_(at > end_at, message_id > end_id, and_(message_id == end_id, step >= end_step))]


def _order(columns: Any) -> list[ColumnElement[Any]]:
    return [columns[name].desc() for name in EntryPlace._fields]


def _oldest() -> Select[Any]:
    return select(func.min(journal.c.at)).where(journal.c.prefix == PREFIX, has_time(journal.c.at))


def _began(names: int) -> Select[Any]:
    is_recent = [journal.c.prefix == PREFIX, journal.c.at >= now() - _WITHIN, has_time(journal.c.at)]
    is_first = [
        one_of(journal.c.saga, "saga", names),
        journal.c.version == 1,
        or_(*(journal.c.outcome == outcome for outcome in BEGINNINGS)),
    ]
    return select(journal.c.key).where(*is_recent, *is_first).order_by(journal.c.at.desc()).limit(LIMIT)
