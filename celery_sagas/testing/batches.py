"""Sample items for tests of aggregators: an aggregator "store_readings", most often with the one group that has no name.

Every function takes the values that a test is about and fills in the rest. The clock moves only when the test moves it.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from celery_sagas.core.ids import derived_id, row_id
from celery_sagas.errors import LeaseLost
from celery_sagas.stores.items import Added, Addition, Group, Item, NewItem, Rules, Snapshot
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import DeadLetter, Outgoing, Sends
from celery_sagas.testing.samples import HOUR

NAME = "store_readings"
#: A lease token.
RUN = "one"
#: How long a lease lasts, and a flush request.
LEASE = 10_000

#: A trigger that only an operator fires, one that two items fire, and some that time fires.
CLOSED = Rules(NAME, lease_ms=LEASE)
PAIRS = Rules(NAME, size=2, lease_ms=LEASE)
HOURLY = Rules(NAME, within_ms=HOUR, lease_ms=LEASE)
IDLE = Rules(NAME, idle_ms=HOUR, lease_ms=LEASE)


def new_items(ids: Iterable[str], is_unreadable: bool = False) -> tuple[NewItem, ...]:
    """Make items to insert."""
    return tuple(NewItem(id, f'{{"id": "{id}"}}', is_unreadable) for id in ids)


def numbered(count: int, stem: str = "item") -> list[str]:
    """Return ids that do not sort as they are counted."""
    return [f"{stem} {number}" for number in range(count)]


def add(backend: Backend, rules: Rules, *ids: str, group: str = "", is_unreadable: bool = False) -> Added:
    """Insert items into one group."""
    [added] = backend.aggregates.insert(rules, [Addition(group, new_items(ids, is_unreadable))])
    return added


def flush(backend: Backend, rules: Rules, token: str = RUN, group: str = "") -> Snapshot:
    """Claim from a group whose trigger must have fired."""
    snapshot = backend.aggregates.claim(rules, group, token)
    assert snapshot is not None, "the trigger has not fired"
    return snapshot


def ids_of(items: Sequence[Item]) -> list[str]:
    """Return the items' ids."""
    return [item.id for item in items]


def taken_by(backend: Backend, rules: Rules, token: str = RUN, group: str = "") -> list[str]:
    """Claim, and return the ids; an empty list if the trigger has not fired."""
    snapshot = backend.aggregates.claim(rules, group, token)
    return ids_of(snapshot.items) if snapshot else []


def buffered(backend: Backend, group: str = "", name: str = NAME) -> list[str]:
    """Return the ids of the buffered items in their order."""
    return ids_of(backend.buffers.read(name, group, 10_000))


def states(backend: Backend, group: str = "") -> dict[str, str]:
    """Return the state of each buffered item."""
    return {item.id: item.state for item in backend.buffers.read(NAME, group, 10_000)}


def attempts(backend: Backend, group: str = "") -> dict[str, int]:
    """Return how many flushes of each buffered item have failed."""
    return {item.id: item.attempts for item in backend.buffers.read(NAME, group, 10_000)}


def due_at(backend: Backend, group: str = "") -> int:
    """Return when a group, which must exist, is due; 0: when its next item comes."""
    [found] = [each for each in backend.buffers.groups(NAME, 1_000) if each.group == group]
    return found.due_at


def numbers_of(*items: Item) -> list[int]:
    """Return the items' numbers."""
    return [item.number for item in items]


def dead_letters_of(*items: Item, group: str = "", name: str = NAME, text: str = "no such meter") -> list[DeadLetter]:
    """Make the dead letters of items that are rejected."""
    return [
        DeadLetter(
            id=derived_id(f"{name}/{group}", f"{item.number}"),
            task=name,
            message_id=item.id,
            saga="",
            key=group,
            error="ItemRejected",
            text=text,
            traceback="",
            payload=item.payload,
            number=item.number,
            buffered_at=item.at,
        )
        for item in items
    ]


def reject(backend: Backend, *ids: str, group: str = "", run: str = "rejecter") -> list[DeadLetter]:
    """Insert items, and reject them all, the first one first; return their dead letters."""
    rules = CLOSED._replace(size=len(ids))
    add(backend, rules, *ids, group=group)
    dead_letters = dead_letters_of(*flush(backend, rules, run, group).items, group=group)
    backend.aggregates.remove(rules, group, run, rejected=dead_letters)
    return dead_letters


def sends_of(
    backend: Backend,
    *ids: str,
    group: str = "",
    run: str = RUN,
    rules: Rules = CLOSED,
    due_at: int = 0,
    payload: str = '{"args": []}',
) -> Sends:
    """Make what a removal sends: messages with these ids."""
    new_id = backend.aggregates.new_id(rules, group)
    rows = [Outgoing(row_id(new_id, number), "sent", id, "shop.ship", payload, due_at) for number, id in enumerate(ids)]
    return Sends(tuple(rows), rules.name, run)


def unresolved(backend: Backend, name: str = NAME) -> list[tuple[str, str]]:
    """Return the groups and the ids of all unresolved items."""
    return [(group, item.id) for group, item in backend.buffers.unresolved(name, 10_000)]


def resolve(backend: Backend, rules: Rules, group: str = "") -> int:
    """Make all unresolved items of a group free."""
    numbers = [item.number for of, item in backend.buffers.unresolved(rules.name, 10_000) if of == group]
    return backend.aggregates.resolve(rules, group, numbers)


@contextmanager
def lease_lost(token: str = RUN, group: str = "", name: str = NAME) -> Iterator[None]:
    """Expect a LeaseLost that names the token and the group."""
    with pytest.raises(LeaseLost) as caught:
        yield
    assert (caught.value.aggregator, caught.value.group, caught.value.token) == (name, group, token)


#: Everything that can be seen of an aggregator: its groups, their items, and those that are unresolved; and all dead letters.
Sight = tuple[list[Group], list[list[Item]], list[tuple[str, Item]], list[DeadLetter]]


def sight(backend: Backend, name: str = NAME) -> Sight:
    """Return everything that can be seen, and change nothing."""
    groups = backend.buffers.groups(name, 1_000)
    items = [backend.buffers.read(name, group.group, 10_000) for group in groups]
    return groups, items, backend.buffers.unresolved(name, 10_000), backend.dead.list(10_000)


@contextmanager
def nothing_changed(backend: Backend, name: str = NAME) -> Iterator[None]:
    """Expect that everything is as it was before."""
    before = sight(backend, name)
    yield
    assert sight(backend, name) == before
