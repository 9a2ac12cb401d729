"""Renewal: a lease lasts while its run does, and no longer."""

import threading
from collections.abc import Callable

import pytest

from celery_sagas.core.aggregators.batch import Batch
from celery_sagas.engine.aggregators.renewal import Renewal
from celery_sagas.errors import StoreUnavailable
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.testing.clock import Clock
from tests.engine.aggregators.batches import Collector, Reading, failing
from tests.waiting import wait_until

#: Seconds; a third of it is waited for in a thread.
LEASE_S = 0.03
#: So long a lease that nothing is renewed within a test.
LONG_S = 3_600.0


class Renewals:
    """What is renewed, and what comes of it."""

    def __init__(self, *outcomes: bool | Exception) -> None:
        self.count = 0
        self.threads: set[str] = set()
        self._outcomes = list(outcomes)

    def __call__(self) -> bool:
        self.count += 1
        self.threads.add(threading.current_thread().name)
        outcome = self._outcomes.pop(0) if self._outcomes else True
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def reach(self, count: int) -> None:
        """Wait until it has renewed so often."""
        wait_until(lambda: self.count >= count, lambda: f"{self.count} renewals, and not {count}")


def ended(renewal: Renewal) -> Callable[[], bool]:
    """Return whether its thread has ended."""
    return lambda: not renewal._thread.is_alive()


def test_renews_while_it_runs_in_a_thread_of_its_own() -> None:
    """The function that it is for may never look up."""
    renewals = Renewals()
    with Renewal(renewals, LEASE_S, None, "the flush"):
        renewals.reach(3)

    assert renewals.threads == {"celery-sagas-renewal"}


@pytest.mark.parametrize("error", [None, KeyError()])
def test_ends_with_the_run_whatever_its_end(error: Exception | None) -> None:
    """Its lease is ended otherwise, or ends by itself."""
    running = Renewal(Renewals(), LEASE_S, None, "the flush")
    try:
        with running:
            if error is not None:
                raise error
    except KeyError:
        pass

    wait_until(ended(running), "the thread has not ended")


def test_short_run_renews_nothing() -> None:
    """As most are."""
    renewals = Renewals()
    with Renewal(renewals, LONG_S, None, "the flush") as running:
        pass

    wait_until(ended(running), "the thread has not ended")
    assert renewals.count == 0


def test_stops_at_the_time_limit_of_the_run() -> None:
    """Nobody renews the lease of a run that was killed, or should have been."""
    renewals = Renewals()
    with Renewal(renewals, LEASE_S, 0.0, "the flush") as running:
        wait_until(ended(running), "the thread has not ended")

    assert renewals.count == 0


def test_goes_on_before_the_time_limit() -> None:
    """Which may be far away."""
    renewals = Renewals()
    with Renewal(renewals, LEASE_S, LONG_S, "the flush"):
        renewals.reach(2)


def test_tells_when_the_lease_is_lost_and_stops(caplog: pytest.LogCaptureFixture) -> None:
    """The function goes on: nothing else can be done about it."""
    renewals = Renewals(True, False)
    with Renewal(renewals, LEASE_S, None, "the flush of shop.collect") as running:
        wait_until(ended(running), "the thread has not ended")

    assert renewals.count == 2
    assert caplog.messages == ["the flush of shop.collect has lost its lease: its items are flushed again"]


def test_survives_errors_of_the_store(caplog: pytest.LogCaptureFixture) -> None:
    """Two renewals may fail in the time of a lease."""
    renewals = Renewals(StoreUnavailable("memory://", "away"), StoreUnavailable("memory://", "away"))
    with Renewal(renewals, LEASE_S, None, "the flush of shop.collect"):
        renewals.reach(4)

    assert caplog.text.count("the lease of the flush of shop.collect was not renewed, and is tried again") == 2


def test_stops_with_an_error_that_is_none_of_the_stores(caplog: pytest.LogCaptureFixture) -> None:
    """A bug: it is told once, and does not end the process."""
    with Renewal(Renewals(ZeroDivisionError()), LEASE_S, None, "the flush") as running:
        wait_until(ended(running), "the thread has not ended")

    assert "the lease of the flush is renewed no more" in caplog.text
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("outcome", [False, ZeroDivisionError()])
def test_what_happens_after_the_run_is_not_told(outcome: bool | Exception, caplog: pytest.LogCaptureFixture) -> None:
    """The lease was ended by whoever had it, and the store was closed."""
    began, may_go_on = threading.Event(), threading.Event()

    def renew() -> bool:
        began.set()
        may_go_on.wait(60)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    with Renewal(renew, LEASE_S, None, "the flush") as running:
        assert began.wait(60)
    may_go_on.set()
    wait_until(ended(running), "the thread has not ended")

    assert caplog.messages == []


class TestFlush:
    """A flush renews what it has claimed."""

    @pytest.fixture
    def collector(self, backend: MemoryBackend) -> Collector:
        """An aggregator whose leases are short."""
        return Collector(backend, changes={"lease_ms": int(LEASE_S * 1000)})

    def test_renews_while_its_function_runs(self, collector: Collector) -> None:
        def work(batch: Batch[Reading]) -> None:
            wait_until(lambda: collector.store.calls.count("renew") >= 3, "not renewed")

        collector.work = work
        collector.add("a", "b")
        collector.flush()

        assert collector.states() == {}

    def test_goes_on_while_the_store_is_away(self, collector: Collector) -> None:
        away = failing(StoreUnavailable("memory://", "away"))
        collector.store.once_before("renew", away, away)

        def work(batch: Batch[Reading]) -> None:
            wait_until(lambda: collector.store.calls.count("renew") >= 1, "not renewed")

        collector.work = work
        collector.add("a", "b")
        collector.flush()

        assert collector.states() == {}

    def test_renews_also_for_an_item_that_is_rejected_unseen(self, collector: Collector, clock: Clock) -> None:
        """No function runs."""
        collector.changes |= {"size": 1, "max_attempts": 1}
        collector.add("a")
        collector.claim("death")
        clock.advance(int(LEASE_S * 1000))
        begun: list[int] = []
        before = renewals()  # those of other tests may end meanwhile
        collector.store.once_before("remove", lambda: begun.append(len(renewals() - before)))
        collector.flush()

        assert (collector.seen, list(collector.rejected()), begun) == ([], ["a"], [1])


def renewals() -> set[threading.Thread]:
    """Return the threads of renewals."""
    return {thread for thread in threading.enumerate() if thread.name == "celery-sagas-renewal"}
