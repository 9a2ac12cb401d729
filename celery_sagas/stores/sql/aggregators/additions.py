"""Insertion of items into their groups: of new ones, and of rejected ones that are to be tried again."""

from collections.abc import Mapping, Sequence

from sqlalchemy import Select, exists, select
from sqlalchemy import literal_column as literal

from celery_sagas.core.aggregators.rules import Rules
from celery_sagas.stores.items import Added, Addition, NewItem
from celery_sagas.stores.records import DeadLetter
from celery_sagas.stores.sql.aggregators.groups import (
    GroupRow,
    add_name,
    forget_empty,
    lock_all,
    put_groups,
    save,
    settled,
)
from celery_sagas.stores.sql.aggregators.items import (
    FREE,
    UNRESOLVED,
    item_of_key,
    known_keys,
    look_at_oldest,
    select_known,
    still_known,
)
from celery_sagas.stores.sql.connection.bulk import insert_given, insert_rows, parameters
from celery_sagas.stores.sql.connection.database import SqlSession
from celery_sagas.stores.sql.connection.statements import Values
from celery_sagas.stores.sql.dead_letters import discard
from celery_sagas.stores.sql.digests import digest
from celery_sagas.stores.sql.tables import buffer, group

#: In the place of the number that an item is about to get: larger than any that a trigger was fired for.
_LATEST = 2**62
#: The columns of a new item: those that all of one call have in common, and its own.
_COMMON, OWN = ("at", "attempts", "token"), ("group_digest", "key", "id", "payload", "state")

_Keyed = list[tuple[str, NewItem]]


def insert(session: SqlSession, rules: Rules, additions: Sequence[Addition]) -> list[Added]:
    """Buffer items, and return for each addition whether the caller must ask for a flush.

    All are assumed to be new at first, as they nearly always are; if any is known, nothing is written, and those are left out.
    """
    now, groups = lock_all(session, rules.name, {addition.group for addition in additions})
    keyed = [(addition.group, _with_keys(rules.name, addition)) for addition in additions]
    arrivals = _Arrivals(rules, now, groups, set())
    answers = arrivals.take_all(keyed)
    known = arrivals.write_if_new(session, [key for _, items in keyed for key, _ in items])
    if known is not None:
        arrivals = _Arrivals(rules, now, groups, known)
        answers = arrivals.take_all(keyed)
        arrivals.write(session)
    if arrivals.items and not all(row.buffered for row in groups.values()):
        add_name(session, rules.name)
    return answers


def _with_keys(name: str, addition: Addition) -> _Keyed:
    return [(digest(name, addition.group, item.id), item) for item in addition.items]


class _Arrivals:
    """The new items of one call, and the changes of their groups."""

    def __init__(self, rules: Rules, now: int, groups: Mapping[str, GroupRow], known: set[str]) -> None:
        self._rules = rules
        self._now = now
        self._groups = {name: row.copy() for name, row in groups.items()}
        self._known = known
        self.items: dict[str, tuple[GroupRow, NewItem]] = {}  #: by key, in their order

    def take_all(self, additions: Sequence[tuple[str, _Keyed]]) -> list[Added]:
        """Take the items that are new, of additions to groups."""
        return [self._take(self._groups[name], items) for name, items in additions]

    def _take(self, row: GroupRow, items: _Keyed) -> Added:
        """Take those of an addition that are new, unless the group would have too many."""
        new = self._new(items)
        if new and 0 < self._rules.max_buffered < row.buffered + len(new):
            return Added(0, is_full=True)
        self.items |= {key: (row, item) for key, item in new.items()}
        self._count(row, sum(not item.is_unreadable for item in new.values()), len(new))
        return Added(len(new), row.request_flush(self._rules, self._now))

    def _new(self, items: _Keyed) -> dict[str, NewItem]:
        new: dict[str, NewItem] = {}
        for key, item in items:
            if key not in self._known and key not in self.items:
                new.setdefault(key, item)
        return new

    def _count(self, row: GroupRow, readable: int, new: int) -> None:
        if readable:
            row.last_at = self._now
            if not row.free:
                row.oldest, row.oldest_at = _LATEST, self._now
        row.free += readable
        row.unresolved += new - readable

    def write_if_new(self, session: SqlSession, keys: Sequence[str]) -> set[str] | None:
        """Insert the items that were taken, and change their groups, if none of the keys is known; return those that are."""
        if session.database == "postgresql" and self.items:
            return self._write_in_one(session, keys)
        known = known_keys(session, keys, self._now)
        if known:
            return known
        self.write(session)
        return None

    def _write_in_one(self, session: SqlSession, keys: Sequence[str]) -> set[str] | None:
        items, groups = self._item_values(), settled(self._rules, self._now, self._rows)
        values = {"key": keys, **parameters(buffer, items, self._common), **parameters(group, groups)}
        found = session.fetch(_write_if_new, (len(items) == 1, len(groups) == 1), values)
        if found:
            return still_known(found, self._now)
        forget_empty(session, self._rows)
        return None

    def write(self, session: SqlSession) -> None:
        """Insert the items that were taken, and change their groups."""
        insert_rows(session, buffer, self._item_values(), self._common)
        save(session, self._rules, self._now, self._rows)

    @property
    def _rows(self) -> list[GroupRow]:
        return list(self._groups.values())

    @property
    def _common(self) -> Values:
        return dict(zip(_COMMON, (self._now, 0, ""), strict=True))

    def _item_values(self) -> list[Values]:
        return [_values(key, *item) for key, item in self.items.items()]


def restore(session: SqlSession, rules: Rules, dead_letter: DeadLetter) -> bool:
    """Insert the item of a dead letter and remove the dead letter, unless its id is buffered again, or the dead letter gone."""
    now, groups = lock_all(session, rules.name, {dead_letter.key})
    row, key = groups[dead_letter.key], digest(rules.name, dead_letter.key, dead_letter.message_id)
    is_wanted = item_of_key(session, key) is None and discard(session, dead_letter.id)
    if is_wanted:
        item = NewItem(dead_letter.message_id, dead_letter.payload)
        numbered = {**_values(key, row, item), "number": dead_letter.number, "at": dead_letter.buffered_at}
        insert_rows(session, buffer, [{**numbered, "attempts": 0, "token": ""}])
        row.back([dead_letter.number])
        look_at_oldest(session, row)
    save(session, rules, now, [row])
    return is_wanted


def _values(key: str, row: GroupRow, item: NewItem) -> Values:
    state = UNRESOLVED if item.is_unreadable else FREE
    return dict(zip(OWN, (row.group_digest, key, item.id, item.payload, state), strict=True))


def _write_if_new(is_one_item: bool, is_one_group: bool) -> Select[tuple[str, int]]:
    """Select which keys are known, and write everything if none is: one statement for PostgreSQL."""
    known = select_known(0).cte("known")
    is_new = ~exists(literal("1")).select_from(known)
    items = insert_given(buffer, OWN, _COMMON, is_new, is_one=is_one_item).cte("items")
    groups = put_groups(is_new, is_one=is_one_group).cte("groups")
    return select(known.c.key, known.c.ends_at).add_cte(items, groups)
