"""How items come into their groups."""

from collections.abc import Sequence

from celery_sagas.core.gate import Rules
from celery_sagas.stores.items import Added, Addition, Keeping, NewItem
from celery_sagas.stores.sql.bulk import insert_rows
from celery_sagas.stores.sql.groups import GroupRow, add_name, digest, lock_all, save
from celery_sagas.stores.sql.items import FREE, UNRESOLVED, known_keys, numbers_of_keys
from celery_sagas.stores.sql.kept import add_kept
from celery_sagas.stores.sql.session import Session
from celery_sagas.stores.sql.tables import buffer

#: In the place of the number that an item is about to get: larger than any that a gate was opened for.
_LATEST = 2**62


_Keyed = list[tuple[str, NewItem]]


def insert(session: Session, rules: Rules, additions: Sequence[Addition]) -> list[Added]:
    """Buffer items, and say for each addition whether a flush is to be asked for."""
    now, groups = lock_all(session, rules.name, {addition.group for addition in additions})
    is_new = any(not row.buffered for row in groups.values())
    keyed = [_with_keys(rules.name, addition) for addition in additions]
    known = known_keys(session, [key for items in keyed for key, _ in items], now)
    arrivals = _Arrivals(rules, now, known)
    answers = [arrivals.take(groups[addition.group], items) for addition, items in zip(additions, keyed, strict=True)]
    arrivals.write(session)
    save(session, rules, now, list(groups.values()))
    if is_new and arrivals.items:
        add_name(session, rules.name)
    return answers


def _with_keys(name: str, addition: Addition) -> _Keyed:
    return [(digest(name, addition.group, item.id), item) for item in addition.items]


class _Arrivals:
    """The new items of one call."""

    def __init__(self, rules: Rules, now: int, known: set[str]) -> None:
        self._rules = rules
        self._now = now
        self._known = known
        self.items: dict[str, tuple[GroupRow, NewItem]] = {}  #: by key, in their order

    def take(self, row: GroupRow, items: _Keyed) -> Added:
        """Take those of an addition that are new, unless the group would have too many."""
        new = self._new(items)
        if new and 0 < self._rules.max_buffered < row.buffered + len(new):
            return Added(0, is_full=True)
        self.items |= {key: (row, item) for key, item in new.items()}
        self._count(row, sum(not item.unread_by for item in new.values()), len(new))
        return Added(len(new), row.ask(self._rules, self._now))

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

    def write(self, session: Session) -> None:
        """Insert the items that were taken."""
        common = {"at": self._now, "attempts": 0, "token": "", "rejected": 0}
        insert_rows(session, buffer, [_values(key, *item) for key, item in self.items.items()], common)
        unread = [key for key, (_, item) in self.items.items() if item.unread_by]
        numbers = sorted(numbers_of_keys(session, unread))
        add_kept(session, [self._unresolved(key, number) for number, key in numbers])

    def _unresolved(self, key: str, number: int) -> tuple[GroupRow, Keeping]:
        row, item = self.items[key]
        return row, Keeping(number, "unresolved", item.unread_by)


def _values(key: str, row: GroupRow, item: NewItem) -> dict[str, object]:
    state = UNRESOLVED if item.unread_by else FREE
    return {"place": row.place, "key": key, "id": item.id, "payload": item.payload, "state": state}
