"""Series in virtual time: what comes of each occurrence, and of the series."""

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab

from celery_sagas import Saga, signals
from celery_sagas.engine.history import history_of
from celery_sagas.errors import PublishError
from celery_sagas.testing.exploration import explore
from celery_sagas.testing.harness.crashes import POINTS, CrashPoint
from celery_sagas.testing.harness.harness import START, SagaHarness
from celery_sagas.worker import timeouts
from celery_sagas.worker.operators import discard_dead_letter, retry_dead_letter
from celery_sagas.worker.runtime import runtime_of
from tests.apps import NewApp

SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


@pytest.fixture
def meters(app: Celery) -> Any:
    """A saga that reads a meter again and again, and does what the test says at the next reading."""
    todo: list[Any] = []

    class Meter(Saga, correlate_by="number", history="messages"):
        number: str
        ticks: list[datetime] = []
        shown: list[dict[str, datetime]] = []

    @Meter.starts
    def act(meter: Meter, number: str) -> None:
        for do in todo:
            do(meter)
        todo.clear()

    @Meter.handles
    def tick(meter: Meter, name: str = "") -> None:
        meter.ticks.append(meter.saga.now)
        meter.shown.append(dict(meter.saga.timeouts))
        while todo:
            todo.pop(0)(meter)

    def do(*what: Any) -> None:
        todo.extend(what)

    return SimpleNamespace(Meter=Meter, act=act, tick=tick, do=do, app=app)


@pytest.fixture
def harness(meters: Any) -> Iterator[SagaHarness]:
    with SagaHarness(meters.app) as harness:
        yield harness


def begin(harness: SagaHarness, meters: Any, **rule: Any) -> None:
    """Let a meter have a series."""
    meters.do(lambda meter: meter.schedule(meters.tick, name="tick", **rule))
    harness.send(meters.act, "1")
    harness.run()


def act(harness: SagaHarness, meters: Any, *what: Any) -> None:
    meters.do(*what)
    harness.send(meters.act, "1")
    harness.run()


def fail(_: Any) -> None:
    raise ZeroDivisionError("the meter is broken")


def ticks(harness: SagaHarness, meters: Any) -> list[timedelta]:
    """Return when the meter was read, after the start."""
    found = harness.state(meters.Meter, "1")
    assert found is not None
    return [tick - START for tick in found.ticks]


class TestTimes:
    def test_comes_again_and_again(self, harness: SagaHarness, meters: Any) -> None:
        begin(harness, meters, every=MINUTE)
        assert harness.advance(3 * MINUTE) == 3
        assert ticks(harness, meters) == [MINUTE, 2 * MINUTE, 3 * MINUTE]

    @pytest.mark.parametrize("start", [{"after": 10}, {"at": START + 10 * SECOND}])
    def test_begins_when_it_is_told_to(self, harness: SagaHarness, meters: Any, start: Any) -> None:
        begin(harness, meters, every=MINUTE, **start)
        harness.advance(2 * MINUTE)
        assert ticks(harness, meters) == [10 * SECOND, MINUTE + 10 * SECOND]

    def test_that_has_begun_in_the_past_comes_at_once_and_then_in_its_phase(self, harness: SagaHarness, meters: Any) -> None:
        begin(harness, meters, every=MINUTE, at=START - DAY - 10 * SECOND)
        harness.advance(2 * MINUTE)
        assert ticks(harness, meters) == [0 * SECOND, 50 * SECOND, 110 * SECOND]

    def test_crontab_in_the_time_zone_of_the_app(self, meters: Any) -> None:
        """Over the night on which clocks are set forward."""
        meters.app.conf.timezone = "Europe/London"
        zone = ZoneInfo("Europe/London")
        with SagaHarness(meters.app, now=datetime(2040, 3, 23, tzinfo=UTC)) as harness:
            begin(harness, meters, every=crontab(minute="30", hour="1,12"))
            harness.advance(3 * DAY)
            shown = [tick.astimezone(zone).strftime("%d %H:%M %Z") for tick in harness.state(meters.Meter, "1").ticks]  # type: ignore[union-attr]
        assert shown == ["23 01:30 GMT", "23 12:30 GMT", "24 01:30 GMT", "24 12:30 GMT", "25 02:00 BST", "25 12:30 BST"]

    @pytest.mark.parametrize(("start", "first"), [(-DAY, HOUR), (3 * HOUR, 3 * HOUR), (90 * MINUTE, 2 * HOUR)])
    def test_crontab_that_begins_later(self, harness: SagaHarness, meters: Any, start: timedelta, first: timedelta) -> None:
        """With its next time then; one in the past is not made up for."""
        begin(harness, meters, every=crontab(minute=0), at=START + start)
        harness.advance(first + HOUR)
        assert ticks(harness, meters) == [first, first + HOUR]

    def test_view_shows_the_next_time(self, harness: SagaHarness, meters: Any) -> None:
        """Also in the step that handles an occurrence."""
        begin(harness, meters, every=MINUTE, after=5)
        assert harness.state(meters.Meter, "1").saga.timeouts == {"tick": START + 5 * SECOND}  # type: ignore[union-attr]
        harness.advance(MINUTE)
        found = harness.state(meters.Meter, "1")
        assert found is not None
        assert found.shown == [{"tick": START + MINUTE + 5 * SECOND}]
        assert found.saga.timeouts == {"tick": START + MINUTE + 5 * SECOND}
        assert [(each.name, each.due_at) for each in harness.timeouts] == [("tick", START + MINUTE + 5 * SECOND)]

    def test_each_occurrence_is_a_message_of_its_own(self, harness: SagaHarness, meters: Any) -> None:
        begin(harness, meters, every=MINUTE)
        harness.advance(3 * MINUTE)
        assert len({message.id for message in harness.assert_sent(meters.tick, times=3)}) == 3

    def test_arguments_come_each_time_as_they_were(self, harness: SagaHarness, meters: Any) -> None:
        """Also such as kombu's JSON decodes."""
        meters.do(lambda meter: meter.schedule(meters.tick.s("2040-01-01T00:00:00+00:00 Ω"), every=MINUTE))
        harness.send(meters.act, "1")
        harness.advance(2 * MINUTE)
        harness.assert_sent(meters.tick, "2040-01-01T00:00:00+00:00 Ω", times=2)


class TestMissed:
    def test_nothing_is_made_up_for(self, harness: SagaHarness, meters: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """No relay has run for a day."""
        begin(harness, meters, every=HOUR, after=10 * MINUTE)
        harness._world._ms += int(DAY.total_seconds() * 1000)
        harness.run()
        assert ticks(harness, meters) == [DAY]
        harness.advance(HOUR)
        assert ticks(harness, meters) == [DAY, DAY + 10 * MINUTE]

    def test_of_those_that_wait_in_the_broker_one_is_handled(
        self, harness: SagaHarness, meters: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A relay has run, and no worker."""
        begin(harness, meters, every=HOUR)
        ignored: list[Any] = []
        signals.step_ignored.connect(receiver := lambda outcome, **_: ignored.append(outcome.reason), weak=False)
        try:
            harness.wait(10 * HOUR + 30 * MINUTE)
            assert len(harness.pending) == 10
            assert harness.run() == 10
        finally:
            signals.step_ignored.disconnect(receiver)
        assert ticks(harness, meters) == [10 * HOUR + 30 * MINUTE]
        assert ignored == ["overtaken"] * 9
        harness.advance(HOUR)
        assert ticks(harness, meters)[1:] == [11 * HOUR]

    def test_next_one_does_not_wait_for_one_that_waits(self, harness: SagaHarness, meters: Any) -> None:
        """The older one then changes nothing."""
        begin(harness, meters, every=HOUR)
        harness.wait(HOUR)
        (first,) = harness.pending
        harness.hold(meters.tick)
        harness.advance(HOUR)
        second = harness.pending[-1]
        harness.deliver(second)
        harness.deliver(first)
        assert ticks(harness, meters) == [2 * HOUR]


class TestFailures:
    def test_failed_occurrence_is_a_dead_letter_and_the_series_goes_on(self, harness: SagaHarness, meters: Any) -> None:
        begin(harness, meters, every=MINUTE)
        meters.do(fail)
        harness.advance(3 * MINUTE)
        assert [letter.error for letter in harness.dead] == ["ZeroDivisionError"]
        assert ticks(harness, meters) == [2 * MINUTE, 3 * MINUTE]

    def test_retry_of_its_dead_letter_is_handled_however_late(self, harness: SagaHarness, meters: Any) -> None:
        begin(harness, meters, every=MINUTE)
        meters.do(fail)
        harness.advance(150 * SECOND)
        (letter,) = harness.dead
        assert retry_dead_letter(runtime_of(meters.app), letter).id
        harness.run()
        assert ticks(harness, meters) == [2 * MINUTE, 150 * SECOND]
        harness.advance(MINUTE)
        assert ticks(harness, meters)[2:] == [3 * MINUTE]

    def test_discarding_its_dead_letter_leaves_the_series(self, harness: SagaHarness, meters: Any) -> None:
        begin(harness, meters, every=MINUTE)
        meters.do(fail)
        harness.advance(MINUTE)
        (letter,) = harness.dead
        assert not discard_dead_letter(runtime_of(meters.app), letter)
        assert harness.dead == []
        harness.advance(MINUTE)
        assert ticks(harness, meters) == [2 * MINUTE]

    def test_dead_letter_of_an_ended_series_is_not_retried(self, harness: SagaHarness, meters: Any) -> None:
        begin(harness, meters, every=MINUTE)
        meters.do(fail)
        harness.advance(MINUTE)
        act(harness, meters, lambda meter: meter.unschedule("tick"))
        assert not retry_dead_letter(runtime_of(meters.app), harness.dead[0]).id

    def test_occurrence_that_cannot_be_published_is_a_dead_letter_and_the_series_goes_on(
        self, harness: SagaHarness, meters: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begin(harness, meters, every=HOUR)
        publisher = type(runtime_of(meters.app).publisher)
        publish = publisher.publish

        def refuse(*_: Any) -> None:
            raise PublishError("it is too large", False)

        monkeypatch.setattr(publisher, "publish", refuse)
        attempts = runtime_of(meters.app).settings.max_deliveries
        harness.advance(HOUR + timedelta(seconds=2**attempts))
        monkeypatch.setattr(publisher, "publish", publish)
        assert [(letter.task, letter.text) for letter in harness.dead] == [(meters.tick.name, "it is too large")]
        harness.advance(HOUR)
        assert ticks(harness, meters) == [2 * HOUR]
        assert retry_dead_letter(runtime_of(meters.app), harness.dead[0]).id
        harness.run()
        assert len(ticks(harness, meters)) == 2

    @pytest.mark.parametrize("point", POINTS)
    def test_killed_worker(self, harness: SagaHarness, meters: Any, point: CrashPoint) -> None:
        begin(harness, meters, every=MINUTE)
        harness.wait(MINUTE)
        harness.deliver(meters.tick, crash=point)
        harness.run()
        harness.advance(MINUTE)
        assert ticks(harness, meters) == [MINUTE, 2 * MINUTE]

    def test_occurrence_that_is_published_twice_is_handled_once(
        self, harness: SagaHarness, meters: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The relay has died, or the store went away, after it was published."""
        begin(harness, meters, every=HOUR)
        outbox = harness._world.backend.outbox
        lost: list[Any] = []
        monkeypatch.setattr(outbox, "reschedule", lambda *call: lost.append(call) or 0)
        harness.advance(HOUR)
        monkeypatch.undo()
        assert len(lost) == 1
        harness.advance(HOUR - SECOND)
        first, again = harness.assert_sent(meters.tick, times=2)
        assert first.id == again.id
        assert ticks(harness, meters) == [HOUR]
        harness.advance(SECOND)
        assert ticks(harness, meters) == [HOUR, 2 * HOUR]

    def test_series_that_cannot_be_read_is_left_to_others(
        self, harness: SagaHarness, meters: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Newer code may have written it."""
        begin(harness, meters, every=HOUR)
        rows = harness._world.backend._state.outbox._by_id
        (row,) = rows.values()
        newer = row.message._replace(payload=row.message.payload.replace('"ms"', '"moons"'))
        monkeypatch.setitem(rows, newer.id, row.__class__(newer, row.due_since, position=row.position))
        harness.advance(2 * HOUR)
        harness.assert_sent(meters.tick, times=0)
        assert "of meter.tick is left to another worker: {'first'" in caplog.text
        assert harness._world.backend.outbox.count() == 1


class TestEnd:
    def end(self, harness: SagaHarness, meters: Any) -> None:
        """Assert that nothing comes any more."""
        assert harness._world.backend.outbox.count() == 0
        assert harness.timeouts == []
        count = len(harness.assert_sent(meters.tick))
        assert harness.advance(DAY) == 0
        harness.assert_sent(meters.tick, times=count)

    def test_unscheduled_by_another_step(self, harness: SagaHarness, meters: Any) -> None:
        begin(harness, meters, every=MINUTE)
        harness.advance(MINUTE)
        act(harness, meters, lambda meter: meter.unschedule("tick"))
        self.end(harness, meters)

    def test_unscheduled_by_an_occurrence(self, harness: SagaHarness, meters: Any) -> None:
        begin(harness, meters, every=MINUTE)
        harness.advance(MINUTE)
        meters.do(lambda meter: meter.unschedule("tick"))
        harness.advance(MINUTE)
        assert ticks(harness, meters) == [MINUTE, 2 * MINUTE]
        self.end(harness, meters)

    def test_unscheduled_by_the_id_of_one_without_a_name(self, harness: SagaHarness, meters: Any) -> None:
        made: list[str] = []
        act(harness, meters, lambda meter: made.append(meter.schedule(meters.tick, every=MINUTE)))
        harness.advance(2 * MINUTE)
        act(harness, meters, lambda meter: meter.unschedule(made[0]))
        self.end(harness, meters)

    def test_instance_completes_in_an_occurrence(self, harness: SagaHarness, meters: Any) -> None:
        begin(harness, meters, every=MINUTE)
        meters.do(lambda meter: meter.complete())
        harness.advance(MINUTE)
        harness.assert_completed(meters.Meter, "1", by=meters.tick)
        self.end(harness, meters)

    def test_occurrence_on_its_way_is_dropped(self, harness: SagaHarness, meters: Any) -> None:
        begin(harness, meters, every=MINUTE)
        harness.wait(MINUTE)
        harness.hold(meters.tick)
        act(harness, meters, lambda meter: meter.unschedule("tick"))
        harness.deliver(meters.tick)
        assert ticks(harness, meters) == []

    def test_completed_while_a_relay_publishes_it(
        self, harness: SagaHarness, meters: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its row is not brought back."""
        begin(harness, meters, every=MINUTE)
        outbox = harness._world.backend.outbox
        reschedule = outbox.reschedule

        def late(*call: Any) -> int:
            meters.do(lambda meter: meter.complete())
            meters.act("1")
            return reschedule(*call)

        monkeypatch.setattr(outbox, "reschedule", late)
        harness.advance(MINUTE)
        self.end(harness, meters)

    def test_replaced_by_another_series(self, harness: SagaHarness, meters: Any) -> None:
        begin(harness, meters, every=MINUTE)
        harness.advance(MINUTE)
        act(harness, meters, lambda meter: meter.schedule(meters.tick, every=HOUR, name="tick"))
        harness.advance(2 * HOUR)
        assert ticks(harness, meters) == [MINUTE, MINUTE + HOUR, MINUTE + 2 * HOUR]
        assert harness._world.backend.outbox.count() == 1

    def test_replaced_by_a_timeout(self, harness: SagaHarness, meters: Any) -> None:
        begin(harness, meters, every=MINUTE)
        act(harness, meters, lambda meter: meter.schedule(meters.tick, after=HOUR, name="tick"))
        harness.advance(HOUR)
        assert ticks(harness, meters) == [HOUR]
        self.end(harness, meters)

    def test_replaced_in_its_own_step(self, harness: SagaHarness, meters: Any) -> None:
        begin(harness, meters, every=MINUTE)
        meters.do(lambda meter: meter.schedule(meters.tick, every=HOUR, name="tick"))
        harness.advance(2 * HOUR)
        assert ticks(harness, meters) == [MINUTE, MINUTE + HOUR]

    def test_key_that_begins_again_has_no_series(self, harness: SagaHarness, meters: Any) -> None:
        begin(harness, meters, every=MINUTE)
        harness.wait(MINUTE)
        harness.hold(meters.tick)
        act(harness, meters, lambda meter: meter.complete())
        act(harness, meters)
        harness.deliver(meters.tick)
        assert ticks(harness, meters) == []


class TestSurroundings:
    def test_repeat_of_the_message_that_began_it_leaves_its_occurrences_to_the_relay(
        self, harness: SagaHarness, meters: Any
    ) -> None:
        """It publishes what the first run has left, which is not a series: that would end with it."""
        meters.do(lambda meter: meter.schedule(meters.tick, name="tick", every=HOUR, at=START))
        began = harness.send(meters.act, "1")
        harness.deliver(began)
        harness.deliver(began)
        assert harness.assert_sent(meters.tick, times=0) == []
        harness.advance(2 * HOUR)
        assert len(ticks(harness, meters)) == 3
        assert ticks(harness, meters)[1:] == [HOUR, 2 * HOUR]

    def test_many_instances_at_once(self, harness: SagaHarness, meters: Any) -> None:
        for number in range(30):
            meters.do(lambda meter: meter.schedule(meters.tick, every=MINUTE))
            harness.send(meters.act, str(number))
            harness.run()
        harness.advance(5 * MINUTE)
        for number in range(30):
            assert len(harness.state(meters.Meter, str(number)).ticks) == 5  # type: ignore[union-attr]

    def test_history_is_replayed(self, app: Celery, tmp_path: Path) -> None:
        """Each occurrence finds its series, under whatever id today's code gives it."""
        todays: list[str] = []

        class Clock(Saga, correlate_by="name", history="messages"):
            name: str
            ticks: list[datetime] = []

        @Clock.starts
        def wind(clock: Clock, name: str) -> None:
            for task in todays:
                clock.send(app.signature(task))
            clock.schedule(tick, every=HOUR, name="tick")

        @Clock.handles
        def tick(clock: Clock) -> None:
            clock.ticks.append(clock.saga.now)
            if len(clock.ticks) == 3:
                clock.complete()

        with SagaHarness(app) as harness:
            harness.send(wind, "one")
            harness.run()
            harness.advance(3 * HOUR)
            harness.assert_completed(Clock, "one")
            path = tmp_path / "clock.json"
            path.write_text(history_of(harness._world.backend.journal, Clock.__saga__, "one").to_text())  # type: ignore[arg-type]
            assert harness.replay(path) is None
            todays.append("chime")
            assert harness.replay(path) is None

    def test_exploration(self, meters: Any) -> None:
        """No time is handled twice, whatever is repeated and whoever is killed."""

        def scenario(harness: SagaHarness) -> None:
            begin(harness, meters, every=HOUR)

        def invariant(harness: SagaHarness) -> None:
            found = harness.state(meters.Meter, "1")
            if found is None:
                return
            assert len(found.ticks) == len(set(found.ticks)) <= (harness.now - START) // HOUR
            assert len(harness.timeouts) == 1
            assert harness._world.backend.outbox.count() == 1

        explore(scenario, invariant, app=meters.app, lasts=5 * HOUR, examples=60)

    def test_nothing_runs_in_eager_mode(
        self, new_app: NewApp, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(timeouts, "_told", [])  # this process may have warned before
        app = new_app(eager=True)

        class Clock(Saga, correlate_by="name"):
            name: str
            ticks: int = 0

        @Clock.starts
        def wind(clock: Clock, name: str) -> None:
            clock.schedule(tick, every=SECOND, at=datetime(2020, 1, 1, tzinfo=UTC))

        @Clock.handles
        def tick(clock: Clock) -> None:
            clock.ticks += 1

        caplog.set_level(logging.WARNING)
        wind.delay("one")
        assert Clock.find("one").ticks == 0  # type: ignore[union-attr]
        assert runtime_of(app).backend.outbox.count() == 1
        assert "nothing that is scheduled runs while task_always_eager is set" in caplog.text
