"""Statuses and deferred messages at their edges, in virtual time."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Literal

import pytest
from celery import Celery, shared_task
from celery.exceptions import SoftTimeLimitExceeded

from celery_sagas import Gathered, Saga
from celery_sagas.errors import MisuseError
from celery_sagas.testing import SagaHarness
from celery_sagas.worker.operators import discard_dead_letter
from celery_sagas.worker.runtime import runtime_of

HOUR = timedelta(hours=1)


@shared_task(acks_late=True)
def weigh(piece: int) -> int:
    """Weigh a piece."""
    return piece


class Parcel(Saga):
    """What the sagas of these tests have in common."""

    number: str
    status: Literal["packed", "sent"] = "packed"
    seen: list[str] = []


@pytest.fixture
def harness(app: Celery) -> Iterator[SagaHarness]:
    """Virtual time."""
    app.conf.saga_step_retries = 0
    with SagaHarness(app) as harness:
        yield harness


class TestEndOfAGather:
    """What has come of its members is kept until its end is handled."""

    @pytest.fixture(params=[False, True], ids=["all", "early"])
    def box(self, app: Celery, request: pytest.FixtureRequest) -> Any:
        class Box(Parcel, correlate_by="number", status_by="status"):
            pass

        @Box.starts
        def pack(box: Box, number: str, step: str) -> None:
            pieces = [weigh.s(piece) for piece in range(3)]
            box.gather(pieces, then=step, otherwise="late", at_least=1, early=request.param, within=HOUR)

        @Box.handles(when="sent", if_not="defer", defer_for=HOUR / 2)
        def impatient(box: Box, weights: Gathered[int]) -> None:
            box.seen.append(f"{len(weights.answers)}")

        @Box.handles(when="sent", if_not="defer")
        def patient(box: Box, weights: Gathered[int]) -> None:
            box.seen.append(f"{len(weights.answers)}")

        @Box.handles(when="sent", if_not="ignore")
        def careless(box: Box, weights: Gathered[int]) -> None: ...

        @Box.handles
        def late(box: Box, weights: Gathered[int]) -> None:
            box.seen.append("too few")

        @Box.handles(to="sent")
        def send(box: Box, number: str) -> None: ...

        Box.pack, Box.send, Box.early = pack, send, request.param  # type: ignore[attr-defined]
        return Box

    def test_it_can_be_watched_and_is_handled(self, harness: SagaHarness, box: Any) -> None:
        harness.send(box.pack, "1", "patient")
        harness.run()
        (gather,) = harness.assert_state(box, "1").saga.gathers.values()
        assert len(gather.answered) == 3
        harness.advance(2 * HOUR)
        harness.send(box.send, "1")
        harness.run()
        assert harness.assert_state(box, "1").seen == [f"{1 if box.early else 3}"]
        assert harness.dead == []

    def test_it_is_a_dead_letter_in_the_end_and_not_a_gather_without_answers(self, harness: SagaHarness, box: Any) -> None:
        harness.send(box.pack, "1", "impatient")
        harness.run()
        harness.advance(timedelta(days=9))
        assert [letter.error for letter in harness.dead] == ["WrongStatus"]
        assert harness.assert_state(box, "1").seen == []

    def test_members_of_an_early_one_that_is_ignored_are_stopped(self, app: Celery, harness: SagaHarness, box: Any) -> None:
        revoked: list[str] = []
        runtime_of(app).revoke = revoked.extend
        harness.send(box.pack, "1", "careless")
        harness.run()
        assert len(revoked) == (2 if box.early else 0)
        assert harness.assert_state(box, "1").saga.requests == {}


class TestEndOfTheWaiting:
    @pytest.fixture
    def box(self, app: Celery) -> Any:
        class Box(Parcel, correlate_by="number", status_by="status"):
            pass

        @Box.starts
        def pack(box: Box, number: str) -> None: ...

        @Box.handles(when="sent", if_not="defer", defer_for=HOUR)
        def scan(box: Box, number: str) -> None:
            box.seen.append("scanned")

        @Box.handles(to="sent")
        def send(box: Box, number: str) -> None: ...

        Box.pack, Box.scan, Box.send = pack, scan, send  # type: ignore[attr-defined]
        return Box

    def test_its_dead_letter_can_be_discarded_and_the_message_stays(self, app: Celery, harness: SagaHarness, box: Any) -> None:
        harness.send(box.pack, "1")
        harness.send(box.scan, "1")
        harness.run()
        harness.wait(2 * HOUR)
        harness.deliver("box.(deferred)", fail=ValueError("a bug"))
        (letter,) = harness.dead

        assert not discard_dead_letter(runtime_of(app), letter)
        assert [message.step for message in harness.assert_state(box, "1").saga.deferred] == ["box.scan"]
        harness.send(box.send, "1")
        harness.run()
        assert (harness.assert_state(box, "1").seen, harness.dead) == (["scanned"], [])


def test_time_limit_while_a_deferred_message_is_judged(app: Celery) -> None:
    """It ends the step that runs, and says nothing about the message."""
    strikes = [False]

    def fits(box: Any, number: str) -> bool:
        if strikes[0]:
            raise SoftTimeLimitExceeded
        return False

    class Box(Parcel, correlate_by="number"):
        pass

    @Box.starts
    def pack(box: Box, number: str) -> None: ...

    @Box.handles(when=fits, if_not="defer")
    def scan(box: Box, number: str) -> None: ...

    @Box.handles
    def touch(box: Box, number: str) -> None: ...

    pack("1")
    scan("1")
    strikes[0] = True
    with pytest.raises(SoftTimeLimitExceeded):
        touch("1")


def test_completion_while_the_end_of_a_compensation_waits(app: Celery, harness: SagaHarness) -> None:
    class Box(Parcel, correlate_by="number", status_by="status"):
        pass

    @Box.starts
    def pack(box: Box, number: str) -> None:
        box.compensate(then=undone)

    @Box.handles(when="sent", if_not="defer")
    def undone(box: Box) -> None: ...

    @Box.handles
    def end(box: Box, number: str) -> None:
        with pytest.raises(MisuseError, match="is being undone, and the step that follows has not run yet"):
            box.complete()

    harness.send(pack, "1")
    harness.run()
    harness.send(end, "1")
    harness.run()
    assert harness.dead == []
