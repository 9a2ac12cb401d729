"""Undoing seen from around an instance: by who asks it, by operators, by programs that watch, and by the store."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from celery.app.task import Context
from pydantic_core import to_jsonable_python

from celery_sagas import Backoff, signals
from celery_sagas.core.registry import registry
from celery_sagas.engine.history import history_of
from celery_sagas.errors import InvalidMessage
from celery_sagas.worker.failures.notifications import notify_requester
from celery_sagas.worker.operators import discard_dead_letter, retry_dead_letter
from celery_sagas.worker.replaying import replaying
from celery_sagas.worker.runtime import runtime_of
from tests.apps import Worker, backend_of
from tests.every_store import stored_app, url
from tests.worker.requests.trips import HOUR, MONTH, Trips, app, held_back, hours_ago, on_every_store, trips

__all__ = ["app", "stored_app", "trips", "url"]

pytestmark = on_every_store

VALUES = [
    Decimal("9.50"),
    UUID("6f9619ff-8b86-d011-b42d-00c04fc964ff"),
    datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC),
    date(2030, 1, 2),
    {"a": [1, None, True, "ä"]},
    [],
    "",
    None,
]


class TestChild:
    """A saga that another one asks to undo."""

    @pytest.fixture
    def child(self, worker: Worker, trips: Trips) -> Any:
        """The trip ``child``, which has booked."""
        options = {"then": "came", "otherwise": "failed", "within": HOUR, "undo": trips.cancel}
        trips.do(worker, lambda trip: trip.send(trips.book.s("C"), **options), "child")
        worker.run()

    def test_step_answers_when_all_is_undone(self, worker: Worker, trips: Trips, child: Any) -> None:
        trips.do(worker, lambda trip: trip.send(trips.saga.stop.s("child"), then="came") and None)
        assert worker.one().task == "trip.stop"
        (undo,) = held_back(worker)
        assert (undo.task, trips.seen()) == ("cancel", [])
        worker.deliver_again(undo)
        worker.run()

        assert trips.seen() == ["came stopped"]
        assert trips.seen("child")[-1] == "undone"

    def test_step_answers_at_once_with_nothing_to_undo(self, worker: Worker, trips: Trips) -> None:
        trips.do(worker, lambda trip: None, "child")
        trips.do(worker, lambda trip: trip.send(trips.saga.stop.s("child"), then="came") and None)
        worker.run()

        assert trips.seen() == ["came stopped"]

    def test_every_asker_is_answered_once(self, worker: Worker, trips: Trips, child: Any) -> None:
        for key in "78":
            trips.do(worker, lambda trip: trip.send(trips.saga.stop.s("child"), then="came") and None, key)
            assert worker.one().task == "trip.stop"
            if key == "7":
                (undo,) = held_back(worker)
        worker.deliver_again(undo)
        worker.run()

        assert (trips.seen("7"), trips.seen("8")) == (["came stopped"], ["came stopped"])
        assert trips.seen("child") == ["came ticket C", "undone"]

    def test_undo_of_a_parent_ends_with_that_of_its_child(self, worker: Worker, trips: Trips, child: Any) -> None:
        trips.send(worker, undo=trips.saga.stop.si("child"))
        worker.run()
        trips.compensate(worker)
        assert worker.one().task == "trip.stop"
        (undo,) = held_back(worker)
        assert trips.seen() == ["came ticket A"]
        worker.deliver_again(undo)
        worker.run()

        assert trips.seen() == ["came ticket A", "undone"]

    def test_child_that_is_gone_counts_as_undone(self, worker: Worker, trips: Trips) -> None:
        trips.send(worker, undo=trips.saga.stop.si("child"))
        worker.run()
        trips.compensate(worker)
        worker.run()

        assert trips.seen() == ["came ticket A", "undone"]


class TestOutcomeThatFails:
    """The step that gets the answer fails, and its message is a dead letter when everything is undone."""

    @pytest.fixture
    def dead_letter(self, worker: Worker, trips: Trips) -> Any:
        """That of the answer."""

        @trips.saga.handles
        def refused(trip: Any, answer: Decimal) -> None: ...

        trips.send(worker, "A", then="refused")
        worker.run()
        (dead_letter,) = trips.dead()
        assert (dead_letter.task, dead_letter.error) == ("trip.refused", InvalidMessage.__name__)
        return dead_letter

    def test_retry_is_undone(self, worker: Worker, trips: Trips, dead_letter: Any) -> None:
        trips.compensate(worker)
        worker.run()
        assert trips.args() == []
        assert retry_dead_letter(runtime_of(trips.app), dead_letter).id
        worker.run()

        assert trips.args() == [("ticket A",)]
        assert trips.seen() == ["failed unhandled", "undone"]

    def test_discard_is_undone(self, worker: Worker, trips: Trips, dead_letter: Any) -> None:
        trips.compensate(worker)
        worker.run()
        assert discard_dead_letter(runtime_of(trips.app), dead_letter)
        worker.run()

        assert trips.args() == [("ticket A",)]
        assert (trips.seen()[-1], trips.dead(), trips.rows()) == ("undone", [], 0)

    def test_discard_can_be_undone(self, worker: Worker, trips: Trips, dead_letter: Any) -> None:
        """What was booked is no less there."""
        assert discard_dead_letter(runtime_of(trips.app), dead_letter)
        worker.run()
        assert (trips.args(), trips.seen()) == ([], ["failed unhandled"])
        trips.compensate(worker)
        worker.run()

        assert trips.cancelled == [(("ticket A",), trips.ids["A"])]


class TestFailureThatFails:
    """The step that gets the failure fails, too, and its message is a dead letter when everything is undone."""

    @pytest.fixture
    def dead_letter(self, worker: Worker, trips: Trips) -> Any:
        """That of the failure."""

        @trips.saga.handles
        def broken(trip: Any, failure: Any) -> None:
            raise ValueError("broken")

        trips.failing = {"A"}
        trips.send(worker, "A", otherwise="broken", undo=trips.cancel.si("A"))
        worker.run()
        trips.compensate(worker)
        worker.run()
        assert trips.trip().saga.undoing
        (dead_letter,) = trips.dead()
        return dead_letter

    @pytest.mark.parametrize("act", [retry_dead_letter, discard_dead_letter])
    def test_compensation_goes_on(self, worker: Worker, trips: Trips, dead_letter: Any, act: Any) -> None:
        """It waits for that outcome."""
        assert act(runtime_of(trips.app), dead_letter)
        worker.run()

        assert trips.args() == [("A",)]
        assert (trips.seen(), trips.dead(), trips.rows()) == (["undone"], [], 0)


def test_replay(worker: Worker, trips: Trips) -> None:
    """The same steps come to the same, also where the library handled the outcome."""
    acts: list[Any] = []

    def do(act: Any) -> None:
        acts.append(act)
        trips.do(worker, act)

    def send(what: str, **options: Any) -> Any:
        given = {"then": "came", "otherwise": "failed", "within": HOUR, "undo": trips.cancel, **options}
        return lambda trip: trip.send(trips.book.s(what), **given) and None

    do(send("A", undo=trips.cancel.si("A")))
    worker.run()
    do(send("B", retry=Backoff(2)))
    (held,) = held_back(worker)
    request = Context(dict(held.headers), headers=dict(held.headers), id=held.id, task="book")
    assert notify_requester(trips.app, request, "revoked", "revoked")
    worker.run()
    trips.failing = {"C"}
    with hours_ago():
        do(send("C", within=MONTH, retry=Backoff(1), undo=trips.cancel.si("C")))
        worker.run()
        assert trips.relay("sent") == 1
        worker.run()
    do(lambda trip: trip.compensate(then="undone"))
    worker.run()
    assert trips.seen() == ["came ticket A", "failed revoked", "failed error", "undone"]
    trips.saga.end.delay("7")
    worker.run()

    history = history_of(backend_of(trips.app).journal, registry.sagas["trip"], "7")
    acts = iter(acts)
    trips.act = lambda trip: next(acts)(trip)
    with replaying(trips.app) as replay:
        assert str(replay(history)) == f"trip '7': {len(history.messages)} messages, and the same state after each"
    outcomes = {message.outcome for message in history.messages}
    assert outcomes == {"started", "handled", "retried", "undone", "completed"}
    assert {entry.outcome for entry in trips.entries() if "changed" in json.loads(entry.detail)} == {"started", "handled"}


def test_discarded_then_ends_the_compensation(worker: Worker, trips: Trips) -> None:
    """Its message fails for good."""

    @trips.saga.handles
    def broken(trip: Any) -> None:
        raise ValueError("broken")

    trips.compensate(worker, then="broken")
    worker.run()
    (dead_letter,) = trips.dead()
    assert trips.trip().saga.undoing
    assert discard_dead_letter(runtime_of(trips.app), dead_letter)

    assert not trips.trip().saga.undoing
    trips.saga.end("7")


def test_signal(worker: Worker, trips: Trips) -> None:
    """Once, with the commit that ends it."""
    sent: list[tuple[str, str, str]] = []

    def note(sender: Any, outcome: Any, **_: Any) -> None:
        sent.append((sender.name, outcome.saga, outcome.key))

    signals.saga_compensated.connect(note)
    try:
        trips.send(worker)
        worker.run()
        trips.compensate(worker)
        assert sent == []
        worker.run()
        assert sent == [("trip.(undone)", "trip", "7")]
        trips.compensate(worker)
        worker.run()
    finally:
        signals.saga_compensated.disconnect(note)

    assert sent[1:] == [("trip.travel", "trip", "7")]


class TestPendingMap:
    """What is kept of it."""

    def formats(self, trips: Trips) -> int:
        """Return the format of the trip 7."""
        return int(json.loads(trips.record().pending).get("format", 1))

    def test_has_its_first_format_without_undo(self, worker: Worker, trips: Trips) -> None:
        trips.hold(worker, undo=None)
        assert self.formats(trips) == 1
        trips.do(worker, lambda trip: trip.schedule("told", after=HOUR) and None)
        assert self.formats(trips) == 1

    @pytest.mark.parametrize("undo", [True, False])
    def test_has_its_second_format_while_there_is_an_undo(self, worker: Worker, trips: Trips, undo: bool) -> None:
        trips.send(worker, undo=trips.cancel if undo else None, retry=None if undo else Backoff(1))
        assert self.formats(trips) == 2
        worker.run()
        assert self.formats(trips) == (2 if undo else 1)
        trips.compensate(worker)
        worker.run()

        assert self.formats(trips) == 1


class TestValues:
    """What kombu's JSON keeps arrives as it does with ``send``."""

    @pytest.fixture
    def sent(self, worker: Worker, trips: Trips) -> Any:
        """A function that returns a value as a task gets it that was sent it."""
        got: list[Any] = []

        @trips.app.task(name="take")
        def take(value: Any) -> None:
            got.append(value)

        @trips.app.task(name="give", acks_late=True)
        def give(text: str) -> Any:
            return next(value for value in VALUES if repr(value) == text)

        def send(value: Any) -> Any:
            trips.do(worker, lambda trip: trip.send(take.s(value)) and None)
            worker.run()
            return got.pop()

        return send

    @pytest.mark.parametrize("value", VALUES, ids=repr)
    def test_arguments(self, worker: Worker, trips: Trips, sent: Any, value: Any) -> None:
        trips.send(worker, undo=trips.cancel.si(value, value))
        worker.run()
        trips.compensate(worker)
        worker.run()

        assert _typed(trips.args()) == _typed([(sent(value), sent(value))])

    @pytest.mark.parametrize("value", VALUES, ids=repr)
    def test_answers(self, worker: Worker, trips: Trips, sent: Any, value: Any) -> None:
        options: Any = {"then": "came", "otherwise": "failed", "within": HOUR, "undo": trips.cancel.s(value)}
        trips.do(worker, lambda trip: trip.send(trips.app.tasks["give"].s(repr(value)), **options) and None)
        worker.run()
        trips.compensate(worker)
        worker.run()

        assert _typed(trips.args()) == _typed([(sent(value), sent(value))])

    @pytest.mark.parametrize("value", VALUES, ids=repr)
    @pytest.mark.usefixtures("sent")
    def test_answers_of_members_arrive_as_gathered_has_them(self, worker: Worker, trips: Trips, value: Any) -> None:
        options: Any = {"then": "gathered", "otherwise": "gathered", "within": HOUR, "undo": trips.cancel}
        trips.do(worker, lambda trip: trip.gather([trips.app.tasks["give"].s(repr(value))], **options) and None)
        worker.run()
        trips.compensate(worker)
        worker.run()

        assert _typed(trips.args()) == _typed([(to_jsonable_python(value),)])


def _typed(values: Any) -> Any:
    return [[(type(value), value) for value in run] for run in values]
