"""The moves of both sides of an interleaving on a buffer, in a small world whose answers can be compared."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count, takewhile

from celery_sagas.stores.items import Addition, Item, Rules
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import DeadLetter
from celery_sagas.testing.batches import add, dead_letters_of, new_items, sends_of
from celery_sagas.testing.clock import Clock

#: Does something in a world; what it returns is compared.
BufferMove = Callable[[Backend, "BufferWorld"], object]

LEASE = 1_000
_tags = count()


@dataclass
class BufferWorld:
    """A buffer that may have seven items, and has five.

    "a" and "b" are leased by the run "one"; the lease has ended, and was not given up. "c" and "d" are free, and fire
    the trigger; "e" is unresolved. "x" was rejected, and "y" removed; neither is remembered any more.
    """

    rules: Rules = field(
        default_factory=lambda: Rules(f"readings {next(_tags)}", size=2, max_buffered=7, remember_ms=LEASE, lease_ms=LEASE)
    )
    items: dict[str, Item] = field(default_factory=dict)  #: those under the lease, and the unresolved one
    dead_letters: list[DeadLetter] = field(default_factory=list)  #: of what was rejected

    def arrange(self, backend: Backend, clock: Clock) -> None:
        """Make the world."""
        self._flush(backend, "zero", "x", "y")
        self.dead_letters = self.dead_letters_of("x")
        backend.aggregates.remove(self.rules, "", "zero", rejected=self.dead_letters)
        self._flush(backend, "one", "a", "b")
        clock.advance(LEASE)
        add(backend, self.rules, "c", "d")
        add(backend, self.rules, "e", is_unreadable=True)
        self.items |= {item.id: item for _, item in backend.buffers.unresolved(self.rules.name, 9)}

    def dead_letters_of(self, *ids: str) -> list[DeadLetter]:
        """Return the dead letters of items that are rejected."""
        return dead_letters_of(*(self.items[id] for id in ids), name=self.rules.name)

    def _flush(self, backend: Backend, token: str, *ids: str) -> None:
        add(backend, self.rules, *ids)
        snapshot = backend.aggregates.claim(self.rules, "", token)
        assert snapshot is not None
        self.items = {item.id: item for item in snapshot.items}

    def aftermath(self, backend: Backend, clock: Clock) -> object:
        """Return everything that can be observed, now and when all leases have ended, and empty the buffer."""
        before = self._sight(backend, clock)
        clock.advance(9 * LEASE)
        due = backend.aggregates.claim_due([self.rules.name], 9, LEASE)
        flushes = (self._drain(backend, f"observer {number}") for number in range(9))
        return before, len(due), list(takewhile(bool, flushes)), self._sight(backend, clock), self._sent(backend)

    def _sight(self, backend: Backend, clock: Clock) -> object:
        name = self.rules.name
        groups = backend.buffers.groups(name, 9)
        due = ["at once" if 0 < group.due_at <= clock.now else group.due_at for group in groups]
        items = [_shown(item) for item in backend.buffers.read(name, "", 99)]
        unresolved = [_shown(item) for _, item in backend.buffers.unresolved(name, 99)]
        dead_letters = sorted(each.message_id for each in backend.dead.list(10_000) if each.task == name)
        return backend.buffers.count(name), [group._replace(due_at=0) for group in groups], due, items, unresolved, dead_letters

    def _sent(self, backend: Backend) -> object:
        """Return what is sent, and empty the outbox."""
        rows = backend.outbox.claim_due("observer", 9, LEASE)
        backend.outbox.confirm("observer", [row.id for row in rows])
        return [row._replace(id="") for row in rows]

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
    """Insert "x" and "y" too, and "a", which is there."""
    return backend.aggregates.insert(world.rules, [Addition("", new_items("xya"))])


def insert_what_fills_it(backend: Backend, world: BufferWorld) -> object:
    """Insert "g" and "h": then there is no room for others."""
    return backend.aggregates.insert(world.rules, [Addition("", new_items("gh"))])


def insert_again(backend: Backend, world: BufferWorld) -> object:
    """Insert what is there, or was there a moment ago."""
    return backend.aggregates.insert(world.rules, [Addition("", new_items("abcd"))])


def look_again(backend: Backend, world: BufferWorld) -> object:
    """Insert nothing: only the trigger is checked."""
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


def end_lease_and_reject(backend: Backend, world: BufferWorld) -> object:
    """Reject "b", which "one" has leased, and leave "a" unresolved."""
    dead_letters, unreadable = world.dead_letters_of("b"), [world.items["a"].number]
    return backend.aggregates.remove(world.rules, "", "one", rejected=dead_letters, unreadable=unreadable)


def end_lease_and_send(backend: Backend, world: BufferWorld) -> object:
    """Remove what "one" has leased, and send two messages."""
    sends = sends_of(backend, "m1", "m2", run="one", rules=world.rules)._replace(owner="one", grace_ms=LEASE)
    return backend.aggregates.remove(world.rules, "", "one", sends=sends)


def release_items(backend: Backend, world: BufferWorld) -> object:
    """Release what "one" has leased, and reject one of it."""
    return backend.aggregates.release(world.rules, "", "one", rejected=world.dead_letters_of("a"))


def release_for_later(backend: Backend, world: BufferWorld) -> object:
    """Release what "one" has leased, and let the group pause."""
    return backend.aggregates.release(world.rules, "", "one", delay_ms=2 * LEASE)


def claim_due_groups(backend: Backend, world: BufferWorld) -> object:
    """Ask for the flush."""
    return len(backend.aggregates.claim_due([world.rules.name], 9, LEASE))


def fire_trigger(backend: Backend, world: BufferWorld) -> object:
    """Fire the trigger by hand."""
    return backend.buffers.fire(world.rules, "")


def remove_item(backend: Backend, world: BufferWorld) -> object:
    """Remove "c" by hand."""
    return backend.buffers.remove(world.rules, "", "c")


def clear_buffer(backend: Backend, world: BufferWorld) -> object:
    """Remove everything by hand."""
    return backend.buffers.clear(world.rules, "")


def remove_unresolved(backend: Backend, world: BufferWorld) -> object:
    """Remove "e" by hand, if it is unresolved."""
    return backend.buffers.remove(world.rules, "", "e", unresolved=True)


def resolve_item(backend: Backend, world: BufferWorld) -> object:
    """Make "e" free again, which was unresolved at the beginning."""
    return backend.aggregates.resolve(world.rules, "", [world.items["e"].number])


def restore_item(backend: Backend, world: BufferWorld) -> object:
    """Put back "x", which was rejected at the beginning."""
    return backend.aggregates.restore(world.rules, world.dead_letters[0])


def discard_dead_letter(backend: Backend, world: BufferWorld) -> object:
    """Discard the dead letter of "x"."""
    return backend.dead.remove(world.dead_letters[0].id)


OPERATIONS: tuple[BufferMove, ...] = (
    insert_items,
    insert_again,
    look_again,
    claim_items,
    renew_lease,
    end_lease,
    end_lease_and_reject,
    end_lease_and_send,
    release_items,
    release_for_later,
    claim_due_groups,
    fire_trigger,
    remove_item,
    remove_unresolved,
    clear_buffer,
    resolve_item,
    restore_item,
    discard_dead_letter,
)
RIVALS: tuple[BufferMove, ...] = (
    insert_other_items,
    insert_what_fills_it,
    claim_items,
    claim_items_for_another,
    end_lease_and_reject,
    end_lease_and_send,
    release_items,
    release_for_later,
    claim_due_groups,
    remove_item,
    clear_buffer,
    resolve_item,
    restore_item,
)
