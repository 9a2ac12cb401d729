"""A flush: what its function is given, and what is removed afterwards."""

import logging
from typing import Any, Self

import pytest

from celery_sagas.core.aggregators.batch import Batch
from celery_sagas.engine.aggregators import flush
from celery_sagas.engine.aggregators.flush import Flushed
from celery_sagas.engine.aggregators.renewal import Renewal
from celery_sagas.errors import ItemRejected
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.records import DeadLetter
from celery_sagas.testing.clock import Clock
from tests.engine.aggregators.batches import LEASE_MS, NAME, Collector, Reading, define, payload


@pytest.fixture
def collector(backend: MemoryBackend) -> Collector:
    """An aggregator of pairs."""
    return Collector(backend)


class TestGate:
    """It is looked at again when a flush begins."""

    def test_closed(self, collector: Collector) -> None:
        """Whoever asked, somebody else was faster."""
        collector.add("a")

        assert collector.flush() == Flushed(NAME, "")
        assert (collector.seen, collector.asked, collector.states()) == ([], [], {"a": "free"})

    def test_nothing_buffered(self, collector: Collector) -> None:
        assert collector.flush() == Flushed(NAME, "")

    def test_open(self, collector: Collector) -> None:
        collector.add("a", "b")

        flushed = collector.flush()

        assert collector.seen == [["a", "b"]]
        assert collector.states() == {}
        assert (flushed.name, flushed.group, flushed.reason, flushed.items) == (NAME, "", "size", 2)
        assert (flushed.rejected, flushed.unresolved, flushed.error, flushed.is_settled) == (0, 0, None, False)

    def test_more_than_one_batch(self, collector: Collector) -> None:
        """Another flush is asked for before this one begins: it need not wait."""
        collector.add("a", "b", "c", "d", "e")
        asked: list[list[str]] = []
        collector.work = lambda batch: asked.append(list(collector.asked))

        collector.flush()
        collector.flush()

        assert collector.seen == [["a", "b"], ["c", "d"]]
        assert asked == [[""], [""]]
        assert collector.states() == {"e": "free"}

    def test_is_leased_for_as_long_as_it_takes_to_ask(self, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
        """A broker that does not answer must not cost the lease: it is renewed before anybody is asked."""
        asked_before: list[list[str]] = []

        class Watched(Renewal):
            def __enter__(self) -> Self:
                asked_before.append(list(collector.asked))
                return super().__enter__()

        monkeypatch.setattr(flush, "Renewal", Watched)
        collector.add("a", "b", "c", "d")
        collector.flush()

        assert (asked_before, collector.asked) == ([[]], [""])

    def test_items_that_come_meanwhile_stay(self, collector: Collector) -> None:
        """Exactly the snapshot is removed, and the trigger is looked at again."""
        collector.add("a", "b")
        collector.work = lambda batch: collector.add("c")
        collector.flush()
        assert collector.states() == {"c": "free"}
        assert collector.asked == []

        collector.add("d")
        collector.work = lambda batch: collector.add("e", "f")
        collector.flush()

        assert collector.states() == {"e": "free", "f": "free"}

    def test_asks_again_if_the_trigger_has_fired_and_nobody_else_has(
        self, collector: Collector, backend: MemoryBackend, clock: Clock
    ) -> None:
        """Whoever was told that it is open may have died."""
        collector.add("a", "b")

        def work(batch: Batch[Reading]) -> None:
            collector.add("c", "d")
            clock.advance(LEASE_MS + 1)
            backend.aggregates.renew(collector.rules, "", "mine")

        collector.work = work
        collector.flush("mine")

        assert collector.asked == [""]


class TestBatch:
    """What the function is given."""

    def test_tells_its_ids_name_group_and_reason(self, backend: MemoryBackend, clock: Clock) -> None:
        collector = Collector(backend, define(group_by="device", size=5), group="d1")
        collector.add("m2", "m1")
        collector.add("m3", is_unreadable=True)
        clock.advance(3_600_000)

        collector.flush()

        (batch,) = collector.batches
        assert list(batch) == [Reading(device="m2", celsius=20), Reading(device="m1", celsius=20)]
        assert (batch.ids, batch.name, batch.group, batch.reason) == (("m2", "m1"), NAME, "d1", "age")
        assert batch.unresolved_count == 1

    def test_items_are_fresh_with_each_run(self, collector: Collector, clock: Clock) -> None:
        collector.add("a", "b")
        collector.work = lambda batch: 1 / 0
        collector.flush()
        clock.advance(5_000)
        collector.flush()

        first, second = collector.batches
        assert first[0] == second[0]
        assert first[0] is not second[0]

    def test_result_is_returned(self, collector: Collector) -> None:
        collector.add("a", "b")
        collector.work = len

        assert collector.flush().result == 2

    def test_each_run_has_a_token_of_its_own(self, collector: Collector) -> None:
        """A message that is delivered again does not get what its first run still has."""
        collector.add("a", "b", "c", "d")
        collector.work = lambda batch: collector.flush() if len(collector.batches) == 1 else None

        collector.flush()

        assert collector.seen == [["a", "b"], ["c", "d"]]
        assert collector.states() == {}


class TestRejections:
    """``batch.reject``."""

    def test_become_dead_letters(self, collector: Collector) -> None:
        collector.add("a", "b")
        collector.work = lambda batch: batch.reject(batch[1], "sensor fault")

        flushed = collector.flush()

        assert (collector.states(), collector.rejected()) == ({}, {"b": "sensor fault"})
        assert (flushed.items, flushed.rejected) == (2, 1)
        [(dead_letter, error)] = flushed.rejections
        assert dead_letter._replace(at=collector.dead_letters()["b"].at) == collector.dead_letters()["b"]
        assert (dead_letter.task, dead_letter.key, dead_letter.saga, dead_letter.error, dead_letter.payload) == (
            NAME,
            "",
            "",
            "ItemRejected",
            payload("b"),
        )
        assert (type(error), str(error)) == (
            ItemRejected,
            "The item 'b' of shop.collect was rejected: sensor fault.",
        )

    def test_of_each_item_have_ids_of_their_own(self, backend: MemoryBackend) -> None:
        """Those of one id in two groups, and of one id that was buffered twice, too; but not those of a repeat."""
        dead_letters: list[DeadLetter] = []
        for group in ("d1", "d2", "d1"):
            collector = Collector(backend, define(group_by="device"), {"remember_ms": 0}, group)
            collector.work = lambda batch: [batch.reject(item) for item in batch]
            collector.add("a", "b")
            dead_letters += [rejection.dead_letter for rejection in collector.flush().rejections]
        assert len({dead_letter.id for dead_letter in dead_letters}) == 6
        collector.backend.aggregates.restore(collector.rules, dead_letters[-1])
        [again] = collector.flush().rejections
        assert again.dead_letter.id == dead_letters[-1].id

    def test_become_dead_letters_also_if_the_function_raises(self, collector: Collector) -> None:
        collector.add("a", "b")

        def work(batch: Batch[Reading]) -> None:
            batch.reject(batch[0], "sensor fault")
            raise ZeroDivisionError

        collector.work = work
        flushed = collector.flush()

        assert (collector.failures(), collector.rejected()) == ({"b": 1}, {"a": "sensor fault"})
        assert flushed.rejected == 1

    def test_reason_is_made_fit_to_be_stored(self, collector: Collector) -> None:
        collector.add("a", "b")
        collector.work = lambda batch: batch.reject(batch[0], "\0\ud800" + "x" * 3_000)

        collector.flush()

        note = collector.rejected()["a"]
        assert note.startswith("\\0\\ud800xxx")
        assert len(note) == 2_000


class TestUnread:
    """Items that this code cannot read."""

    def test_are_kept_and_never_passed(self, collector: Collector, caplog: pytest.LogCaptureFixture) -> None:
        collector.add("a")
        collector.add("b", celsius="hot")

        flushed = collector.flush()

        assert collector.seen == [["a"]]
        assert collector.batches[0].unresolved_count == 1
        assert collector.states() == {"b": "unresolved"}
        assert (flushed.items, flushed.unresolved) == (1, 1)
        assert "the item b cannot be read, and waits until it can be" in caplog.text
        assert "hot" not in caplog.text

    def test_alone_call_nothing(self, collector: Collector) -> None:
        collector.add("a", "b", celsius="hot")

        flushed = collector.flush()

        assert collector.seen == []
        assert collector.states() == {"a": "unresolved", "b": "unresolved"}
        assert (flushed.reason, flushed.items, flushed.unresolved, flushed.error) == ("size", 0, 2, None)

    def test_do_not_fire_the_trigger_again(self, collector: Collector) -> None:
        collector.add("a", "b", celsius="hot")
        collector.flush()

        assert collector.flush().reason == ""
        assert collector.asked == []

    @pytest.mark.parametrize("error", [None, ZeroDivisionError()])
    def test_are_kept_whatever_becomes_of_the_others(self, collector: Collector, error: Exception | None) -> None:
        collector.add("a")
        collector.add("b", celsius="hot")

        def work(batch: Batch[Any]) -> None:
            batch.reject(batch[0], "fault")
            if error is not None:
                raise error

        collector.work = work
        collector.flush()

        assert (collector.states(), collector.rejected()) == ({"b": "unresolved"}, {"a": "fault"})

    def test_are_not_blamed_for_a_failure(self, collector: Collector) -> None:
        collector.add("a")
        collector.add("b", celsius="hot")
        collector.work = lambda batch: 1 / 0
        collector.flush()

        assert collector.failures() == {"a": 1, "b": 0}


def test_log_names_the_group(backend: MemoryBackend, caplog: pytest.LogCaptureFixture) -> None:
    """One aggregator has many."""
    collector = Collector(backend, define(group_by="device"), group="d1")
    collector.add("a", "b", celsius="hot")
    with caplog.at_level(logging.WARNING, "celery_sagas"):
        collector.flush()

    assert f"the flush of {NAME} (group 'd1'): the item a cannot be read" in caplog.text
