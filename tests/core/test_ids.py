"""New ids stand in the order of their creation, and are never the same."""

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from string import ascii_lowercase, ascii_uppercase, digits

import pytest

from celery_sagas.core import ids
from celery_sagas.core.ids import time_ordered_id

NOON = 1_800_000_000_000 * 1_000_000  #: nanoseconds since the epoch


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands at noon until it is set; nothing has been drawn yet."""
    monkeypatch.setattr(ids, "_last", 0)
    return [NOON]


def _draw(clock, count=1):
    return [time_ordered_id(lambda: clock[0]) for _ in range(count)]


def _time_of(id):
    """The milliseconds, and 12 bits of their fraction; there are 68 random bits behind them."""
    number = 0
    for digit in id:
        number = 62 * number + (digits + ascii_uppercase + ascii_lowercase).index(digit)
    return number >> 68


@pytest.mark.parametrize("at_ms", [0, 1, 1_800_000_000_000, (1 << 48) - 1], ids=["epoch", "first", "noon", "last"])
def test_id_begins_with_the_milliseconds(clock, at_ms):
    """So that a database keeps new rows together; whatever the time, an id has as many digits."""
    clock[0] = at_ms * 1_000_000
    (id,) = _draw(clock)
    assert (len(id), _time_of(id) >> 12) == (22, at_ms)


def test_ids_sort_behind_uuids_of_version_7(clock):
    """As ids were: an instance of today's is newer than one that was there before."""
    assert _draw(clock)[0] > "01a3185c-5000-7fff-bfff-ffffffffffff"


def test_ids_sort_in_the_order_of_creation():
    """By the clock of the process: many are drawn within one millisecond."""
    drawn = [time_ordered_id() for _ in range(20_000)]
    assert drawn == sorted(set(drawn))


@pytest.mark.parametrize("moved", [0, -1, -3_600 * 10**9, 1, 10**6], ids=["stands", "back", "hour-back", "tick", "millisecond"])
def test_order_holds_whatever_the_clock_does(clock, moved):
    """Also over the end of the millisecond: 5,000 do not fit into one."""
    before = _draw(clock, 5_000)
    clock[0] += moved
    after = _draw(clock, 5_000)
    assert all(one < other for one, other in pairwise([*before, *after]))


def test_ids_of_one_time_differ(clock, monkeypatch):
    """As those of two processes, or of two threads, may have it."""
    drawn = set()
    for _ in range(1_000):
        monkeypatch.setattr(ids, "_last", 0)
        drawn.update(_draw(clock))
    assert len({_time_of(id) for id in drawn}) == 1
    assert len(drawn) == 1_000


def test_ids_of_threads_differ():
    """Nothing is locked while one is drawn."""
    with ThreadPoolExecutor(8) as pool:
        drawn = [id for part in pool.map(lambda _: [time_ordered_id() for _ in range(2_000)], range(8)) for id in part]
    assert len(set(drawn)) == len(drawn)


def test_ids_of_forked_processes_differ(clock):
    """A child goes on from the time that its parent had, with random bits of its own."""
    reader, writer = os.pipe()
    child = os.fork()
    drawn = _draw(clock, 100)
    if child == 0:
        os.write(writer, " ".join(drawn).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        theirs = pipe.read().split()
    assert os.waitpid(child, 0)[1] == 0
    assert list(map(_time_of, theirs)) == list(map(_time_of, drawn))
    assert not set(theirs) & set(drawn)
