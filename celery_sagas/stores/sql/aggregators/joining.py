"""An item that joins others and does not fire their trigger, as most items do: on PostgreSQL it takes one statement.

It looks for the item's id before it has locked the group. If another call has buffered the id meanwhile, the item cannot be
inserted; if that item was even removed again, the group's ``removals`` shows it. Either way nothing is changed, and the item
takes the longer way.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import CTE, BigInteger, ColumnElement, Select, and_, bindparam, case, exists, func, insert, or_, select, update
from sqlalchemy import literal_column as literal

from celery_sagas.core.aggregators.rules import Rules
from celery_sagas.stores.items import Added, Addition
from celery_sagas.stores.sql.aggregators.additions import OWN
from celery_sagas.stores.sql.aggregators.items import FREE, select_known
from celery_sagas.stores.sql.connection.database import SqlSession
from celery_sagas.stores.sql.connection.statements import PREFIX, bound, now
from celery_sagas.stores.sql.digests import digest
from celery_sagas.stores.sql.tables import buffer, group

#: Groups of which it is remembered that items wait in them.
_REMEMBERED: Final = 10_000


class Joinable:
    """Groups in which items wait, as far as this process knows: only in these is an attempt worthwhile."""

    def __init__(self) -> None:
        self._groups: OrderedDict[tuple[str, str], None] = OrderedDict()

    def is_worth_while(self, rules: Rules, additions: Sequence[Addition]) -> bool:
        """Return whether the additions are one item, and others wait in its group."""
        return len(additions) == 1 and _is_one(additions[0]) and (rules.name, additions[0].group) in self._groups

    def note(self, rules: Rules, additions: Sequence[Addition], added: Sequence[Added]) -> None:
        """Note where items wait after an insertion."""
        for addition, each in zip(additions, added, strict=True):
            group_digest = rules.name, addition.group
            if each.needs_flush or each.is_full or not _is_one(addition):
                self._groups.pop(group_digest, None)
                continue
            self._groups[group_digest] = None
            if len(self._groups) > _REMEMBERED:
                self._groups.popitem(last=False)


def _is_one(addition: Addition) -> bool:
    return len(addition.items) == 1 and not addition.items[0].is_unreadable


def join(session: SqlSession, rules: Rules, addition: Addition) -> bool:
    """Insert the one item of an addition, and return whether that was all there was to do; else nothing is changed."""
    (item,), group_digest = addition.items, digest(rules.name, addition.group)
    key = digest(rules.name, addition.group, item.id)
    new = dict(zip(OWN, (group_digest, key, item.id, item.payload, FREE), strict=True))
    bounds = {"size": rules.size, "within": rules.within_ms, "idle": rules.idle_ms, "most": rules.max_buffered}
    values = {"group_digest": group_digest, "key_0": key, **bounds, **{f"new_{name}": value for name, value in new.items()}}
    shape = tuple(int(bound > 0) for bound in bounds.values())
    return bool(session.fetch(_join, shape, values))


def _join(has_size: int, has_within: int, has_idle: int, has_most: int) -> Select[tuple[int]]:
    """Change the group and insert the item, if nothing else needs to be done: see ``core/aggregators/rules.py``."""
    known, before = select_known(1).cte("known"), group.alias("before")
    size, within, idle, most = (bindparam(name, type_=BigInteger()) for name in ("size", "within", "idle", "most"))
    of, is_marked, waits_until = group.c, group.c.flush_requested_until > now(), group.c.oldest_at + within
    is_closed = [of.oldest > of.fired_to, *([of.free + literal("1") < size] if has_size else [])]
    is_closed += [waits_until > now()] if has_within else []
    times = [
        func.nullif(of.lease_end, literal("0")),
        *([waits_until] if has_within else []),
        *([now() + idle] if has_idle else []),
    ]
    is_it = [of.prefix == PREFIX, of.group_digest == bound(of.group_digest, "group_digest")]
    removals = select(before.c.removals).where(
        before.c.prefix == PREFIX, before.c.group_digest == bound(of.group_digest, "group_digest")
    )
    conditions = [*is_it, of.removals == removals.scalar_subquery(), of.free > literal("0")]
    conditions += [or_(is_marked, and_(*is_closed)), ~exists(literal("1")).select_from(known)]
    conditions += [of.free + of.leased + of.unresolved < most] if has_most else []
    due_at = case((is_marked, of.flush_requested_until), else_=func.coalesce(func.least(*times), literal("0")))
    changed = update(group).where(*conditions).values(free=of.free + literal("1"), last_at=now(), due_at=due_at)
    joined = changed.returning(of.last_at).cte("joined")
    return select(joined.c.last_at).add_cte(_item_of(joined))


def _item_of(joined: CTE) -> CTE:
    columns: dict[str, ColumnElement[Any]] = {"prefix": PREFIX, "at": joined.c.last_at, "attempts": literal("0")}
    columns |= {"token": literal("''")} | {name: bound(buffer.c[name], f"new_{name}") for name in OWN}
    return insert(buffer).from_select(list(columns), select(*columns.values()).select_from(joined)).cte("item")
