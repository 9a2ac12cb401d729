"""Many callers at once: nothing is lost or doubled, and another prefix is not affected."""

from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import pytest

from celery_sagas.errors import LeaseLost
from celery_sagas.stores.items import Added, Addition, Counts
from celery_sagas.stores.ports import Backend
from celery_sagas.testing.batches import (
    CLOSED,
    HOURLY,
    LEASE,
    NAME,
    PAIRS,
    add,
    buffered,
    dead_letters_of,
    flush,
    new_items,
    nothing_changed,
    numbered,
    taken_by,
)
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import OpenBackend, StoreFixtures
from celery_sagas.testing.samples import HOUR, MINUTE


class CrowdContract(StoreFixtures):
    """Any number of processes, threads and prefixes."""

    @pytest.fixture
    def workers(self, backend: Backend, open_backend: OpenBackend, prefix: str) -> list[Backend]:
        """Four processes on the backend under test."""
        return [open_backend(prefix) for _ in range(4)]

    @pytest.fixture
    def stranger(self, backend: Backend, open_backend: OpenBackend, prefix: str) -> Backend:
        """A backend on the same server under another prefix, which differs in its case alone."""
        stranger = open_backend(prefix.upper())
        stranger.prepare(create_schema=True, processes=1)
        return stranger

    def test_items_that_are_inserted_at_once_are_all_buffered(self, workers: list[Backend]) -> None:
        with ThreadPoolExecutor(len(workers)) as threads:
            added = list(threads.map(_insert_one_by_one, workers, "abcd"))
        assert added == [20] * 4
        assert sorted(buffered(workers[0])) == sorted(f"{stem} {number}" for stem in "abcd" for number in range(20))
        for stem in "abcd":
            assert [id for id in buffered(workers[0]) if id[0] == stem] == numbered(20, stem)

    def test_item_that_is_inserted_at_once_is_buffered_once(self, workers: list[Backend]) -> None:
        with ThreadPoolExecutor(len(workers)) as threads:
            added = list(threads.map(_insert_one_by_one, workers, "aaaa"))
        assert sum(added) == 20
        assert buffered(workers[0]) == numbered(20, "a")

    def test_additions_to_many_groups_at_once_do_not_block_each_other(self, workers: list[Backend]) -> None:
        """They may name the groups in any order."""
        groups = numbered(12, "group")
        with ThreadPoolExecutor(len(workers)) as threads:
            orders = (groups, groups[::-1], groups, groups[::-1])
            assert list(threads.map(_insert_into, workers, "abcd", orders)) == [60] * 4
        assert workers[0].buffers.count(NAME) == Counts(12, 240, 0)

    def test_one_caller_alone_asks_for_a_flush(self, workers: list[Backend]) -> None:
        with ThreadPoolExecutor(len(workers)) as threads:
            asked = [threads.submit(add, worker, PAIRS, stem, f"{stem} 2") for worker, stem in zip(workers, "abcd", strict=True)]
            assert [each.result().needs_flush for each in asked].count(True) == 1

    def test_no_item_is_in_two_batches(self, workers: list[Backend]) -> None:
        """A lease prevents the double claim."""
        ids = numbered(80)
        add(workers[0], PAIRS, *ids)
        with ThreadPoolExecutor(len(workers)) as threads:
            taken = list(chain(*threads.map(_flush_one_by_one, workers, "abcd")))
        assert sorted(taken) == sorted(ids)
        assert workers[0].buffers.groups(NAME, 9) == []

    def test_items_inserted_while_others_are_flushed_are_not_lost(self, workers: list[Backend]) -> None:
        add(workers[0], PAIRS, *numbered(20, "early"))
        with ThreadPoolExecutor(len(workers)) as threads:
            added = [threads.submit(_insert_one_by_one, worker, stem) for worker, stem in zip(workers[:2], "ab", strict=True)]
            flushed = [threads.submit(_flush_one_by_one, worker, stem) for worker, stem in zip(workers[2:], "cd", strict=True)]
            assert sum(each.result() for each in added) == 40
            taken = list(chain(*(each.result() for each in flushed)))
        taken += _flush_one_by_one(workers[0], "e")
        assert sorted(taken) == sorted([*numbered(20, "early"), *numbered(20, "a"), *numbered(20, "b")])

    def test_due_group_is_returned_to_one_caller(self, workers: list[Backend], clock: Clock) -> None:
        groups = numbered(40, "group")
        workers[0].aggregates.insert(HOURLY, [Addition(group, new_items("a")) for group in groups])
        clock.advance(HOUR)
        with ThreadPoolExecutor(len(workers)) as threads:
            found = [threads.submit(worker.aggregates.claim_due, [NAME], 25, LEASE) for worker in workers]
            claimed = [due.group for each in found for due in each.result()]
        assert len(set(claimed)) == len(claimed)
        claimed += [due.group for due in workers[0].aggregates.claim_due([NAME], 99, LEASE)]
        assert sorted(claimed) == sorted(groups)

    def test_buffer_of_another_prefix_is_not_seen(self, backend: Backend, stranger: Backend, clock: Clock) -> None:
        bounded = PAIRS._replace(max_buffered=2, remember_ms=HOUR)
        add(backend, bounded, "a", "b")
        assert stranger.buffers.names() == []
        assert stranger.buffers.groups(NAME, 9) == []
        assert stranger.buffers.count(NAME) == Counts(0, 0, 0)
        assert taken_by(stranger, bounded) == []
        clock.advance(LEASE)
        assert stranger.aggregates.claim_due([NAME], 9, LEASE) == []
        assert add(stranger, bounded, "a", "b") == Added(2, needs_flush=True)

    def test_buffer_of_another_prefix_is_not_changed(self, backend: Backend, stranger: Backend, clock: Clock) -> None:
        remembering = PAIRS._replace(remember_ms=5 * MINUTE)
        add(backend, remembering, *"abcd")
        items = flush(backend, remembering).items
        backend.aggregates.remove(remembering, "", "one", rejected=dead_letters_of(items[0]))
        flush(backend, remembering)
        [dead_letter] = backend.dead.list(9)
        with nothing_changed(backend):
            assert not stranger.aggregates.renew(PAIRS, "", "one")
            with pytest.raises(LeaseLost):
                stranger.aggregates.remove(PAIRS, "", "one")
            assert stranger.buffers.clear(PAIRS, "") == 0
            assert not stranger.buffers.fire(PAIRS, "")
            assert stranger.dead.list(9) == []
            assert not stranger.aggregates.restore(PAIRS, dead_letter)
            assert not stranger.dead.remove(dead_letter.id)
        clock.advance(5 * MINUTE)
        assert stranger.aggregates.purge(9) == 0
        assert backend.aggregates.purge(9) == 2


def _insert_one_by_one(backend: Backend, stem: str) -> int:
    return sum(add(backend, CLOSED, id).added for id in numbered(20, stem))


def _insert_into(backend: Backend, stem: str, groups: list[str]) -> int:
    calls = [[Addition(group, new_items([f"{stem} {number}"])) for group in groups] for number in range(5)]
    return sum(added.added for call in calls for added in backend.aggregates.insert(CLOSED, call))


def _flush_one_by_one(backend: Backend, worker: str) -> list[str]:
    """Flush while the trigger has fired."""
    flushed: list[str] = []
    for number in range(1_000):
        taken = taken_by(backend, PAIRS, f"{worker} {number}")
        if not taken:
            break
        flushed += taken
        backend.aggregates.remove(PAIRS, "", f"{worker} {number}")
    return flushed
