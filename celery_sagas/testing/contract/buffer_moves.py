"""What the two sides of an interleaving do to a buffer: moves in a small world, whose answers can be compared."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count, takewhile

from celery_sagas.stores.items import Addition, Item, Keeping, Rules
from celery_sagas.stores.ports import Backend
from celery_sagas.testing.batches import add, new_items
from celery_sagas.testing.clock import Clock

#: Does something in a world; what it returns is compared.
BufferMove = Callable[[Backend, "BufferWorld"], object]

LEASE = 1_000
_tags = count()


@dataclass
class BufferWorld:
    """A buffer that may have seven items, and has five.

    "a" and "b" are leased by the run "one"; the lease has ended, and nobody has given it up. "c" and "d" are free, and open
    the gate; "e" is unresolved. "x" was rejected, and "y" removed; both are remembered no more.
    """

    rules: Rules = field(
        default_factory=lambda: Rules(f"readings {next(_tags)}", size=2, max_buffered=7, remember_ms=LEASE, lease_ms=LEASE)
    )
    numbers: dict[str, int] = field(default_factory=dict)  #: of the leased items
    handles: list[str] = field(default_factory=list)  #: of what was kept

    def arrange(self, backend: Backend, clock: Clock) -> None:
        """Make the world."""
        self._flush(backend, "zero", "x", "y")
        backend.aggregates.remove(self.rules, "", "zero", [Keeping(self.numbers["x"], "rejected", "broken")])
        self._flush(backend, "one", "a", "b")
        clock.advance(LEASE)
        add(backend, self.rules, "c", "d")
        add(backend, self.rules, "e", unread_by="v1")
        kinds = ("unresolved", "rejected")
        self.handles = [kept.handle for kind in kinds for kept in backend.leftovers.kept(self.rules.name, kind, 9)]

    def _flush(self, backend: Backend, token: str, *ids: str) -> None:
        add(backend, self.rules, *ids)
        snapshot = backend.aggregates.claim(self.rules, "", token)
        assert snapshot is not None
        self.numbers = {item.id: item.number for item in snapshot.items}

    def aftermath(self, backend: Backend, clock: Clock) -> object:
        """Return everything that can be observed, now and when all leases have ended, and empty the buffer."""
        before = self._sight(backend, clock)
        clock.advance(9 * LEASE)
        due = backend.aggregates.claim_due([self.rules.name], 9, LEASE)
        flushes = (self._drain(backend, f"observer {number}") for number in range(9))
        return before, len(due), list(takewhile(bool, flushes)), self._sight(backend, clock)

    def _sight(self, backend: Backend, clock: Clock) -> object:
        name = self.rules.name
        groups = backend.buffers.groups(name, 9)
        due = ["at once" if 0 < group.due_at <= clock.now else group.due_at for group in groups]
        items = [_shown(item) for item in backend.buffers.read(name, "", 99)]
        kept = [backend.leftovers.kept(name, kind, 99) for kind in ("unresolved", "rejected")]
        notes = [(each.id, each.payload, each.kind, each.note) for kind in kept for each in kind]
        return backend.buffers.count(name), [group._replace(due_at=0) for group in groups], due, items, notes

    def _drain(self, backend: Backend, token: str) -> object:
        taken = claim_by(backend, self, token)
        return taken and (taken, backend.aggregates.remove(self.rules, "", token))


def _shown(item: Item) -> object:
    return item.id, item.payload, item.attempts, item.state


def claim_by(backend: Backend, world: BufferWorld, token: str) -> object:
    """Claim, and return what does not differ between stores."""
    snapshot = backend.aggregates.claim(world.rules, "", token)
    if snapshot is None:
        return None
    items = [(item.id, item.payload, item.attempts) for item in snapshot.items]
    return items, snapshot.reason, snapshot.unresolved, snapshot.is_more


def insert_items(backend: Backend, world: BufferWorld) -> object:
    """Insert "f", and "y" once more: there is room for two."""
    return backend.aggregates.insert(world.rules, [Addition("", new_items("fy"))])


def insert_other_items(backend: Backend, world: BufferWorld) -> object:
    """Insert "y" too, and "a", which is there."""
    return backend.aggregates.insert(world.rules, [Addition("", new_items("ya"))])


def insert_what_fills_it(backend: Backend, world: BufferWorld) -> object:
    """Insert "g" and "h": then there is no room for others."""
    return backend.aggregates.insert(world.rules, [Addition("", new_items("gh"))])


def insert_again(backend: Backend, world: BufferWorld) -> object:
    """Insert what is there, or was there a moment ago."""
    return backend.aggregates.insert(world.rules, [Addition("", new_items("abcd"))])


def look_again(backend: Backend, world: BufferWorld) -> object:
    """Insert nothing: the gate is looked at."""
    return backend.aggregates.insert(world.rules, [Addition("", ())])


def claim_items(backend: Backend, world: BufferWorld) -> object:
    """Claim for the run "two"."""
    return claim_by(backend, world, "two")


def claim_items_for_another(backend: Backend, world: BufferWorld) -> object:
    """Claim for the run "three"."""
    return claim_by(backend, world, "three")


def renew_lease(backend: Backend, world: BufferWorld) -> object:
    """Renew the lease of "one"."""
    return backend.aggregates.renew(world.rules, "", "one")


def end_lease(backend: Backend, world: BufferWorld) -> object:
    """Remove what "one" has leased."""
    return backend.aggregates.remove(world.rules, "", "one")


def end_lease_and_keep(backend: Backend, world: BufferWorld) -> object:
    """Keep what "one" has leased: nothing is removed for good."""
    kept = [Keeping(world.numbers["b"], "rejected", "broken"), Keeping(world.numbers["a"], "unresolved", "v2")]
    return backend.aggregates.remove(world.rules, "", "one", kept)


def release_items(backend: Backend, world: BufferWorld) -> object:
    """Release what "one" has leased, and reject one of it."""
    return backend.aggregates.release(world.rules, "", "one", [Keeping(world.numbers["a"], "rejected", "broken")])


def release_for_later(backend: Backend, world: BufferWorld) -> object:
    """Release what "one" has leased, and let the group pause."""
    return backend.aggregates.release(world.rules, "", "one", delay_ms=2 * LEASE)


def claim_due_groups(backend: Backend, world: BufferWorld) -> object:
    """Ask for the flush."""
    return len(backend.aggregates.claim_due([world.rules.name], 9, LEASE))


def open_gate(backend: Backend, world: BufferWorld) -> object:
    """Open the gate by hand."""
    return backend.buffers.open(world.rules, "")


def remove_item(backend: Backend, world: BufferWorld) -> object:
    """Remove "c" by hand."""
    return backend.buffers.remove(world.rules, "", "c")


def clear_buffer(backend: Backend, world: BufferWorld) -> object:
    """Remove everything by hand."""
    return backend.buffers.clear(world.rules, "")


def put_items_back(backend: Backend, world: BufferWorld) -> object:
    """Put back what was unresolved and rejected at the beginning."""
    return backend.leftovers.put_back(world.rules, world.handles)


def discard_items(backend: Backend, world: BufferWorld) -> object:
    """Remove what was unresolved and rejected at the beginning."""
    return backend.leftovers.discard(world.rules, world.handles)


def note_items(backend: Backend, world: BufferWorld) -> object:
    """Note that other code cannot read it either."""
    return backend.leftovers.note(world.rules.name, world.handles, "v3")


OPERATIONS: tuple[BufferMove, ...] = (
    insert_items,
    insert_again,
    look_again,
    claim_items,
    renew_lease,
    end_lease,
    end_lease_and_keep,
    release_items,
    release_for_later,
    claim_due_groups,
    open_gate,
    remove_item,
    clear_buffer,
    put_items_back,
    discard_items,
    note_items,
)
RIVALS: tuple[BufferMove, ...] = (
    insert_other_items,
    insert_what_fills_it,
    claim_items,
    claim_items_for_another,
    end_lease_and_keep,
    release_items,
    release_for_later,
    claim_due_groups,
    remove_item,
    clear_buffer,
    put_items_back,
)
