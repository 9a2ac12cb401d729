"""Items in the table ``saga_buffer``, and ids of removed ones in ``saga_seen``. Callers that change any have locked their group.

Changes and removals select items by their numbers alone: a condition on the group might make MySQL read, and wait for, the
items of other groups.
"""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Delete,
    Insert,
    Select,
    Update,
    and_,
    delete,
    func,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy import literal_column as literal
from sqlalchemy.sql.selectable import CompoundSelect

from celery_sagas.core.aggregators.rules import Rules
from celery_sagas.stores.items import Item
from celery_sagas.stores.sql.aggregators.groups import GroupRow
from celery_sagas.stores.sql.connection.bulk import NewRows, insert_into, or_change
from celery_sagas.stores.sql.connection.database import Row, SqlSession
from celery_sagas.stores.sql.connection.statements import LIMIT, PREFIX, any_of, bound, in_parts, numbered
from celery_sagas.stores.sql.tables import buffer, group, has_unresolved, seen

FREE, LEASED, UNRESOLVED = "free", "leased", "unresolved"
STATES = (FREE, LEASED, UNRESOLVED)

#: In the order of ``Item``'s fields.
_ITEM: list[ColumnElement[Any]] = [buffer.c[name] for name in Item._fields]
#: How many items are removed at once when all are.
_AT_ONCE = 5_000


def known_keys(session: SqlSession, keys: Sequence[str], now: int) -> set[str]:
    """Return which keys are those of buffered items, or of items that were removed and are remembered.

    The times are compared here: as a condition, they might make a database read all keys whose time has not passed.
    """
    return still_known(session.fetch_any(select_known, "key", keys), now)


def still_known(rows: Sequence[Row], now: int) -> set[str]:
    """Return the keys in the rows of ``select_known`` whose time has not passed."""
    return {key for key, ends_at in rows if not 0 < ends_at <= now}


def select_known(count: int) -> CompoundSelect[Any]:
    """Select keys, with the time until when they are remembered; 0: they are buffered."""
    buffered = select(buffer.c.key, literal("0", BigInteger()).label("ends_at")).where(*_are_buffered(count))
    is_seen = [seen.c.prefix == PREFIX, any_of(seen.c.key, "key", count)]
    return union_all(buffered, select(seen.c.key, seen.c.ends_at).where(*is_seen))


def _are_buffered(count: int) -> list[ColumnElement[bool]]:
    return [buffer.c.prefix == PREFIX, any_of(buffer.c.key, "key", count)]


def first_items(session: SqlSession, group_digest: str, states: Sequence[str], limit: int, after: int = 0) -> list[Item]:
    """Return the first items of a group that are in these states and follow a number, in the order of insertion."""
    values = {"group_digest": group_digest, "limit": limit, **numbered("state", states)}
    if after:
        values["after"] = after
    return [Item(*row) for row in session.fetch(_first, (len(states), bool(after)), values)]


def _first(count: int, has_after: bool) -> Select[Any]:
    """Take the first ones of each state, so that the index by state has them in order."""
    follow = [buffer.c.number > bound(buffer.c.number, "after")] if has_after else []
    states = [_of_state(f"state_{number}").where(*follow) for number in range(count)]
    each = [state.order_by(buffer.c.number).limit(LIMIT).subquery() for state in states]
    items = union_all(*(select(part) for part in each)).subquery("items")
    return select(items).order_by(items.c.number).limit(LIMIT)


def _of_state(parameter: str) -> Select[Any]:
    return select(*_ITEM).where(*_is_in(parameter))


def _is_in(parameter: str) -> list[ColumnElement[bool]]:
    is_in_group = [buffer.c.prefix == PREFIX, buffer.c.group_digest == bound(buffer.c.group_digest, "group_digest")]
    return [*is_in_group, buffer.c.state == bound(buffer.c.state, parameter)]


def unresolved_among(session: SqlSession, group_digest: str, numbers: Collection[int]) -> list[int]:
    """Return which items of a group are unresolved."""
    common = {"group_digest": group_digest, "state": UNRESOLVED}
    return sorted({number for (number,) in session.fetch_any(_among, "number", sorted(numbers), common)})


def _among(count: int) -> Select[Any]:
    return select(buffer.c.number).where(*_are(count), *_is_in("state"))


def select_unresolved(has_after: bool) -> Select[Any]:
    """Select unresolved items of an aggregator, with their groups, one group after the other."""
    is_item = (buffer.c.group_digest == group.c.group_digest) & (buffer.c.prefix == PREFIX)
    are = [group.c.prefix == PREFIX, group.c.aggregator == bound(group.c.aggregator, "aggregator"), has_unresolved(group)]
    group_digest, number = bound(group.c.group_digest, "group_digest"), bound(buffer.c.number, "number")
    follow = (
        [or_(group.c.group_digest > group_digest, and_(group.c.group_digest == group_digest, buffer.c.number > number))]
        if has_after
        else []
    )
    items = select(group.c.grp, *_ITEM).join_from(group, buffer, is_item)
    is_unresolved = buffer.c.state == bound(buffer.c.state, "state")
    return items.where(*are, is_unresolved, *follow).order_by(group.c.group_digest, buffer.c.number).limit(LIMIT)


def leased_items(session: SqlSession, group_digest: str, token: str) -> list[Item]:
    """Return the items of a lease, in the order of insertion."""
    return [Item(*row) for row in session.fetch(_leased, (), _leased_values(group_digest, token))]


def leased_numbers(session: SqlSession, group_digest: str, token: str) -> list[int]:
    """Return the numbers of the items of a lease, sorted."""
    return [number for (number,) in session.fetch(_leased_numbers, (), _leased_values(group_digest, token))]


def _leased_values(group_digest: str, token: str) -> dict[str, object]:
    return {"group_digest": group_digest, "state": LEASED, "token": token}


def _leased() -> Select[Any]:
    return _of_state("state").where(buffer.c.token == bound(buffer.c.token, "token")).order_by(buffer.c.number)


def _leased_numbers() -> Select[Any]:
    return _leased().with_only_columns(buffer.c.number)


def item_of_key(session: SqlSession, key: str) -> tuple[int, str] | None:
    """Return the number and the state of the buffered item with a key."""
    rows = session.fetch(_item_of_key, (), {"key_0": key})
    return (rows[0][0], rows[0][1]) if rows else None


def _item_of_key() -> Select[Any]:
    return select(buffer.c.number, buffer.c.state).where(*_are_buffered(1))


def last_number(session: SqlSession, group_digest: str, state: str) -> int:
    """Return the number of the last item of a group that is in a state; 0 if none is."""
    ((number,),) = session.fetch(_last_number, (), {"group_digest": group_digest, "state": state})
    return int(number or 0)


def _last_number() -> Select[Any]:
    return select(func.max(buffer.c.number)).where(*_is_in("state"))


def numbers_in(session: SqlSession, group_digest: str, state: str) -> list[int]:
    """Return the numbers of some items of a group that are in a state, as long as there are any."""
    return [number for number, _ in session.fetch(_oldest, (), {"group_digest": group_digest, "state": state, "limit": _AT_ONCE})]


def look_at_oldest(session: SqlSession, row: GroupRow) -> None:
    """Note which free item of a group is the first."""
    found = session.fetch(_oldest, (), {"group_digest": row.group_digest, "state": FREE, "limit": 1}) if row.free else []
    row.oldest, row.oldest_at = found[0] if found else (0, 0)


def _oldest() -> Select[Any]:
    return select(buffer.c.number, buffer.c.at).where(*_is_in("state")).order_by(buffer.c.number).limit(LIMIT)


def lease(session: SqlSession, numbers: Sequence[int], token: str) -> None:
    """Put free items under a lease."""
    session.change_any(_set_state, "number", sorted(numbers), {"new_state": LEASED, "new_token": token})


def free(session: SqlSession, numbers: Sequence[int], attempts: int) -> None:
    """End the lease on items; this many attempts are counted on each."""
    session.change_any(_free, "number", sorted(numbers), {"new_state": FREE, "new_token": "", "more": attempts})


def free_as_new(session: SqlSession, numbers: Sequence[int]) -> None:
    """Make unresolved items free, as if they had never been tried."""
    session.change_any(_free_as_new, "number", sorted(numbers), {"new_state": FREE, "new_token": ""})


def set_unresolved(session: SqlSession, numbers: Sequence[int]) -> None:
    """Leave leased items in the buffer as unresolved ones."""
    session.change_any(_set_state, "number", sorted(numbers), {"new_state": UNRESOLVED, "new_token": ""})


def remove(session: SqlSession, rules: Rules, now: int, row: GroupRow, numbers: Sequence[int]) -> None:
    """Remove items of a group permanently; their ids are remembered, if the rules say so."""
    if rules.remember_ms and numbers:
        row.removals += 1
        for count, given in in_parts(session.database, "number", sorted(numbers)):
            session.change(_remember, (session.database, count), {"ends_at": now + rules.remember_ms, **given})
    session.change_any(_delete, "number", sorted(numbers))


def _are(count: int) -> list[ColumnElement[bool]]:
    """Conditions: the items with these numbers."""
    return [buffer.c.prefix == PREFIX, any_of(buffer.c.number, "number", count)]


def _set_state(count: int) -> Update:
    state, token = bound(buffer.c.state, "new_state"), bound(buffer.c.token, "new_token")
    return update(buffer).where(*_are(count)).values(state=state, token=token)


def _free(count: int) -> Update:
    return _set_state(count).values(attempts=buffer.c.attempts + bound(buffer.c.attempts, "more"))


def _free_as_new(count: int) -> Update:
    return _set_state(count).values(attempts=literal("0"))


def _remember(database: str, count: int) -> Insert:
    """Insert the ids of items; those that are remembered already are so from now on."""
    columns: list[ColumnElement[Any]] = [PREFIX, buffer.c.key, bound(seen.c.ends_at, "ends_at")]
    ids = select(*columns).where(*_are(count)).order_by(buffer.c.number)
    rows: NewRows = insert_into(seen, database).from_select(["prefix", "key", "ends_at"], ids)
    return or_change(rows, "ends_at")


def _delete(count: int) -> Delete:
    return delete(buffer).where(*_are(count))
