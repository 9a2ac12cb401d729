"""Interim answers in virtual time: of a saga, or of a participant that the test plays; with crashes and replays."""

from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from celery import Celery

from celery_sagas import Failure, Saga
from celery_sagas.engine.history import history_of
from celery_sagas.testing.harness.crashes import CrashPoint
from celery_sagas.testing.harness.harness import SagaHarness
from celery_sagas.testing.harness.timeline import ScenarioError
from celery_sagas.worker.runtime import runtime_of
from tests.apps import app, definitions, new_app

__all__ = ["app", "definitions", "new_app"]

HOUR = timedelta(hours=1)


class Sagas(NamedTuple):
    """An order that asks for a parcel, and the parcel."""

    order: Any
    parcel: Any
    place: Any
    move: Any


@pytest.fixture
def sagas(app: Celery) -> Sagas:
    """Sagas that keep their histories."""

    class Parcel(Saga, correlate_by="parcel_id", history="messages"):
        parcel_id: str
        told: list[bool] = []

    class Order(Saga, correlate_by="order_id", history="messages"):
        order_id: str
        seen: list[str] = []

    @Parcel.starts
    def pack(parcel: Parcel, parcel_id: str) -> None:
        parcel.told.append(parcel.reply("packed", last=False))

    @Parcel.handles
    def move(parcel: Parcel, parcel_id: str, where: str, last: bool = False) -> None:
        parcel.told.append(parcel.reply(where, last=last))

    @Order.starts
    def place(order: Order, order_id: str, task: str = "parcel.pack") -> None:
        order.send(app.signature(task, ("1",)), then=came, otherwise=failed, within=HOUR, progress=moved)

    @Order.handles
    def moved(order: Order, where: str) -> None:
        order.seen.append(where)

    @Order.handles
    def came(order: Order, where: str) -> None:
        order.seen.append(f"came {where}")

    @Order.handles
    def failed(order: Order, failure: Failure) -> None:
        order.seen.append(failure.kind)

    return Sagas(Order, Parcel, place, move)


@pytest.fixture
def harness(app: Celery) -> Any:
    with SagaHarness(app) as harness:
        yield harness


POINTS: tuple[CrashPoint, ...] = ("before_find", "after_handler", "after_commit", "after_publishing", "before_acknowledgement")


@pytest.mark.parametrize("task", ["order.place", "parcel.pack", "parcel.move", "order.moved", "order.came"])
@pytest.mark.parametrize("crash", POINTS)
def test_process_dies(harness: SagaHarness, sagas: Sagas, task: str, crash: CrashPoint) -> None:
    """Each interim answer comes once, wherever a process dies; an answer that overtakes one ends the request before it."""
    for name in ("order.place", "parcel.pack", "parcel.move", "order.moved", "order.came"):
        harness.hold(name)
    harness.send(sagas.place, "42")
    steps = ["order.place", "parcel.pack", "order.moved", "parcel.move", "order.moved", "parcel.move", "order.came"]
    moves = iter([("Rome", False), ("Oslo", True)])
    for step in steps:
        if step == "parcel.move":
            harness.send(sagas.move, "1", *next(moves))
        if step == task:
            harness.deliver(step, crash=crash)
            harness.advance(timedelta(minutes=1))  # what was not published is left to a relay
        while any(each.task == step for each in harness.pending):
            harness.deliver(step)

    assert harness.state(sagas.order, "42").seen == ["packed", "Rome", "came Oslo"]
    assert harness.state(sagas.parcel, "1").told == [True, True, True]
    assert harness.dead == []


def test_answer_overtakes(harness: SagaHarness, sagas: Sagas) -> None:
    harness.hold("order.moved")
    harness.send(sagas.place, "42")
    harness.run()
    harness.send(sagas.move, "1", "Rome", last=True)
    harness.run()
    assert harness.state(sagas.order, "42").seen == ["came Rome"]
    harness.restore("order.moved")
    harness.run()

    harness.assert_state(sagas.order, "42", seen=["came Rome"])
    assert harness.journal(sagas.order, "42")[-1].step == "order.came"


def test_histories_are_replayed(harness: SagaHarness, app: Celery, sagas: Sagas, tmp_path: Path) -> None:
    """Also what ``reply`` has returned."""
    harness.send(sagas.place, "42")
    harness.run()
    for where, last in (("Rome", False), ("Oslo", True), ("Bern", False)):
        harness.send(sagas.move, "1", where, last=last)
        harness.run()
    assert harness.state(sagas.parcel, "1").told == [True, True, True, False]

    for saga, key in ((sagas.order, "42"), (sagas.parcel, "1")):
        path = tmp_path / f"{key}.json"
        path.write_text(history_of(runtime_of(app).backend.journal, saga.__saga__, key).to_text())
        replayed = harness.replay(path)
        assert replayed is not None
        assert replayed.model_dump() == harness.state(saga, key).model_dump()


def test_history_without_them_is_replayed(harness: SagaHarness, app: Celery, sagas: Sagas, tmp_path: Path) -> None:
    """Then ``reply`` has returned that nobody waits for an interim answer."""

    @sagas.order.starts
    def ask(order: Any, order_id: str) -> None:
        order.send(app.signature("parcel.pack", ("2",)), then="came")

    harness.send(ask, "43")
    harness.run()
    assert harness.state(sagas.parcel, "2").told == [False]

    path = tmp_path / "2.json"
    path.write_text(history_of(runtime_of(app).backend.journal, sagas.parcel.__saga__, "2").to_text())
    assert harness.replay(path).told == [False]  # type: ignore[union-attr, attr-defined]


class TestParticipantOfTheTest:
    """The test gives interim answers in the place of another service."""

    def test_answers(self, harness: SagaHarness, sagas: Sagas) -> None:
        harness.silence("elsewhere.pack")
        harness.send(sagas.place, "42", "elsewhere.pack")
        harness.run()
        (asked,) = harness.assert_sent("elsewhere.pack")
        first, second = (harness.progress(asked, where) for where in ("Rome", "Oslo"))
        assert (first.task, first.args, first.id != second.id) == ("order.moved", ("Rome",), True)
        harness.run()
        harness.assert_state(sagas.order, "42", seen=["Rome", "Oslo"])
        harness.advance(2 * HOUR)
        harness.progress(asked, "Bern")
        harness.run()

        harness.assert_state(sagas.order, "42", seen=["Rome", "Oslo", "deadline"])

    def test_message_that_wants_none(self, harness: SagaHarness, sagas: Sagas) -> None:
        sent = harness.send(sagas.place, "42")

        with pytest.raises(ScenarioError, match=r"order\.place\('42'\) was not sent with progress=, so that no step takes 3"):
            harness.progress(sent, 3)
