"""Interim answers: a step gets them as long as its request is open, and the request stays open."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from celery import chain

from celery_sagas import Backoff, Saga
from celery_sagas.core.pending import PLAIN_FORMAT, UNPAUSED_FORMAT, read_pending
from celery_sagas.errors import MessageError
from celery_sagas.stores.records import KEY, Lookup
from celery_sagas.worker.operators import discard_dead_letter, retry_dead_letter
from celery_sagas.worker.runtime import runtime_of
from tests.apps import Delivered, Worker, backend_of
from tests.every_store import stored_app, url
from tests.worker.requests.trips import HOUR, Boom, Trips, app, held_back, hours_ago, on_every_store, tasks_of, trips

__all__ = ["app", "stored_app", "trips", "url"]

pytestmark = on_every_store

#: What came of a call of ``reply``.
Replied = list[bool]


class Parcels:
    """A saga that a trip asks to bring its luggage."""

    def __init__(self, trips: Trips) -> None:
        class Parcel(Saga, correlate_by="parcel_id"):
            parcel_id: str

        @Parcel.starts
        def pack(parcel: Parcel, parcel_id: str) -> Any:
            return self.does(parcel)

        @Parcel.handles
        def move(parcel: Parcel, parcel_id: str) -> Any:
            return self.does(parcel)

        @trips.saga.handles
        def moved(trip: Any, where: str, by: str = "") -> None:
            trip.seen.append(f"moved {where} {by}".strip())
            self.on_moved(trip)

        self.trips, self.saga, self.pack, self.move = trips, Parcel, pack, move
        self.does: Callable[[Any], object] = lambda parcel: None
        self.on_moved: Callable[[Any], object] = lambda trip: None
        self.id = ""

    def ask(self, worker: Worker, step: Any = None, **options: Any) -> Delivered:
        """Have the trip 7 ask for the parcel 1; return the message, which was run."""
        options = {"then": "came", "otherwise": "failed", "within": HOUR, "progress": "moved", **options}

        def act(trip: Any) -> None:
            self.id = trip.send((step or self.pack).s("1"), **options)

        assert self.trips.do(worker, act).error is None
        (held,) = held_back(worker)
        return worker.deliver_again(held)  # without an expiry, if it was asked hours ago

    def reply(self, worker: Worker, *values: Any, last: Any = None) -> Replied:
        """Have the parcel 1 give interim answers, and a last one if there is one; they wait in the queue."""
        told: Replied = []

        def does(parcel: Any) -> None:
            told.extend(parcel.reply(value, last=False) for value in values)
            told.extend([parcel.reply(last)] if last is not None else [])

        self.does = does
        self.move.delay("1")
        assert worker.one().error is None
        return told

    def hold(self, worker: Worker, *values: Any, last: Any = None) -> list[Delivered]:
        """Have the parcel 1 answer likewise; return what it has sent, which is no longer in the queue."""
        assert all(self.reply(worker, *values, last=last))
        return held_back(worker)

    def format(self) -> int:
        """Return the format of what the parcel 1 waits for."""
        record = backend_of(self.trips.app).sagas.find(Lookup(("parcel",), KEY, "1")).record
        assert record is not None
        return json.loads(record.pending).get("format", 0)  # type: ignore[no-any-return]


@pytest.fixture
def parcels(trips: Trips) -> Parcels:
    """The other saga, of this test alone."""
    return Parcels(trips)


def formats(trips: Trips) -> int:
    """Return the format of what the trip 7 waits for."""
    return json.loads(trips.record().pending).get("format", 0)  # type: ignore[no-any-return]


class TestOpen:
    """While the request is open, each interim answer is handled once, and the request stays."""

    def test_several_and_then_the_answer(self, worker: Worker, trips: Trips, parcels: Parcels) -> None:
        parcels.ask(worker)
        assert parcels.reply(worker, "Rome", "Oslo") == [True, True]
        worker.run()
        assert trips.seen() == ["moved Rome", "moved Oslo"]
        assert list(trips.trip().saga.requests) == [parcels.id]
        assert parcels.saga.find("1").saga.requester == parcels.id
        assert parcels.reply(worker, "Bern", last="here") == [True, True]
        worker.run()

        assert trips.seen() == ["moved Rome", "moved Oslo", "moved Bern", "came here"]
        assert (trips.pending().requests, trips.rows()) == ({}, 0)

    def test_of_the_step_that_creates_the_instance(self, worker: Worker, trips: Trips, parcels: Parcels) -> None:
        parcels.does = lambda parcel: parcel.reply("Rome", last=False)
        parcels.ask(worker)
        worker.run()

        assert trips.seen() == ["moved Rome"]

    def test_step_has_arguments_of_its_own(self, worker: Worker, trips: Trips, parcels: Parcels) -> None:
        step = next(task for name, task in trips.app.tasks.items() if name == "trip.moved")
        parcels.ask(worker, progress=step.s(by="train"))
        parcels.reply(worker, "Rome")
        worker.run()

        assert trips.seen() == ["moved Rome train"]

    def test_it_is_a_request_without_any_other_step(self, worker: Worker, trips: Trips, parcels: Parcels) -> None:
        parcels.ask(worker, then=None, otherwise=None, within=None)
        parcels.reply(worker, "Rome")
        worker.run()
        assert len(trips.pending().requests) == 1
        parcels.reply(worker, last="here")
        worker.run()

        assert trips.seen() == ["moved Rome"]
        assert trips.pending().requests == {}

    def test_that_comes_twice(self, worker: Worker, trips: Trips, parcels: Parcels) -> None:
        parcels.ask(worker)
        (interim,) = parcels.hold(worker, "Rome")
        trips.send_again(interim)
        trips.send_again(interim)
        worker.run()

        assert trips.seen() == ["moved Rome"]

    def test_of_a_step_that_runs_twice(self, worker: Worker, trips: Trips, parcels: Parcels) -> None:
        """Each has an id of its own, the same in each run."""
        parcels.does = lambda parcel: [parcel.reply(where, last=False) for where in ("Rome", "Rome")]
        asked = parcels.ask(worker)
        first = held_back(worker)
        worker.deliver_again(asked)
        worker.run()
        assert trips.seen() == []
        assert len({each.id for each in first}) == 2
        for each in (*first, *first):
            trips.send_again(each)
        worker.run()

        assert trips.seen() == ["moved Rome", "moved Rome"]

    def test_nothing_is_undone_for_it(self, worker: Worker, trips: Trips, parcels: Parcels) -> None:
        parcels.ask(worker, undo=trips.cancel.si("1"))
        parcels.reply(worker, "Rome")
        worker.run()
        assert trips.pending().undo.log == []
        parcels.reply(worker, last="here")
        worker.run()

        assert len(trips.pending().undo.log) == 1

    def test_its_step_may_cancel_the_request(self, worker: Worker, trips: Trips, parcels: Parcels) -> None:
        told: list[bool] = []
        parcels.on_moved = lambda trip: told.append(trip.cancel(parcels.id))
        parcels.ask(worker)
        parcels.reply(worker, "Rome", last="here")
        worker.run()

        assert (told, trips.seen(), trips.rows()) == ([True], ["moved Rome"], 0)

    def test_journal_says_which_request_it_belongs_to(self, worker: Worker, trips: Trips, parcels: Parcels) -> None:
        parcels.ask(worker)
        parcels.reply(worker, "Rome")
        worker.run()
        asked, moved = (json.loads(entry.detail) for entry in trips.entries())

        assert asked["asked"][0]["progress"] == "trip.moved"
        assert (moved["request"], moved["came"]) == (parcels.id, "progress")


class TestNoLongerOpen:
    """After that an interim answer is dropped."""

    def test_answer_has_come(self, worker: Worker, trips: Trips, parcels: Parcels) -> None:
        parcels.ask(worker)
        interim, answer = parcels.hold(worker, "Rome", last="here")
        for each in (answer, interim):
            trips.send_again(each)
        worker.run()

        assert (trips.seen(), trips.pending().requests) == (["came here"], {})

    def test_request_has_timed_out(self, worker: Worker, trips: Trips, parcels: Parcels) -> None:
        with hours_ago():
            parcels.ask(worker)
        assert trips.relay("deadline") == 1
        worker.run()
        parcels.reply(worker, "Rome", last="here")
        worker.run()

        assert trips.seen() == ["failed deadline", "came here late"]

    @pytest.mark.parametrize("is_undone", [True, False])
    def test_request_is_cancelled(self, worker: Worker, trips: Trips, parcels: Parcels, is_undone: bool) -> None:
        parcels.ask(worker, undo=trips.cancel if is_undone else None)
        interim, answer = parcels.hold(worker, "Rome", last="here")
        trips.do(worker, lambda trip: trip.cancel(parcels.id) and None)
        for each in (interim, answer):
            trips.send_again(each)
        worker.run()

        assert trips.seen() == []
        assert trips.args() == ([("here",)] if is_undone else [])

    def test_trip_is_being_undone(self, worker: Worker, trips: Trips, parcels: Parcels) -> None:
        parcels.ask(worker, undo=trips.cancel)
        interim, answer = parcels.hold(worker, "Rome", last="here")
        trips.compensate(worker)
        trips.send_again(interim)
        worker.run()
        assert (trips.seen(), trips.args()) == ([], [])
        trips.send_again(answer)
        worker.run()

        assert (trips.seen(), trips.args()) == (["undone"], [("here",)])

    def test_instance_has_completed(self, worker: Worker, trips: Trips, parcels: Parcels) -> None:
        parcels.ask(worker)
        (interim,) = parcels.hold(worker, "Rome")
        trips.do(worker, lambda trip: trip.complete())
        trips.send_again(interim)

        assert worker.one().error is None
        assert trips.saga.find("7") is None

    def test_request_was_sent_again(self, worker: Worker, trips: Trips, parcels: Parcels) -> None:
        """The new one has interim answers of its own; those of the old one, whose time is over, come too late."""
        with hours_ago():
            parcels.does = lambda parcel: parcel.complete()  # its answer is lost
            parcels.ask(worker, retry=Backoff(1))
            held_back(worker)
            assert trips.relay("deadline") == 1
            worker.run()
        parcels.does = lambda parcel: parcel.reply("Rome", last=False)
        (again,) = [each for each in trips.pending().requests.values() if not each.has_timed_out]
        assert trips.relay("sent") == 1
        (held,) = held_back(worker)
        worker.deliver_again(held)
        (interim,) = held_back(worker)
        address = interim.headers["saga_address"]
        assert (address["request"], held.id) == (again.id, again.id)
        trips.send_again(replace(interim, id="old", headers={"saga_address": {**address, "request": parcels.id}}))
        worker.run()
        assert trips.seen() == []
        trips.send_again(interim)
        worker.run()

        assert trips.seen() == ["moved Rome"]


class TestReply:
    """``reply`` says whether anybody waits for it."""

    def test_after_the_last_one(self, worker: Worker, trips: Trips, parcels: Parcels) -> None:
        parcels.ask(worker)
        told: Replied = []

        def does(parcel: Any) -> None:
            told.extend([parcel.reply("here"), parcel.reply("Rome", last=False), parcel.reply("there")])

        parcels.does = does
        parcels.move.delay("1")
        worker.one()
        assert told == [True, False, False]
        worker.run()
        assert parcels.reply(worker, "Rome", last="there") == [False, False]

        assert (worker.waiting(), trips.seen()) == ([], ["came here"])

    def test_nobody_has_asked(self, worker: Worker, parcels: Parcels) -> None:
        parcels.pack.delay("1")
        worker.run()

        assert parcels.reply(worker, "Rome", last="here") == [False, False]
        assert worker.waiting() == []

    def test_requester_named_no_step(self, worker: Worker, trips: Trips, parcels: Parcels) -> None:
        parcels.ask(worker, progress=None)

        assert parcels.reply(worker, "Rome", last="here") == [False, True]
        worker.run()
        assert trips.seen() == ["came here"]

    def test_member_of_a_gather(self, worker: Worker, trips: Trips, parcels: Parcels) -> None:
        trips.do(worker, lambda trip: trip.gather([parcels.pack.s("1")], then="gathered") and None)
        worker.run()

        assert parcels.reply(worker, "Rome", last="here") == [False, True]

    def test_value_that_cannot_be_sent(self, worker: Worker, trips: Trips, parcels: Parcels) -> None:
        parcels.ask(worker)
        parcels.does = lambda parcel: parcel.reply(object(), last=False)
        parcels.move.delay("1")
        delivered = worker.one()

        assert isinstance(delivered.error, MessageError)
        assert "trip.moved" in str(delivered.error)
        assert "cannot be encoded as JSON" in str(delivered.error)

    def test_last_task_of_a_chain(self, worker: Worker, trips: Trips, parcels: Parcels) -> None:
        asked = chain(trips.book.si("1"), parcels.pack.si("1"))
        options = {"then": "came", "otherwise": "failed", "within": HOUR, "progress": "moved"}
        trips.do(worker, lambda trip: trip.send(asked, **options) and None)
        worker.run()
        parcels.reply(worker, "Rome", last="here")
        worker.run()

        assert trips.seen() == ["moved Rome", "came here"]


class TestDeadLetter:
    """An interim answer that its step cannot handle is a dead letter; the request does not notice."""

    @pytest.fixture(params=["value", "step"])
    def dead(self, worker: Worker, trips: Trips, parcels: Parcels, request: pytest.FixtureRequest) -> Any:
        """The dead letter of one whose value does not fit, or whose step fails."""

        def fail(trip: Any) -> None:
            raise Boom("no way")

        parcels.ask(worker, undo=trips.cancel)
        parcels.on_moved = fail
        parcels.reply(worker, ["no", "text"] if request.param == "value" else "Rome")
        worker.run()
        parcels.on_moved = lambda trip: None
        assert (trips.seen(), len(trips.pending().requests)) == ([], 1)
        (dead,) = trips.dead()
        return dead

    def test_discard(self, worker: Worker, trips: Trips, parcels: Parcels, dead: Any) -> None:
        version = trips.record().version
        assert not discard_dead_letter(runtime_of(trips.app), dead)
        assert (trips.dead(), trips.record().version) == ([], version)
        parcels.reply(worker, "Rome", last="here")
        worker.run()

        assert trips.seen() == ["moved Rome", "came here"]

    def test_discard_while_the_trip_is_undone(self, worker: Worker, trips: Trips, parcels: Parcels, dead: Any) -> None:
        trips.compensate(worker)
        assert not discard_dead_letter(runtime_of(trips.app), dead)
        assert (trips.dead(), worker.waiting()) == ([], [])
        parcels.reply(worker, last="here")
        worker.run()

        assert (trips.seen(), trips.args()) == (["undone"], [("here",)])

    def test_retry(self, worker: Worker, trips: Trips, dead: Any) -> None:
        assert not retry_dead_letter(runtime_of(trips.app), dead).reason
        worker.run()

        is_mended = dead.error == "Boom"
        assert (trips.seen(), len(trips.dead())) == ((["moved Rome"], 0) if is_mended else ([], 1))

    def test_retry_after_the_answer(self, worker: Worker, trips: Trips, parcels: Parcels, dead: Any) -> None:
        parcels.reply(worker, last="here")
        worker.run()
        assert "does not wait for it any more" in retry_dead_letter(runtime_of(trips.app), dead).reason

        assert (trips.dead(), trips.seen()) == ([], ["came here"])


class TestStored:
    """Code that knows no interim answers leaves such an instance alone; others are as they were."""

    def test_formats(self, worker: Worker, trips: Trips, parcels: Parcels) -> None:
        parcels.ask(worker)
        assert (formats(trips), parcels.format()) == (UNPAUSED_FORMAT, UNPAUSED_FORMAT)
        parcels.reply(worker, last="here")
        worker.run()

        assert (formats(trips), parcels.format()) == (0, 0)

    def test_formats_without_them(self, worker: Worker, trips: Trips, parcels: Parcels) -> None:
        parcels.ask(worker, progress=None)

        assert (formats(trips), parcels.format()) == (PLAIN_FORMAT, PLAIN_FORMAT)

    def test_map_is_read_as_it_was_written(self, worker: Worker, trips: Trips, parcels: Parcels) -> None:
        parcels.ask(worker, retry=Backoff(1))
        text = trips.record().pending

        assert read_pending(text).text() == text
        (asked,) = trips.pending().requests.values()
        assert asked.again is not None
        assert (asked.progress, asked.again.to_progress and asked.again.to_progress.task) == ("trip.moved", "trip.moved")


@pytest.mark.parametrize("step", ["came", "failed", "told"])
def test_message_that_claims_to_be_one(worker: Worker, trips: Trips, parcels: Parcels, step: str) -> None:
    """A step that the request has not named for them does not get it, and the request stays."""
    parcels.ask(worker)
    (interim,) = parcels.hold(worker, "Rome")
    forged = Delivered(f"trip.{step}", "forged", interim.headers, interim.args if step != "told" else [], {}, interim.embed)
    trips.send_again(forged)
    worker.run()

    assert trips.seen() == []
    assert [request.id for request in trips.pending().requests.values()] == [parcels.id]
    assert tasks_of(worker.waiting()) == []
