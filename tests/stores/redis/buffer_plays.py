"""Things done with buffers, each ending with another script; they leave different groups behind."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from celery_sagas.stores.items import Addition, NewItem, Rules, Snapshot
from celery_sagas.stores.records import DeadLetter
from celery_sagas.stores.redis.aggregators.aggregates import RedisAggregateStore
from celery_sagas.stores.redis.backend import RedisBackend
from celery_sagas.testing.batches import dead_letters_of, sends_of
from celery_sagas.testing.samples import HOUR, MINUTE
from tests.stores.redis.damage import FORGET
from tests.stores.redis.times import let_time_pass

RULES = Rules("agg", size=3, within_ms=MINUTE, remember_ms=HOUR, lease_ms=MINUTE)


def insert_items(backend: RedisBackend) -> None:
    """Insert items of two groups, some of them unresolved; a flush is wanted of the first."""
    additions = [addition("full", "abc"), addition("new{}:é", "ab", ends_unreadable=True)]
    added = backend.aggregates.insert(RULES, additions)
    assert [each.needs_flush for each in added] == [True, False]


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


def remove_and_send(backend: RedisBackend) -> None:
    """Remove all items of a lease, and send two messages, one of them later."""
    claim_items(backend)
    sends = sends_of(backend, "m1", "m2", group="full", run="token", rules=RULES)
    first, second = sends.outgoing
    sends = sends._replace(outgoing=(first, second._replace(due_at=1)), owner="owner", grace_ms=MINUTE)
    backend.aggregates.remove(RULES, "full", "token", sends=sends)


def reject_items(backend: RedisBackend) -> DeadLetter:
    """Let the first item be rejected, the second be unresolved, and the third be removed; return the dead letter."""
    backend.aggregates.insert(RULES, [addition("divided", "xyz")])
    snapshot = backend.aggregates.claim(RULES, "divided", "token")
    assert snapshot
    exceptions = divided(snapshot, "divided")
    backend.aggregates.remove(RULES, "divided", "token", **exceptions)
    [dead_letter] = exceptions["rejected"]
    return dead_letter


def release_items(backend: RedisBackend) -> None:
    """Release all items of a lease, for later."""
    claim_items(backend)
    backend.aggregates.release(RULES, "full", "token", delay_ms=MINUTE)


def release_and_reject(backend: RedisBackend) -> None:
    """Release an item of three, reject one, and leave one unresolved."""
    backend.aggregates.insert(RULES, [addition("released", "xyz")])
    snapshot = backend.aggregates.claim(RULES, "released", "token")
    assert snapshot
    backend.aggregates.release(RULES, "released", "token", **divided(snapshot, "released"))


def claim_due_groups(backend: RedisBackend) -> None:
    """Request the flushes of two of three groups that are due."""
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
    reject_items(backend)
    assert backend.buffers.names() == ["agg"]
    backend.buffers.count("agg")
    backend.buffers.count("agg", "divided")
    backend.buffers.groups("agg", 9)
    backend.buffers.read("agg", "divided", 9)
    assert len(backend.buffers.unresolved("agg", 9)) == 1


def fire_trigger(backend: RedisBackend) -> None:
    """Fire a trigger."""
    backend.aggregates.insert(RULES, [addition("asked", "a")])
    assert backend.buffers.fire(RULES, "asked")


def remove_one(backend: RedisBackend) -> None:
    """Remove an unresolved item, then a free one."""
    insert_items(backend)
    backend.buffers.remove(RULES, "new{}:é", "a")
    backend.buffers.remove(RULES, "full", "b")


def clear(backend: RedisBackend) -> None:
    """Clear a group with a lease, after one with an unresolved item."""
    claim_items(backend)
    reject_items(backend)
    assert backend.buffers.clear(RULES, "divided") == 1
    assert backend.buffers.clear(RULES, "full") == 3


def resolve(backend: RedisBackend) -> None:
    """Free an unresolved item."""
    reject_items(backend)
    [(group, item)] = backend.buffers.unresolved("agg", 9)
    assert backend.aggregates.resolve(RULES, group, [item.number]) == 1


def restore(backend: RedisBackend) -> None:
    """Put back a rejected item."""
    assert backend.aggregates.restore(RULES, reject_items(backend))


def addition(group: str, ids: Sequence[str], *, ends_unreadable: bool = False) -> Addition:
    """Return items, of which the last may be unreadable."""
    unreadable = [False] * (len(ids) - 1) + [ends_unreadable]
    return Addition(group, tuple(NewItem(id, f'"{id}"', each) for id, each in zip(ids, unreadable, strict=True)))


def divided(snapshot: Snapshot, group: str = "") -> dict[str, Any]:
    """Reject the first of three items, and leave the second unresolved."""
    first, second, _ = snapshot.items
    return {"rejected": dead_letters_of(first, group=group, name="agg"), "unreadable": [second.number]}


def empty_buffers(backend: RedisBackend) -> None:
    """Remove everything, and forget that it was there."""
    for group in backend.buffers.groups("agg", 99):
        backend.buffers.clear(RULES, group.group)
    for dead_letter in backend.dead.list(99):
        backend.dead.remove(dead_letter.id)
    backend.client.run(FORGET, [backend._placement.shards[0].buffers.seen], [])


#: Each does one thing, for which it arranges something first.
BUFFER_PLAYS: tuple[Callable[[RedisBackend], object], ...] = (
    insert_items,
    claim_items,
    claim_items_again,
    renew,
    remove_items,
    remove_and_send,
    reject_items,
    release_items,
    release_and_reject,
    claim_due_groups,
    forget_ids,
    look_at_buffers,
    fire_trigger,
    remove_one,
    clear,
    resolve,
    restore,
)
