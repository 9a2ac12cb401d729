"""``Leftovers.put_back`` and ``discard``: what was kept comes back, or goes."""

import pytest

from celery_sagas.stores.items import Added, Counts
from celery_sagas.stores.ports import Backend
from celery_sagas.testing.batches import (
    CLOSED,
    HOURLY,
    KEEPINGS,
    LEASE,
    NAME,
    PAIRS,
    add,
    attempts,
    buffered,
    due_at,
    flush,
    ids_of,
    keep,
    nothing_changed,
    numbered,
    states,
    taken_by,
)
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import StoreFixtures
from celery_sagas.testing.samples import HOUR, MINUTE

each_kind = pytest.mark.parametrize("kind", ["unresolved", "rejected"])


class PuttingBackContract(StoreFixtures):
    """What was kept comes back, or goes."""

    @each_kind
    def test_item_comes_back_where_it_stood(self, backend: Backend, kind: str) -> None:
        """It comes back by itself, when it can be read again."""
        add(backend, PAIRS, *"abcd")
        before = backend.buffers.read(NAME, "", 9)
        items = flush(backend, PAIRS).items
        keeping = KEEPINGS[kind]
        backend.aggregates.release(PAIRS, "", "one", [keeping(items[1])], counted=False)
        [kept] = backend.leftovers.kept(NAME, kind, 9)
        assert backend.leftovers.put_back(PAIRS, [kept.handle]) == 1
        assert backend.buffers.read(NAME, "", 9) == before
        assert backend.leftovers.kept(NAME, kind, 9) == []
        assert backend.buffers.count(NAME) == Counts(1, 4, 0, 0)

    @each_kind
    def test_item_comes_back_with_no_attempt(self, backend: Backend, kind: str) -> None:
        """What made it fail was mended."""
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS, "one")
        backend.aggregates.release(PAIRS, "", "one")
        items = flush(backend, PAIRS, "two").items
        keeping = KEEPINGS[kind]
        backend.aggregates.remove(PAIRS, "", "two", [keeping(item) for item in items])
        backend.leftovers.put_back(PAIRS, [kept.handle for kept in backend.leftovers.kept(NAME, kind, 9)])
        assert attempts(backend) == {"a": 0, "b": 0}
        assert [item.attempts for item in flush(backend, PAIRS, "three").items] == [0, 0]

    @each_kind
    def test_gate_is_open_for_what_was_put_back(self, backend: Backend, kind: str) -> None:
        """It has waited for long enough."""
        [kept, _] = keep(backend, kind, "a", "b")
        backend.leftovers.put_back(CLOSED, [kept.handle])
        snapshot = flush(backend, CLOSED)
        assert (ids_of(snapshot.items), snapshot.reason) == (["a"], "again")

    @each_kind
    def test_group_is_due_at_once(self, backend: Backend, clock: Clock, kind: str) -> None:
        """A flush that was asked for does not delay it."""
        add(backend, PAIRS, "x", "y")
        [kept] = keep(backend, kind, "a", group="group")
        clock.advance(MINUTE)
        backend.leftovers.put_back(PAIRS, [kept.handle])
        assert 0 < due_at(backend, "group") <= clock.now
        found = backend.aggregates.claim_due([NAME], 9, LEASE)
        assert sorted(due.group for due in found) == ["", "group"]

    @each_kind
    def test_group_with_a_mark_is_due_at_once(self, backend: Backend, clock: Clock, kind: str) -> None:
        [kept] = keep(backend, kind, "a")
        add(backend, PAIRS, "b", "c")
        assert due_at(backend) == clock.now + LEASE
        backend.leftovers.put_back(PAIRS, [kept.handle])
        assert 0 < due_at(backend) <= clock.now
        assert add(backend, PAIRS, "b") == Added(0, is_open=True)

    def test_rejected_item_is_back_whatever_the_buffer_may_hold(self, backend: Backend) -> None:
        [kept] = keep(backend, "rejected", "a")
        bounded = PAIRS._replace(max_buffered=2)
        add(backend, bounded, "b", "c")
        assert backend.leftovers.put_back(bounded, [kept.handle]) == 1
        assert buffered(backend) == ["a", "b", "c"]
        assert add(backend, bounded, "d") == Added(0, is_full=True)

    def test_rejected_item_makes_its_group_anew(self, backend: Backend, clock: Clock) -> None:
        """No time of the former group counts."""
        [kept] = keep(backend, "rejected", "a", group="group")
        assert backend.buffers.groups(NAME, 9) == []
        clock.advance(HOUR)
        assert backend.leftovers.put_back(HOURLY, [kept.handle]) == 1
        [item] = backend.buffers.read(NAME, "group", 9)
        assert (item.id, item.payload, item.at, item.state) == ("a", kept.payload, clock.now - HOUR, "free")
        assert taken_by(backend, HOURLY, group="group") == ["a"]
        backend.aggregates.remove(HOURLY, "group", "one")
        assert backend.buffers.groups(NAME, 9) == []

    def test_rejected_item_that_is_buffered_again_stays_where_it_is(self, backend: Backend) -> None:
        """Its message was delivered again, after its id was forgotten."""
        [kept] = keep(backend, "rejected", "a")
        add(backend, CLOSED, "a", "b")
        with nothing_changed(backend):
            assert backend.leftovers.put_back(CLOSED, [kept.handle]) == 0
        backend.buffers.remove(CLOSED, "", "a")
        assert backend.leftovers.put_back(CLOSED, [kept.handle]) == 1
        assert buffered(backend) == ["a", "b"]

    def test_of_one_id_that_was_rejected_twice_the_first_comes_back(self, backend: Backend) -> None:
        keep(backend, "rejected", "a", run="one")
        handles = [kept.handle for kept in keep(backend, "rejected", "a", run="two")]
        assert backend.leftovers.put_back(CLOSED, handles) == 1
        assert buffered(backend) == ["a"]
        assert [kept.handle for kept in backend.leftovers.kept(NAME, "rejected", 9)] == handles[1:]

    @each_kind
    def test_items_of_many_groups_are_put_back_at_once(self, backend: Backend, kind: str) -> None:
        for group in numbered(20, "group"):
            keep(backend, kind, "b", "a", group=group)
        handles = [kept.handle for kept in backend.leftovers.kept(NAME, kind, 99)]
        assert backend.leftovers.put_back(CLOSED, [*handles, *handles, "0"]) == 40
        assert backend.leftovers.put_back(CLOSED, handles) == 0
        for group in numbered(20, "group"):
            assert states(backend, group) == {"a": "free", "b": "free"}
            assert buffered(backend, group) == ["a", "b"]

    @each_kind
    def test_handles_of_another_aggregator_are_passed_over(self, backend: Backend, kind: str) -> None:
        handles = [kept.handle for kept in keep(backend, kind, "a")]
        other = CLOSED._replace(name="other")
        with nothing_changed(backend):
            assert backend.leftovers.put_back(other, handles) == 0
            assert backend.leftovers.discard(other, handles) == 0
            assert backend.leftovers.put_back(CLOSED, []) == 0
            assert backend.leftovers.discard(CLOSED, []) == 0
        assert backend.buffers.groups("other", 9) == []

    @each_kind
    def test_items_are_discarded_for_good(self, backend: Backend, kind: str) -> None:
        handles = [kept.handle for kept in keep(backend, kind, *"abc", group="group")]
        assert backend.leftovers.discard(CLOSED, [handles[0], handles[2], handles[0], "0"]) == 2
        assert ids_of(backend.leftovers.kept(NAME, kind, 9)) == ["b"]
        assert backend.leftovers.discard(CLOSED, handles) == 1
        assert backend.leftovers.put_back(CLOSED, handles) == 0
        assert backend.buffers.groups(NAME, 9) == []
        assert backend.buffers.count(NAME) == Counts(0, 0, 0, 0)

    @each_kind
    def test_discarded_items_are_remembered(self, backend: Backend, clock: Clock, kind: str) -> None:
        """A redelivery does not bring them back."""
        remembering = PAIRS._replace(remember_ms=HOUR)
        add(backend, remembering, "a", "b")
        items = flush(backend, remembering).items
        keeping = KEEPINGS[kind]
        backend.aggregates.remove(remembering, "", "one", [keeping(item) for item in items])
        backend.leftovers.discard(remembering, [kept.handle for kept in backend.leftovers.kept(NAME, kind, 9)])
        assert add(backend, remembering, "a", "b") == Added(0)
        clock.advance(HOUR)
        assert add(backend, remembering, "a", "b").added == 2

    def test_discarding_an_unresolved_item_leaves_the_others(self, backend: Backend, clock: Clock) -> None:
        """It leaves the due time right."""
        add(backend, HOURLY, "a")
        clock.advance(MINUTE)
        add(backend, HOURLY, "b", unread_by="v1")
        [kept] = backend.leftovers.kept(NAME, "unresolved", 9)
        backend.leftovers.discard(HOURLY, [kept.handle])
        assert states(backend) == {"a": "free"}
        assert due_at(backend) == clock.now - MINUTE + HOUR

    def test_a_thousand_items_are_put_back_and_discarded_at_once(self, backend: Backend) -> None:
        add(backend, CLOSED, *numbered(2_000), unread_by="v1")
        handles = [kept.handle for kept in backend.leftovers.kept(NAME, "unresolved", 2_000)]
        assert backend.leftovers.put_back(CLOSED, handles[::2]) == 1_000
        assert backend.leftovers.discard(CLOSED, handles[1::2]) == 1_000
        assert buffered(backend) == numbered(2_000)[::2]
