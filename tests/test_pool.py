"""Pools: bounded, fair, and nothing that strikes in the middle of them leaves them locked, or smaller."""

import contextlib
import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest

from celery_sagas import pool as pool_module
from celery_sagas.pool import Pool

#: Of waiting for what never comes. Seconds.
BRIEF = 0.02
#: Of waiting for what does. Seconds.
LONG = 60.0


class Item:
    """What is lent."""


class Interruption(BaseException):
    """A time limit that strikes."""


@pytest.fixture
def pool() -> Pool[Item]:
    return Pool(2)


def borrowed(pool: Pool[Item], patience_s: float = LONG) -> Item:
    item = pool.borrow(Item, patience_s)
    assert item
    return item


def test_the_one_that_came_back_last_is_lent_first(pool: Pool[Item]) -> None:
    first, second = borrowed(pool), borrowed(pool)
    assert (pool.lent, pool.idle) == (2, 0)
    pool.give_back(second)
    pool.give_back(first)
    assert (pool.lent, pool.idle) == (0, 2)
    assert borrowed(pool) is first
    assert borrowed(pool) is second


def test_there_are_no_more_than_there_may_be(pool: Pool[Item]) -> None:
    first, second = borrowed(pool), borrowed(pool)
    assert pool.borrow(Item, BRIEF) is None
    assert list(pool) in ([first, second], [second, first])
    pool.forget(first)
    third = borrowed(pool)
    assert third not in (first, second)
    assert pool.borrow(Item, BRIEF) is None


def sleeping(sleep: Callable[[float], object]) -> SimpleNamespace:
    """Return a clock whose sleeping does something else."""
    return SimpleNamespace(monotonic=time.monotonic, sleep=sleep)


def test_waiting_ends_when_one_comes_back(pool: Pool[Item], monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = borrowed(pool), borrowed(pool)
    monkeypatch.setattr(pool_module, "time", sleeping(lambda _: pool.give_back(first)))
    assert borrowed(pool) is first


def test_what_was_forgotten_is_not_kept(pool: Pool[Item]) -> None:
    item = borrowed(pool)
    pool.forget(item)
    assert not pool.give_back(item)
    assert (pool.lent, pool.idle) == (0, 0)


def test_what_is_drained_has_its_place_while_it_is_closed() -> None:
    pool: Pool[Item] = Pool(1)
    pool.give_back(first := borrowed(pool))
    for item in pool.drain():
        assert item is first
        assert pool.borrow(Item, BRIEF) is None
    assert borrowed(pool) is not first


def test_what_is_drained_is_known_no_more(pool: Pool[Item]) -> None:
    lent, idle = borrowed(pool), borrowed(pool)
    pool.give_back(idle)
    assert list(pool.drain()) == [idle]
    assert list(pool) == [lent]
    assert (pool.lent, pool.idle) == (1, 0)


@pytest.mark.parametrize("error", [OSError, Interruption])
def test_one_that_cannot_be_made_takes_no_place(pool: Pool[Item], error: type[BaseException]) -> None:
    def fail() -> Item:
        raise error

    for _ in range(3):
        with pytest.raises(error):
            pool.borrow(fail, LONG)
    assert pool.lent == 0


def test_one_that_an_interruption_has_lost_leaves_its_place(pool: Pool[Item]) -> None:
    """Between the moment in which it is taken, and that in which somebody has it."""
    for _ in range(3):
        borrowed(pool)
        gc.collect()
    assert pool.lent == 0


def test_one_that_has_waited_for_long_is_passed_by_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then one that gives an item back may take it again at once: most often nobody else is kept waiting by that."""
    pool: Pool[Item] = Pool(1)
    item, now, passed_by = borrowed(pool), [0.0], list[float]()

    def others_go_on(seconds: float) -> None:
        """Give the item back, and borrow it again, while the one that waits sleeps."""
        monkeypatch.setattr(pool_module.time, "sleep", interrupt)
        pool.give_back(item)
        with contextlib.suppress(Interruption):  # the next one waits too, and the item is left to the one that wakes
            assert borrowed(pool) is item
            passed_by.append(now[0])
        now[0] += seconds
        monkeypatch.setattr(pool_module.time, "sleep", others_go_on)

    monkeypatch.setattr(pool_module, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=others_go_on))
    assert borrowed(pool) is item
    assert len(passed_by) > 5
    assert max(passed_by) == pytest.approx(pool_module._TURN_S, abs=pool_module._PAUSE_S)


def interrupt(_: float) -> None:
    """Strike."""
    raise Interruption


def test_interrupted_waiting_keeps_nobody_from_borrowing(pool: Pool[Item], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor from doing so at once: who waits is passed by no more from the beginning on."""
    first, _ = borrowed(pool), borrowed(pool)
    monkeypatch.setattr(pool_module, "_TURN_S", -1)
    monkeypatch.setattr(pool_module, "time", sleeping(interrupt))
    with pytest.raises(Interruption) as caught:
        borrowed(pool)
    pool.give_back(first)
    assert caught.tb  # which has its frames
    assert borrowed(pool) is first


def test_waiting_that_has_ended_unnoticed_keeps_nobody_from_borrowing(pool: Pool[Item]) -> None:
    """An interruption may strike where its end is noted."""
    call = pool_module._Call()
    pool._waiting[ref(call)] = 0
    pool.give_back(first := borrowed(pool))
    assert not pool._may_pass()
    del call
    assert borrowed(pool) is first
    assert pool._waiting == {}


def test_it_is_full_while_the_last_is_being_made() -> None:
    """Making one may take long, and those that were made in vain would have been connected."""
    pool: Pool[Item] = Pool(1)
    begun, may_end = threading.Event(), threading.Event()

    def make() -> Item:
        begun.set()
        assert may_end.wait(LONG)
        return Item()

    with ThreadPoolExecutor(1) as thread:
        made = thread.submit(pool.borrow, make, LONG)
        assert begun.wait(LONG)
        assert pool.borrow(Item, BRIEF) is None
        may_end.set()
        assert made.result()
    assert pool.lent == 1


def test_one_that_is_noted_as_made_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it is no longer one that is being made, while another thread counts."""
    pool: Pool[Item] = Pool(1)
    may_end, count_known, counts = threading.Event(), pool_module._count, count(1)
    counting = threading.get_ident()

    def make(begun: threading.Event) -> Item:
        begun.set()
        assert may_end.wait(LONG)
        return Item()

    with ThreadPoolExecutor(1) as thread:
        made: list[Any] = []

        def count_slowly(known: set[Any]) -> int:
            counted = count_known(known)
            number = next(counts) if threading.get_ident() == counting else 0
            if number == 2:  # there is room
                begun = threading.Event()
                made.append(thread.submit(pool.borrow, lambda: make(begun), LONG))
                assert begun.wait(LONG)
            elif number == 3:  # half of what is known
                may_end.set()
                assert made[0].result()
            return counted

        monkeypatch.setattr(pool_module, "_count", count_slowly)
        assert pool.borrow(Item, 0) is None


def test_one_that_is_forgotten_while_it_comes_back_is_not_lent(pool: Pool[Item]) -> None:
    item = borrowed(pool)
    pool.give_back(item)
    pool.forget(item)
    assert borrowed(pool) is not item


class TestThreads:
    """Many threads that share few."""

    THREADS, LIMIT = 16, 4

    def test_each_is_lent_to_one_thread(self) -> None:
        pool: Pool[Item] = Pool(self.LIMIT)
        all_there = threading.Barrier(self.THREADS)
        users: dict[Item, int] = {}
        made = count(1)

        def make() -> Item:
            next(made)
            return Item()

        def use(thread: int) -> None:
            all_there.wait(LONG)
            for _ in range(400):
                item = pool.borrow(make, LONG)
                assert item
                assert users.setdefault(item, thread) == thread
                time.sleep(0)
                assert users.pop(item) == thread
                pool.give_back(item)

        with ThreadPoolExecutor(self.THREADS) as threads:
            list(threads.map(use, range(self.THREADS)))
        assert pool.lent == 0
        assert pool.idle <= self.LIMIT
        assert next(made) - 1 <= self.LIMIT
