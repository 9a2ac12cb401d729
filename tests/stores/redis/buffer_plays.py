"""Things done with buffers, each ending with another script; they leave different groups behind."""

import time
from collections.abc import Callable, Sequence

from celery_sagas.stores.items import Addition, Keeping, Kept, NewItem, Rules, Snapshot
from celery_sagas.stores.redis.aggregates import RedisAggregateStore
from celery_sagas.stores.redis.backend import RedisBackend
from celery_sagas.testing.samples import HOUR, MINUTE
from tests.stores.redis.damage import FORGET
from tests.stores.redis.times import let_time_pass

RULES = Rules("agg", size=3, within_ms=MINUTE, remember_ms=HOUR, lease_ms=MINUTE)


def insert_items(backend: RedisBackend) -> None:
    """Insert items of two groups, some of them unresolved; a flush is wanted of the first."""
    additions = [addition("full", "abc"), addition("new{}:é", "ab", unread_by="old")]
    added = backend.aggregates.insert(RULES, additions)
    assert [each.is_open for each in added] == [True, False]


def claim_items(backend: RedisBackend) -> None:
    """Lease the items whose flush is wanted."""
    insert_items(backend)
    backend.aggregates.claim(RULES, "full", "token")


def claim_items_again(backend: RedisBackend) -> None:
    """Claim what another's lease has ended on."""
    backend.aggregates.insert(RULES, [addition("again", "abc")])
    assert backend.aggregates.claim(RULES._replace(lease_ms=1), "again", "lost")
    let_time_pass(backend)
    assert backend.aggregates.claim(RULES, "again", "token")


def renew(backend: RedisBackend) -> None:
    """Begin the time of a lease anew."""
    claim_items(backend)
    at = time.time_ns() // 1_000_000 + HOUR  # a repeat is of the same time
    later = RedisAggregateStore(backend.client, backend._placement, lambda: at)
    assert later.renew(RULES, "full", "token")


def remove_items(backend: RedisBackend) -> None:
    """Remove all items of a lease."""
    claim_items(backend)
    backend.aggregates.remove(RULES, "full", "token")


def keep_items(backend: RedisBackend) -> list[Kept]:
    """Let the first item be rejected, the second be unresolved, and the third be removed."""
    backend.aggregates.insert(RULES, [addition("kept", "xyz")])
    snapshot = backend.aggregates.claim(RULES, "kept", "token")
    assert snapshot
    backend.aggregates.remove(RULES, "kept", "token", keeping(snapshot))
    return [*backend.leftovers.kept("agg", "rejected", 9), *backend.leftovers.kept("agg", "unresolved", 9)]


def release_items(backend: RedisBackend) -> None:
    """Release all items of a lease, for later."""
    claim_items(backend)
    backend.aggregates.release(RULES, "full", "token", delay_ms=MINUTE)


def release_and_keep(backend: RedisBackend) -> None:
    """Release an item of three, and keep the others."""
    backend.aggregates.insert(RULES, [addition("released", "xyz")])
    snapshot = backend.aggregates.claim(RULES, "released", "token")
    assert snapshot
    backend.aggregates.release(RULES, "released", "token", keeping(snapshot))


def claim_due_groups(backend: RedisBackend) -> None:
    """Mark two of three groups that are due."""
    at_once = RULES._replace(lease_ms=1)
    backend.aggregates.insert(at_once, [addition(group, "abc") for group in ("due", "due-too", "due-as-well")])
    let_time_pass(backend)
    assert len(backend.aggregates.claim_due(["agg", "other"], 2, MINUTE)) == 2


def forget_ids(backend: RedisBackend) -> None:
    """Forget two of three ids."""
    soon = RULES._replace(remember_ms=1)
    backend.aggregates.insert(soon, [addition("forgotten", "abc")])
    backend.buffers.clear(soon, "forgotten")
    let_time_pass(backend)
    assert backend.aggregates.purge(2) == 2


def look_at_buffers(backend: RedisBackend) -> None:
    """Read everything."""
    keep_items(backend)
    assert backend.buffers.names() == ["agg"]
    backend.buffers.count("agg")
    backend.buffers.count("agg", "kept")
    backend.buffers.groups("agg", 9)
    backend.buffers.read("agg", "kept", 9)
    backend.leftovers.unread("agg", "new", 9)


def open_gate(backend: RedisBackend) -> None:
    """Open a gate."""
    backend.aggregates.insert(RULES, [addition("asked", "a")])
    assert backend.buffers.open(RULES, "asked")


def remove_one(backend: RedisBackend) -> None:
    """Remove an unresolved item, then a free one."""
    insert_items(backend)
    backend.buffers.remove(RULES, "new{}:é", "a")
    backend.buffers.remove(RULES, "full", "b")


def clear(backend: RedisBackend) -> None:
    """Clear a group with a lease, after one with an unresolved item."""
    claim_items(backend)
    keep_items(backend)
    assert backend.buffers.clear(RULES, "kept") == 1
    assert backend.buffers.clear(RULES, "full") == 3


def note(backend: RedisBackend) -> None:
    """Note that another reader cannot read an item either."""
    handles = [kept.handle for kept in keep_items(backend)]
    assert backend.leftovers.note("agg", handles, "new") == 1


def put_back(backend: RedisBackend) -> None:
    """Put back an unresolved item, and a rejected one."""
    handles = [kept.handle for kept in keep_items(backend)]
    assert backend.leftovers.put_back(RULES, handles) == 2


def discard(backend: RedisBackend) -> None:
    """Discard an unresolved item, and a rejected one."""
    handles = [kept.handle for kept in keep_items(backend)]
    assert backend.leftovers.discard(RULES, handles) == 2


def addition(group: str, ids: Sequence[str], unread_by: str = "") -> Addition:
    """Return items, of which the last may be one that its code cannot read."""
    readers = [""] * (len(ids) - 1) + [unread_by]
    return Addition(group, tuple(NewItem(id, f'"{id}"', reader) for id, reader in zip(ids, readers, strict=True)))


def keeping(snapshot: Snapshot) -> list[Keeping]:
    first, second, _ = snapshot.items
    return [Keeping(first.number, "rejected", "broken"), Keeping(second.number, "unresolved", "old")]


def empty_buffers(backend: RedisBackend) -> None:
    """Remove everything, and forget that it was there."""
    for group in backend.buffers.groups("agg", 99):
        backend.buffers.clear(RULES, group.group)
    backend.leftovers.discard(RULES, [kept.handle for kept in backend.leftovers.kept("agg", "rejected", 99)])
    backend.client.run(FORGET, [backend._placement.shards[0].buffers.seen], [])


#: Each does one thing, for which it arranges something first.
BUFFER_PLAYS: tuple[Callable[[RedisBackend], object], ...] = (
    insert_items,
    claim_items,
    claim_items_again,
    renew,
    remove_items,
    keep_items,
    release_items,
    release_and_keep,
    claim_due_groups,
    forget_ids,
    look_at_buffers,
    open_gate,
    remove_one,
    clear,
    note,
    put_back,
    discard,
)
