"""What is known of unresolved and rejected items beside the items themselves, in the table ``saga_kept``."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import BindParameter, ColumnElement, Delete, Integer, Select, Update, bindparam, delete, select, update

from celery_sagas.core.aggregators.rules import Rules
from celery_sagas.stores.items import Keeping
from celery_sagas.stores.sql.bulk import insert_rows
from celery_sagas.stores.sql.groups import GroupRow
from celery_sagas.stores.sql.items import REJECTED, UNRESOLVED, set_rejected, set_unresolved
from celery_sagas.stores.sql.remembered import remember
from celery_sagas.stores.sql.session import Session
from celery_sagas.stores.sql.statements import PREFIX, any_of, bound, in_parts
from celery_sagas.stores.sql.tables import buffer, kept

_LIMIT: BindParameter[int] = bindparam("limit", type_=Integer())
#: The longest text that is certainly the number of a row.
_DIGITS = 18


class KeptRow(NamedTuple):
    """A leftover, as those who change it see it."""

    handle: int
    grp: str
    number: int
    kind: str
    key: str


def keep(session: Session, rules: Rules, now: int, row: GroupRow, keepings: Sequence[Keeping]) -> None:
    """Keep leased items of a group."""
    unresolved = [each.number for each in keepings if each.kind == UNRESOLVED]
    rejected = [each.number for each in keepings if each.kind == REJECTED]
    set_unresolved(session, unresolved)
    remember(session, rules, now, [row], rejected)
    set_rejected(session, rejected)
    add_kept(session, [(row, each) for each in keepings])
    row.unresolved += len(unresolved)


def add_kept(session: Session, keepings: Iterable[tuple[GroupRow, Keeping]]) -> None:
    """Note why items are kept, in their order."""
    rows = [{"aggregator": row.aggregator, "grp": row.grp, "place": row.place, **each._asdict()} for row, each in keepings]
    insert_rows(session, kept, rows)


def find_kept(session: Session, name: str, handles: Sequence[str]) -> list[KeptRow]:
    """Return leftovers of an aggregator, the first that was kept first."""
    rows: set[KeptRow] = set()
    for count, given in in_parts(session.database, "handle", numbers_of(handles)):
        rows |= {KeptRow(*row) for row in session.fetch(_find, (count,), {"aggregator": name, **given})}
    return sorted(rows)


def forget_kept(session: Session, rows: Sequence[KeptRow]) -> None:
    """Forget why items were kept, which are not any more."""
    for count, given in in_parts(session.database, "handle", sorted(row.handle for row in rows)):
        session.change(_delete, (count,), given)


def forget_number(session: Session, place: str, number: int) -> None:
    """Forget why the unresolved item of a group with this number was kept."""
    session.change(_delete_number, (), {"place": place, "number": number})


def forget_unresolved(session: Session, place: str) -> None:
    """Forget why any unresolved item of a group was kept."""
    session.change(_delete_unresolved, (), {"place": place, "kind": UNRESOLVED})


def numbers_of(handles: Sequence[str]) -> list[int]:
    """Return the numbers in handles; a text that is no handle names nothing."""
    return sorted({int(handle) for handle in handles if handle.isascii() and handle.isdecimal() and len(handle) <= _DIGITS})


def select_kept(has_reader: bool) -> Select[Any]:
    """Select leftovers of a kind; with a reader, those that it has not tried."""
    shown = [kept.c.handle, kept.c.grp, buffer.c.id, buffer.c.payload, buffer.c.at, kept.c.kind, kept.c.note]
    is_item = (buffer.c.number == kept.c.number) & (buffer.c.prefix == PREFIX)
    follow = [*_are_of_kind(), kept.c.handle > bound(kept.c.handle, "after")]
    untried = [kept.c.note != bound(kept.c.note, "reader")] if has_reader else []
    return select(*shown).join_from(kept, buffer, is_item).where(*follow, *untried).order_by(kept.c.handle).limit(_LIMIT)


def update_notes(count: int) -> Update:
    """Change the notes on so many unresolved items."""
    are = [*_are_of_kind(), any_of(kept.c.handle, "handle", count)]
    return update(kept).where(*are).values(note=bound(kept.c.note, "reader"))


def _find(count: int) -> Select[Any]:
    columns: list[ColumnElement[Any]] = [kept.c.handle, kept.c.grp, kept.c.number, kept.c.kind, buffer.c.key]
    is_item = (buffer.c.number == kept.c.number) & (buffer.c.prefix == PREFIX)
    are = [_is_of_prefix(), kept.c.aggregator == bound(kept.c.aggregator, "aggregator"), any_of(kept.c.handle, "handle", count)]
    return select(*columns).join_from(kept, buffer, is_item).where(*are)


def _delete(count: int) -> Delete:
    return delete(kept).where(_is_of_prefix(), any_of(kept.c.handle, "handle", count))


def _delete_number() -> Delete:
    return delete(kept).where(*_are_of_group(), kept.c.number == bound(kept.c.number, "number"))


def _delete_unresolved() -> Delete:
    return delete(kept).where(*_are_of_group(), kept.c.kind == bound(kept.c.kind, "kind"))


def _are_of_kind() -> list[ColumnElement[bool]]:
    is_kind = kept.c.kind == bound(kept.c.kind, "kind")
    return [_is_of_prefix(), kept.c.aggregator == bound(kept.c.aggregator, "aggregator"), is_kind]


def _are_of_group() -> list[ColumnElement[bool]]:
    return [_is_of_prefix(), kept.c.place == bound(kept.c.place, "place")]


def _is_of_prefix() -> ColumnElement[bool]:
    return kept.c.prefix == PREFIX
