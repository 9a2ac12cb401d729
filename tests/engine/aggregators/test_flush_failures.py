"""A flush that fails: its function, its worker, its lease, or its store."""

from types import SimpleNamespace
from typing import Any

import pytest

from celery_sagas.core.aggregators.batch import Batch
from celery_sagas.engine.aggregators import flush
from celery_sagas.engine.aggregators.flush import Flushed, FlushVerdict
from celery_sagas.errors import LeaseLost, StoreUnavailable
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.testing.clock import Clock
from tests.engine.aggregators.batches import LEASE_MS, NAME, Boom, Collector, Reading, define, failing

AWAY = StoreUnavailable("memory://", "it is away")


@pytest.fixture
def collector(backend: MemoryBackend) -> Collector:
    """An aggregator of batches of four, whose function raises."""
    collector = Collector(backend, define(size=4))
    collector.work = fail
    return collector


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses while the store is away, which are not slept, but pass."""
    slept: list[float] = []
    clock = SimpleNamespace(sleep=slept.append, monotonic=lambda: sum(slept))
    monkeypatch.setattr(flush, "time", clock)
    return slept


def fail(batch: Batch[Reading]) -> None:
    """Raise what says which batch it was."""
    raise Boom(",".join(batch.ids))


def flush_often(collector: Collector, clock: Clock, times: int) -> Flushed:
    """Flush so often, each time when the delay of the last is over; return what came of the last."""
    for _ in range(times):
        flushed = collector.flush()
        clock.advance(int(flushed.delay_s * 1000))
    return flushed


def fail_with(*bad: str) -> Any:
    """Return a function that fails for some items."""

    def work(batch: Batch[Reading]) -> None:
        if set(bad) & set(batch.ids):
            raise Boom(",".join(batch.ids))

    return work


class TestFunctionRaises:
    """What its error means is not for the engine to say."""

    def test_items_are_free_at_once_and_the_failure_is_counted(self, collector: Collector) -> None:
        collector.add("a", "b", "c", "d")

        flushed = collector.flush()

        assert collector.states() == dict.fromkeys("abcd", "free")
        assert collector.failures() == dict.fromkeys("abcd", 1)
        assert repr(flushed.error) == "Boom('a,b,c,d')"
        assert (flushed.is_settled, flushed.delay_s, flushed.items) == (False, 5.0, 4)
        assert collector.asked == []  # the caller does, after the delay

    def test_next_flush_has_the_same_items(self, collector: Collector, clock: Clock) -> None:
        """They stand where they stood."""
        collector.add("a", "b", "c", "d")
        flush_often(collector, clock, 1)
        collector.add("e")
        collector.work = lambda batch: None

        flushed = collector.flush()

        assert collector.seen == [["a", "b", "c", "d"]] * 2
        assert flushed.reason in ("size", "again")
        assert collector.states() == {"e": "free"}

    def test_judge_is_told_how_often_the_first_item_has_failed(self, collector: Collector, clock: Clock) -> None:
        collector.add("a", "b", "c", "d")
        flush_often(collector, clock, 2)

        assert collector.attempts == [0, 1]

    @pytest.mark.parametrize("delay_s", [0.0, 1.0, 30.0, 300.0, 86_400.0])
    def test_nobody_else_asks_before_the_delay_is_over(
        self, collector: Collector, backend: MemoryBackend, clock: Clock, delay_s: float
    ) -> None:
        """However long it is: a function that is called earlier than it has asked for is called too often."""
        collector.verdict = FlushVerdict(delay_s=delay_s)
        collector.add("a", "b", "c", "d")
        collector.flush()
        clock.advance(int(delay_s * 1000))
        assert backend.aggregates.claim_due([NAME], 10, LEASE_MS) == []

        clock.advance(LEASE_MS)  # the message that was to come is lost

        assert len(backend.aggregates.claim_due([NAME], 10, LEASE_MS)) == 1

    def test_error_that_does_not_count(self, collector: Collector) -> None:
        """The function wants to be called again: the items are not to blame."""
        collector.verdict = FlushVerdict(is_counted=False, delay_s=3.0)
        collector.add("a", "b", "c", "d")

        flushed = collector.flush()

        assert collector.failures() == dict.fromkeys("abcd", 0)
        assert (flushed.is_settled, flushed.delay_s) == (False, 3.0)

    def test_error_that_says_that_it_is_done(self, collector: Collector) -> None:
        collector.verdict = FlushVerdict(is_done=True)
        collector.add("a", "b", "c", "d")

        flushed = collector.flush()

        assert collector.states() == {}
        assert isinstance(flushed.error, Boom)
        assert flushed.is_settled

    def test_interruption_releases_nothing(self, collector: Collector) -> None:
        """The process ends; its lease does so by itself."""

        def interrupt(batch: Batch[Reading]) -> None:
            raise SystemExit

        collector.work = interrupt
        collector.add("a", "b", "c", "d")

        with pytest.raises(SystemExit):
            collector.flush()

        assert collector.states() == dict.fromkeys("abcd", "leased")


class TestPause:
    """A group whose flush has failed is left alone: what fails is not called for each batch that waits."""

    def test_nobody_gets_anything(self, collector: Collector, clock: Clock) -> None:
        """Whoever asks, and also of what came later."""
        collector.add(*"abcdefgh")
        collector.flush()
        clock.advance(3_999)
        collector.add(*"ijkl")

        assert collector.claim() == []
        assert collector.flush().reason == ""
        clock.advance(1)
        assert collector.claim() == list("abcd")

    @pytest.mark.parametrize(("delay_s", "pause_ms"), [(5.0, 4_000), (20.0, 16_000), (300.0, 295_000), (3_600.0, 3_595_000)])
    def test_ends_a_little_before_the_retry_comes(
        self, collector: Collector, clock: Clock, delay_s: float, pause_ms: int
    ) -> None:
        """Which would find nothing, by a clock that goes before: a fifth of the delay, at most half a lease."""
        collector.verdict = FlushVerdict(delay_s=delay_s)
        collector.add(*"abcd")
        collector.flush()
        clock.advance(pause_ms - 1)
        assert collector.claim() == []

        clock.advance(1)

        assert collector.claim() == list("abcd")

    @pytest.mark.parametrize("is_counted", [True, False])
    def test_one_call_for_each_although_many_batches_wait(self, collector: Collector, clock: Clock, is_counted: bool) -> None:
        """The messages of the others come at once, and find nothing."""
        collector.verdict = FlushVerdict(is_counted=is_counted, delay_s=5.0)
        collector.add(*(f"{number:02}" for number in range(40)))
        for pause in range(20):
            for _ in range(10):
                collector.flush()
            assert len(collector.seen) == pause + 1
            clock.advance(5_000)

    def test_is_ended_by_whoever_asks_for_a_flush_by_hand(self, collector: Collector, backend: MemoryBackend) -> None:
        collector.add(*"abcd")
        collector.flush()
        collector.work = lambda batch: None
        backend.buffers.fire(collector.rules, "")

        assert collector.flush().items == 4

    def test_other_groups_do_not_pause(self, collector: Collector) -> None:
        collector.add(*"abcd")
        collector.flush()
        collector.group = "other"
        collector.add(*"efgh")
        collector.flush()

        assert collector.seen == [list("abcd"), list("efgh")]

    def test_also_after_an_item_that_failed_alone(self, collector: Collector, clock: Clock) -> None:
        """What is broken may not be the item: then each would be called at once, and rejected in the end."""
        collector.changes = {"size": 1, "max_attempts": 1}
        collector.add("a", "b")
        collector.flush()
        for _ in range(3):
            assert collector.flush().reason == ""
        assert (list(collector.rejected()), collector.seen) == (["a"], [["a"]])

        clock.advance(5_000)
        collector.flush()

        assert collector.seen == [["a"], ["b"]]


class TestSplitting:
    """After ``saga_max_deliveries`` failures (three here), batches become smaller, down to the item that fails alone."""

    def test_down_to_the_single_item(self, collector: Collector, clock: Clock) -> None:
        collector.add("a", "b", "c", "d")
        flush_often(collector, clock, 5)

        assert collector.seen == [list("abcd")] * 3 + [list("ab"), ["a"]]

    def test_item_that_fails_alone_is_rejected_with_its_error(
        self, collector: Collector, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The others are tried again after the delay."""
        collector.add("a", "b", "c", "d")
        flushed = flush_often(collector, clock, 5)

        assert collector.rejected() == {"a": "a"}
        dead_letter = collector.dead_letters()["a"]
        assert (dead_letter.error, "Boom: a" in dead_letter.traceback) == ("Boom", True)
        assert "a" not in collector.states()
        assert (flushed.items, flushed.rejected, type(flushed.error)) == (1, 1, Boom)
        assert (flushed.is_settled, flushed.delay_s) == (False, 5.0)

    @pytest.mark.parametrize("bad", ["a", "b", "c", "d", "ad", "abcd"])
    def test_the_others_come_through(self, collector: Collector, clock: Clock, bad: str) -> None:
        """Whichever it is, and nothing is lost, nor flushed twice with success."""
        collector.work = fail_with(*bad)
        collector.add(*"abcd")
        done: list[str] = []
        for _ in range(30):
            flushed = flush_often(collector, clock, 1)
            if flushed.reason and flushed.error is None:
                done += collector.seen[-1]

        assert sorted(collector.rejected()) == sorted(bad)
        assert sorted(done) == sorted(set("abcd") - set(bad))
        assert collector.states() == {}

    def test_error_that_does_not_count_rejects_nothing(self, collector: Collector, clock: Clock) -> None:
        """Neither at first, nor where one that counts would be the last."""
        collector.changes = {"size": 1}
        collector.add("a")
        for is_counted, times in ((False, 9), (True, 2), (False, 9)):
            collector.verdict = FlushVerdict(is_counted=is_counted, delay_s=5.0)
            flush_often(collector, clock, times)

        assert (collector.rejected(), collector.failures(), len(collector.seen)) == ({}, {"a": 2}, 20)

    def test_error_is_made_fit_to_be_stored(self, collector: Collector, clock: Clock) -> None:
        collector.changes = {"size": 1}
        collector.work = lambda batch: failing(Boom("\0" + "x" * 3_000))()
        collector.add("a")
        flush_often(collector, clock, 3)

        note = collector.rejected()["a"]
        assert len(note) == 2_000
        assert "\0" not in note

    def test_item_whose_last_flush_has_ended_its_worker(
        self, collector: Collector, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Nobody was left to reject it: it is, before it ends another."""
        collector.changes = {"size": 1}
        collector.add("a", "b")
        for death in range(3):
            assert collector.claim(f"death {death}") == ["a"]
            clock.advance(LEASE_MS)

        flushed = collector.flush()

        assert collector.seen == []
        assert "ended their worker, 3 times" in collector.rejected()["a"]
        assert (flushed.items, flushed.rejected, flushed.error) == (0, 1, None)
        assert collector.asked == [""]
        collector.work = lambda batch: None
        collector.flush()
        assert (collector.seen, collector.states()) == ([["b"]], {})


class TestLeaseLost:
    """The flush stood still for too long, and another has its items."""

    def lose(self, collector: Collector, clock: Clock) -> Any:
        def work(batch: Batch[Reading]) -> None:
            clock.advance(LEASE_MS)
            assert collector.claim() == list(batch.ids)

        return work

    def test_nothing_is_removed(self, collector: Collector, clock: Clock) -> None:
        collector.work = self.lose(collector, clock)
        collector.add("a", "b", "c", "d")

        with pytest.raises(LeaseLost):
            collector.flush()

        assert collector.states() == dict.fromkeys("abcd", "leased")

    def test_nothing_is_released(self, collector: Collector, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
        """What the function has raised is told, and not that."""
        lose = self.lose(collector, clock)

        def work(batch: Batch[Reading]) -> None:
            lose(batch)
            raise Boom

        collector.work = work
        collector.add("a", "b", "c", "d")

        assert isinstance(collector.flush().error, Boom)
        assert collector.states() == dict.fromkeys("abcd", "leased")
        assert "its items are not released" in caplog.text

    def test_rejections_go_with_it(self, collector: Collector, clock: Clock) -> None:
        """They come again, and may be rejected again."""
        lose = self.lose(collector, clock)

        def work(batch: Batch[Reading]) -> None:
            lose(batch)
            batch.reject(batch[0])

        collector.work = work
        collector.add("a", "b", "c", "d")
        with pytest.raises(LeaseLost):
            collector.flush()

        assert collector.rejected() == {}


class TestStoreAway:
    """What the function has done cannot be undone: its items are to be removed, if at all possible."""

    def test_when_it_claims(self, collector: Collector) -> None:
        collector.add("a", "b", "c", "d")
        collector.store.once_before("claim", failing(AWAY))

        with pytest.raises(StoreUnavailable):
            collector.flush()

        assert (collector.seen, collector.states()) == ([], dict.fromkeys("abcd", "free"))

    def test_when_it_removes_it_tries_again(self, collector: Collector, slept: list[float]) -> None:
        """The function must not run again for that."""
        collector.work = lambda batch: "done"
        collector.add("a", "b", "c", "d")
        collector.store.once_before("remove", *[failing(AWAY)] * 3)

        assert collector.flush().result == "done"
        assert collector.states() == {}
        assert len(slept) == 3

    def test_when_it_has_removed_and_the_answer_is_lost(self, collector: Collector, slept: list[float]) -> None:
        """To find no lease any more is no news then."""

        def answer_is_lost() -> None:
            collector.store.inner.remove(collector.rules, "", "mine")
            raise AWAY

        collector.work = lambda batch: "done"
        collector.add("a", "b", "c", "d")
        collector.store.once_before("remove", answer_is_lost)

        assert collector.flush("mine").result == "done"
        assert (collector.states(), len(slept)) == ({}, 1)

    def test_when_it_removes_for_half_the_time_of_its_lease(self, collector: Collector, slept: list[float]) -> None:
        """The items come again when the lease ends: somebody must look at the error before."""
        collector.work = lambda batch: None
        collector.add("a", "b", "c", "d")
        collector.store.once_before("remove", *[failing(AWAY)] * 1_000)

        with pytest.raises(StoreUnavailable):
            collector.flush()

        assert LEASE_MS / 2000 - 1 <= sum(slept) <= LEASE_MS / 2000
        assert collector.states() == dict.fromkeys("abcd", "leased")

    def test_when_it_releases(self, collector: Collector, slept: list[float], caplog: pytest.LogCaptureFixture) -> None:
        """The error of the function says more."""
        collector.add("a", "b", "c", "d")
        collector.store.once_before("release", failing(AWAY))

        flushed = collector.flush()

        assert isinstance(flushed.error, Boom)
        assert collector.states() == dict.fromkeys("abcd", "leased")
        assert slept == []
        assert "its items are not released, they come back when its lease ends" in caplog.text

    def test_items_come_back_when_the_lease_ends(self, collector: Collector, clock: Clock) -> None:
        collector.add("a", "b", "c", "d")
        collector.store.once_before("release", failing(AWAY))
        collector.flush()
        clock.advance(LEASE_MS)
        collector.work = lambda batch: None

        assert collector.flush().items == 4
        assert collector.states() == {}
