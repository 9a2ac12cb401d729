"""Sample items for tests of aggregators: an aggregator "store_readings", most often with the one group that has no name.

Every function takes the values that a test is about and fills in the rest. The clock stands still but for the test.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest

from celery_sagas.errors import LeaseLost
from celery_sagas.stores.items import Added, Addition, Group, Item, Keeping, Kept, NewItem, Rules, Snapshot
from celery_sagas.stores.ports import Backend
from celery_sagas.testing.samples import HOUR

NAME = "store_readings"
#: A lease token.
RUN = "one"
#: How long a lease lasts, and a mark.
LEASE = 10_000

#: A gate that only a person opens, one that two items open, and some that time opens.
CLOSED = Rules(NAME, lease_ms=LEASE)
PAIRS = Rules(NAME, size=2, lease_ms=LEASE)
HOURLY = Rules(NAME, within_ms=HOUR, lease_ms=LEASE)
IDLE = Rules(NAME, idle_ms=HOUR, lease_ms=LEASE)


def new_items(ids: Iterable[str], unread_by: str = "") -> tuple[NewItem, ...]:
    """Make items that are to be inserted."""
    return tuple(NewItem(id, f'{{"id": "{id}"}}', unread_by) for id in ids)


def numbered(count: int, stem: str = "item") -> list[str]:
    """Return ids that do not sort as they are counted."""
    return [f"{stem} {number}" for number in range(count)]


def add(backend: Backend, rules: Rules, *ids: str, group: str = "", unread_by: str = "") -> Added:
    """Insert items into one group."""
    [added] = backend.aggregates.insert(rules, [Addition(group, new_items(ids, unread_by))])
    return added


def flush(backend: Backend, rules: Rules, token: str = RUN, group: str = "") -> Snapshot:
    """Claim from a group whose gate must be open."""
    snapshot = backend.aggregates.claim(rules, group, token)
    assert snapshot is not None, "the gate is closed"
    return snapshot


def ids_of(items: Sequence[Item] | Sequence[Kept]) -> list[str]:
    """Return the items' ids."""
    return [item.id for item in items]


def taken_by(backend: Backend, rules: Rules, token: str = RUN, group: str = "") -> list[str]:
    """Claim, and return the ids; an empty list if the gate is closed."""
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
    """Return when somebody looks at a group, which must be there; 0: when its next item comes."""
    [found] = [each for each in backend.buffers.groups(NAME, 1_000) if each.group == group]
    return found.due_at


def unresolved(item: Item, note: str = "v1") -> Keeping:
    """Keep an item that the code of a flush could not read."""
    return Keeping(item.number, "unresolved", note)


def rejected(item: Item, note: str = "no such meter") -> Keeping:
    """Set an item aside."""
    return Keeping(item.number, "rejected", note)


KEEPINGS: Mapping[str, Callable[..., Keeping]] = {"unresolved": unresolved, "rejected": rejected}


def keep(backend: Backend, kind: str, *ids: str, group: str = "", run: str = "keeper") -> list[Kept]:
    """Insert items, and keep them all in this order; return everything that was kept of that kind by now."""
    rules = CLOSED._replace(size=len(ids))
    add(backend, rules, *sorted(ids), group=group)
    items = {item.id: item for item in flush(backend, rules, run, group).items}
    backend.aggregates.remove(rules, group, run, [KEEPINGS[kind](items[id], "v1") for id in ids])
    return backend.leftovers.kept(NAME, kind, 10_000)


@contextmanager
def lease_lost(token: str = RUN, group: str = "", name: str = NAME) -> Iterator[None]:
    """Expect a LeaseLost that tells whose it was."""
    with pytest.raises(LeaseLost) as caught:
        yield
    assert (caught.value.aggregator, caught.value.group, caught.value.token) == (name, group, token)


#: Everything that can be seen of an aggregator: its groups, their items, and what was kept.
Sight = tuple[list[Group], list[list[Item]], list[Kept], list[Kept]]


def sight(backend: Backend, name: str = NAME) -> Sight:
    """Look at everything, and change nothing."""
    groups = backend.buffers.groups(name, 1_000)
    items = [backend.buffers.read(name, group.group, 10_000) for group in groups]
    return (
        groups,
        items,
        backend.leftovers.kept(name, "unresolved", 10_000),
        backend.leftovers.kept(name, "rejected", 10_000),
    )


@contextmanager
def nothing_changed(backend: Backend, name: str = NAME) -> Iterator[None]:
    """Expect that everything is as it was before."""
    before = sight(backend, name)
    yield
    assert sight(backend, name) == before
