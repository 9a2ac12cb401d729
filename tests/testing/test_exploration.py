"""Exploration finds the mistakes that sagas have, and none where there is none."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_sagas import Failure, Saga
from celery_sagas.testing.exploration import Invariant, Scenario, explore
from celery_sagas.testing.harness.harness import SagaHarness
from celery_sagas.testing.harness.timeline import ScenarioError
from tests.matrices import many
from tests.testing.harness.shop import open_shop

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def found(scenario: Scenario, invariant: Invariant, **options: Any) -> str:
    """Return the test that repeats what an exploration finds, and check that it does."""
    with pytest.raises(AssertionError) as caught:
        explore(scenario, invariant, **options)
    (note,) = caught.value.__notes__
    repeat(note, scenario, invariant)
    return note


def repeat(note: str, scenario: Scenario, invariant: Invariant) -> None:
    """Run the test in a note, as somebody would who has pasted it."""
    names: dict[str, Any] = {scenario.__name__: scenario, invariant.__name__: invariant}
    exec(note.removeprefix("To repeat it:"), names)
    with SagaHarness() as harness, pytest.raises(AssertionError):
        names["test_found"](harness)


def calls(note: str) -> list[str]:
    """Return the lines of a test between the scenario and the invariant."""
    return [line.strip() for line in note.partition("def ")[2].splitlines()[2:-1]]


@pytest.fixture
def parcels(app: Celery) -> Any:
    """Parcels that are paid and packed, in any order; it is a mistake to look only when the payment comes."""

    class Parcel(Saga, correlate_by="parcel_id"):
        parcel_id: str
        paid: bool = False
        packed: bool = False

    @app.task(acks_late=True)
    def ship(parcel_id: str) -> None: ...

    @Parcel.starts
    def pay(parcel: Parcel, parcel_id: str) -> None:
        parcel.paid = True
        if parcel.packed or not parcels.is_wrong:
            look(parcel)

    @Parcel.starts
    def pack(parcel: Parcel, parcel_id: str) -> None:
        parcel.packed = True
        if not parcels.is_wrong:
            look(parcel)

    def look(parcel: Parcel) -> None:
        if parcel.paid and parcel.packed:
            parcel.send(ship.s(parcel.parcel_id))
            parcel.complete()

    parcels = SimpleNamespace(app=app, Parcel=Parcel, pay=pay, pack=pack, ship=ship, is_wrong=True)
    return parcels


class TestOrder:
    def test_finds_the_order_that_breaks_it(self, parcels: Any) -> None:
        def paid_and_packed(harness: SagaHarness) -> None:
            harness.send(parcels.pack, "p")
            harness.send(parcels.pay, "p")

        def ships(harness: SagaHarness) -> None:
            if harness.is_quiet:
                harness.assert_sent(parcels.ship, "p")

        note = found(paid_and_packed, ships)
        assert calls(note) == ["saga_harness.deliver('parcel.pay')", "saga_harness.deliver('parcel.pack')"]

    def test_correct_saga_passes(self, parcels: Any) -> None:
        parcels.is_wrong = False

        def paid_and_packed(harness: SagaHarness) -> None:
            harness.send(parcels.pack, "p")
            harness.send(parcels.pay, "p")

        def ships_once(harness: SagaHarness) -> None:
            if harness.is_quiet:
                harness.assert_completed(parcels.Parcel, "p")
                assert len({message.id for message in harness.assert_sent(parcels.ship, "p")}) == 1

        explore(paid_and_packed, ships_once, examples=many(100, full=500))


class TestTimeouts:
    def test_finds_a_timeout_that_is_lost(self, app: Celery) -> None:
        """It asks once more, and then waits for an answer that may never come."""

        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @app.task(acks_late=True)
        def charge(order_id: str) -> str:
            return "receipt"

        @Order.starts
        def place(order: Order, order_id: str) -> None:
            order.send(charge.s(order_id), then=charged, otherwise=ask_again, within=HOUR)

        @Order.handles
        def ask_again(order: Order, failure: Failure) -> None:
            order.send(charge.s(order.order_id), then=charged)

        @Order.handles
        def charged(order: Order, receipt: str) -> None:
            order.complete()

        def one_order(harness: SagaHarness) -> None:
            harness.send(place, "42")

        def ends(harness: SagaHarness) -> None:
            if harness.is_quiet:
                harness.assert_completed(Order, "42")

        note = found(one_order, ends)
        assert len([call for call in calls(note) if "silent=True" in call or "fail=ParticipantFailed" in call]) == 2

        def ends_if_all_answer(harness: SagaHarness) -> None:
            ends(harness)

        explore(one_order, ends_if_all_answer, faults=["repeat", "crash"])


class TestRepeats:
    def test_finds_a_participant_that_does_its_work_twice(self, app: Celery) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        charged: list[str] = []

        @app.task(acks_late=True)
        def charge(order_id: str) -> None:
            charged.append(order_id)

        @Order.starts
        def place(order: Order, order_id: str) -> None:
            order.send(charge.s(order_id))

        def one_order(harness: SagaHarness) -> None:
            charged.clear()
            harness.send(place, "42")

        def charges_once(harness: SagaHarness) -> bool:
            return len(charged) <= 1

        note = found(one_order, charges_once)
        assert len(calls(note)) == 3
        explore(one_order, charges_once, faults=["fail", "silence"])


class TestOvertaking:
    def test_finds_a_compensation_that_overtakes_what_it_undoes(self, app: Celery) -> None:
        class Trip(Saga, correlate_by="trip_id"):
            trip_id: str

        booked: set[str] = set()

        @app.task(acks_late=True)
        def book(trip_id: str) -> str:
            booked.add(trip_id)
            return "booked"

        @app.task(acks_late=True)
        def unbook(trip_id: str) -> None:
            booked.discard(trip_id)

        @Trip.starts
        def start(trip: Trip, trip_id: str) -> None:
            trip.send(book.s(trip_id))

        @Trip.handles
        def cancel(trip: Trip, trip_id: str) -> None:
            trip.send(unbook.s(trip_id))
            trip.complete()

        def cancelled(harness: SagaHarness) -> None:
            booked.clear()
            harness.send(start, "t")
            harness.send(cancel, "t")

        def nothing_stays_booked(harness: SagaHarness) -> None:
            if harness.is_quiet and harness.journal(Trip, "t")[-1].kind == "completed":
                assert not booked

        note = found(cancelled, nothing_stays_booked, faults=[])
        assert [call.split("'")[1].rpartition(".")[2] for call in calls(note)] == ["start", "cancel", "unbook", "book"]


class TestLongHistories:
    def test_finds_what_goes_wrong_late(self, app: Celery) -> None:
        """After fifteen polls it sends a task, and waits for an answer that may never come."""

        class Poll(Saga, correlate_by="name"):
            name: str
            polls: int = 0

        @app.task(acks_late=True)
        def pay(name: str) -> str:
            return "paid"

        @Poll.starts
        def begin(poll: Poll, name: str) -> None:
            poll.schedule(look, after=HOUR)

        @Poll.handles
        def look(poll: Poll) -> None:
            poll.polls += 1
            if poll.polls < 15:
                poll.schedule(look, after=HOUR)
            else:
                poll.send(pay.s(poll.name), then=paid)

        @Poll.handles
        def paid(poll: Poll, receipt: str) -> None:
            poll.complete()

        def one_poll(harness: SagaHarness) -> None:
            harness.send(begin, "p")

        def ends(harness: SagaHarness) -> None:
            if harness.is_quiet:
                harness.assert_completed(Poll, "p")

        with pytest.raises(AssertionError, match="has not completed"):
            explore(one_poll, ends)

    def test_correct_saga_with_everything_passes(self, app: Celery) -> None:
        """Requests, a gather, a child, an event, timeouts and an aggregator; whatever is killed makes no dead letter."""
        shop = open_shop(app)

        def one_order(harness: SagaHarness) -> None:
            shop.flushed.clear()
            harness.send(shop.place, "42")
            harness.send(shop.compare, "42")
            harness.send(shop.bill, "42")
            harness.send(shop.readings, shop.Reading(meter="m", kwh=1))

        def all_is_well(harness: SagaHarness) -> None:
            assert not harness.dead
            order = harness.state(shop.Order, "42")
            assert not order or order.receipt in (None, "r-42")
            if harness.is_quiet:
                assert shop.flushed
                assert shop.readings.count() == 0

        explore(one_order, all_is_well, examples=many(20, full=60), lasts=30 * DAY)


class TestRetries:
    @pytest.mark.parametrize("retries", [3, 0])
    def test_step_that_raises_if_it_comes_too_early(self, app: Celery, retries: int) -> None:
        app.conf.saga_step_retries = retries

        class Box(Saga, correlate_by="box_id"):
            box_id: str
            filled: bool = False

        @Box.starts
        def fill(box: Box, box_id: str) -> None:
            box.filled = True

        @Box.starts
        def close(box: Box, box_id: str) -> None:
            if not box.filled:
                raise ValueError("it is empty")
            box.complete()

        def one_box(harness: SagaHarness) -> None:
            harness.send(fill, "1")
            harness.send(close, "1")

        def ends(harness: SagaHarness) -> None:
            assert not harness.dead
            if harness.is_quiet:
                harness.assert_completed(Box, "1", by=close)

        if retries:
            explore(one_box, ends, faults=["crash"], app=app)
        else:
            assert calls(found(one_box, ends, faults=["crash"], app=app)) == ["saga_harness.deliver('box.close')"]


class TestMistakes:
    def test_invariant_that_is_false_from_the_start(self, parcels: Any) -> None:
        with pytest.raises(ScenarioError, match="never does not hold") as caught:
            explore(lambda harness: harness.send(parcels.pay, "p"), never)
        assert caught.value.__notes__ == ["never does not hold from the start, before anything is delivered."]

    def test_scenario_without_an_end(self, app: Celery) -> None:
        @app.task
        def again() -> None:
            again.delay()

        with pytest.raises(ScenarioError, match="the scenario does not end after 1000 steps") as caught:
            explore(lambda harness: again.delay(), lambda harness: None, examples=1)
        assert len(str(caught.value).splitlines()) == 6
        assert not hasattr(caught.value, "__notes__")

    def test_saga_that_never_ends_is_left(self, app: Celery) -> None:
        class Newsletter(Saga, correlate_by="reader"):
            reader: str
            sent: int = 0

        @Newsletter.starts
        def subscribe(newsletter: Newsletter, reader: str) -> None:
            newsletter.schedule(send, after=DAY)

        @Newsletter.handles
        def send(newsletter: Newsletter) -> None:
            newsletter.sent += 1
            newsletter.schedule(send, after=DAY)

        seen: list[int] = []

        def look(harness: SagaHarness) -> None:
            state = harness.state(Newsletter, "r")
            seen.append(state.sent if state else 0)

        explore(lambda harness: harness.send(subscribe, "r"), look, examples=5, lasts=10 * DAY)
        assert 10 <= max(seen) <= 11

    def test_time_that_is_too_short_is_warned_of(self, app: Celery) -> None:
        class Patient(Saga, correlate_by="name"):
            name: str

        @Patient.starts
        def begin(patient: Patient, name: str) -> None:
            patient.schedule(end, after=100 * DAY)

        @Patient.handles
        def end(patient: Patient) -> None:
            raise KeyError("at the end")

        def no_dead_letter(harness: SagaHarness) -> bool:
            return not (harness.is_quiet and harness.dead)

        with pytest.warns(UserWarning, match="after ninety days something is still to happen in the scenario"):
            explore(lambda harness: harness.send(begin, "p"), no_dead_letter, examples=1)
        with pytest.raises(ScenarioError, match="no_dead_letter does not hold"):
            explore(lambda harness: harness.send(begin, "p"), no_dead_letter, examples=1, lasts=101 * DAY)

    def test_held_messages_do_not_keep_it_from_ending(self, parcels: Any) -> None:
        def held(harness: SagaHarness) -> None:
            harness.hold(parcels.pack)
            harness.send(parcels.pack, "p")

        explore(held, lambda harness: None, examples=5)

    @pytest.mark.parametrize("result", [False, 0, [], ""])
    def test_invariant_that_returns_something_false(self, parcels: Any, result: Any) -> None:
        with pytest.raises(ScenarioError, match="the invariant does not hold") as caught:
            explore(
                lambda harness: harness.send(parcels.pay, "p"),
                lambda harness: result if harness.journal(parcels.Parcel, "p") else 1,
            )
        assert "assert invariant(saga_harness)" in caught.value.__notes__[0]
        assert "    scenario(saga_harness)" in caught.value.__notes__[0]

    def test_invariant_that_fails_by_pytest(self, parcels: Any) -> None:
        def no_parcel(harness: SagaHarness) -> None:
            if harness.state(parcels.Parcel, "p"):
                pytest.fail("there is one")

        with pytest.raises(pytest.fail.Exception, match="there is one") as caught:
            explore(lambda harness: harness.send(parcels.pay, "p"), no_parcel)
        assert "saga_harness.deliver('parcel.pay')" in caught.value.__notes__[0]

    def test_same_histories_are_tried_each_time(self, parcels: Any) -> None:
        parcels.is_wrong = False
        tried: list[list[str]] = [[], []]
        for each in tried:

            def note(harness: SagaHarness, each: list[str] = each) -> None:
                each.append(harness.timeline())

            explore(lambda harness: harness.send(parcels.pay, "p"), note, examples=20)
        assert tried[0] == tried[1]

    def test_unregistered_participant(self, app: Celery) -> None:
        with pytest.raises(ScenarioError, match="no task 'billing' is registered"):
            explore(lambda harness: app.send_task("billing"), lambda harness: None, examples=1)

    def test_unknown_fault(self, app: Celery) -> None:
        with pytest.raises(ValueError, match=r"faults= takes some of \[.*\], not 'fire'"):
            explore(lambda harness: None, lambda harness: None, faults=["fire"])  # type: ignore[list-item]
        with pytest.raises(ValueError, match="not 'crash'"):
            explore(lambda harness: None, lambda harness: None, faults="crash")  # type: ignore[arg-type]

    def test_scenario_that_sends_nothing(self, app: Celery) -> None:
        explore(lambda harness: None, lambda harness: None, examples=1)


def never(harness: SagaHarness) -> bool:
    return False
