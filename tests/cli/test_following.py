"""What comes into the journals, one look after the other."""

from collections.abc import Sequence
from itertools import islice

import pytest

from celery_sagas.cli import following
from celery_sagas.cli.following import Tail, follow
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.memory.journal import MemoryJournal
from celery_sagas.stores.records import Entries
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.samples import entry, send
from tests.servers import unique

SECOND = 1_000


@pytest.fixture
def clock() -> Clock:
    """The store's clock."""
    return Clock()


@pytest.fixture
def backend(clock: Clock) -> MemoryBackend:
    """A backend of this test alone."""
    return MemoryBackend(f"memory://{unique()}", prefix="", clock=clock)


@pytest.fixture
def tail(backend: MemoryBackend, clock: Clock) -> Tail:
    """A tail whose first look is over: it has returned nothing of what was there."""
    tail = Tail(backend)
    send(backend)
    clock.advance(1)
    assert tail.look() == []
    return tail


def _handle(backend: MemoryBackend, key: str, clock: Clock, late_ms: int = 0, version: int = 0) -> None:
    """Commit an entry that says that it was committed earlier."""
    clock.advance(-late_ms)
    send(backend, line=entry(key=key, version=version))
    clock.advance(late_ms)


def _keys(tail: Tail) -> list[str]:
    return [line.key for line in tail.look()]


def test_each_comes_once(backend: MemoryBackend, clock: Clock, tail: Tail) -> None:
    for number in range(9):
        clock.advance(SECOND // 3)
        _handle(backend, str(number), clock)
        assert _keys(tail) == [str(number)]
    assert _keys(tail) == []


def test_what_was_there_before_does_not_come(backend: MemoryBackend, clock: Clock, tail: Tail) -> None:
    """Not if it comes into sight later either."""
    clock.advance(SECOND)
    _handle(backend, "1", clock, late_ms=SECOND + 1)
    assert _keys(tail) == []


def test_entry_that_comes_into_sight_later(backend: MemoryBackend, clock: Clock, tail: Tail) -> None:
    clock.advance(9 * SECOND)
    _handle(backend, "1", clock)
    assert _keys(tail) == ["1"]
    clock.advance(SECOND)
    _handle(backend, "2", clock)
    _handle(backend, "3", clock, late_ms=2 * SECOND)
    assert _keys(tail) == ["2", "3"]


def test_what_was_shown_otherwise_does_not_come(backend: MemoryBackend, clock: Clock, tail: Tail) -> None:
    clock.advance(SECOND)
    _handle(backend, "1", clock)
    tail.skip(backend.journal.recent(9).entries)
    _handle(backend, "2", clock)
    assert _keys(tail) == ["2"]


def test_many_at_once(
    backend: MemoryBackend, clock: Clock, tail: Tail, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They come in several calls; where these are too few it says so."""
    monkeypatch.setattr(following, "_PAGE", 3)
    clock.advance(SECOND)
    for number in range(7):
        _handle(backend, str(number), clock)
    assert sorted(_keys(tail)) == list("0123456")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(following, "_CALLS", 2)
    clock.advance(9 * SECOND)
    for number in range(7):
        _handle(backend, str(number), clock)
    assert len(_keys(tail)) == 6
    assert capsys.readouterr().err == "More was handled than is shown.\n"


def test_look_reads_no_more_than_what_is_new(backend: MemoryBackend, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """However little of it is asked for, and however long the journal is."""
    calls, recent = list[str](), MemoryJournal.recent

    def counted(journal: MemoryJournal, limit: int, after: str, *chosen: Sequence[str]) -> Entries:
        calls.append(after)
        return recent(journal, limit, after, *chosen)

    monkeypatch.setattr(MemoryJournal, "recent", counted)
    monkeypatch.setattr(following, "_PAGE", 3)
    for number in range(500):
        _handle(backend, str(number), clock)
    clock.advance(9 * SECOND)
    tail = Tail(backend, ["nobody"])
    tail.look()
    for _ in range(3):
        clock.advance(9 * SECOND)
        _handle(backend, "1", clock)
        assert tail.look() == []
    assert calls == [""] * 4  # and the first one


def test_all_backends_are_followed(backend: MemoryBackend, clock: Clock, tail: Tail, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found at once comes in the order of its times, and of its versions."""
    other = MemoryBackend(f"memory://{unique()}", prefix="", clock=clock)
    tails = [tail, Tail(other), Tail(backend)]
    for each in tails:
        each.look()

    def handle(seconds: float) -> None:
        clock.advance(SECOND)
        for number, version in enumerate((2, 1, 3)):
            _handle(backend, "1", clock, version=version)
            _handle(other, "2", clock, late_ms=number)

    monkeypatch.setattr(following, "sleep", handle)
    for found in islice(follow(tails), 3):
        assert [(line.key, line.version) for line in found] == [("2", 0), ("2", 0), ("2", 0), ("1", 1), ("1", 2), ("1", 3)]
