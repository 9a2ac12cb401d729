"""Undo, in every order of answers, failures, deadlines, repeats and kills, held against the rule.

The rule: an undo that takes the answer runs once for each answer that came. One that takes none runs if the work was sent, after
its outcome, and once more after an answer that comes later. Nothing is undone before what came after it.
"""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from celery import Celery
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from celery_sagas import Failure, Saga
from celery_sagas.engine.outcomes import Outcome
from celery_sagas.signals import step_ignored
from celery_sagas.stores.records import Entry
from celery_sagas.testing import SagaHarness
from celery_sagas.testing.harness.broker import SentMessage
from celery_sagas.testing.harness.crashes import POINTS
from celery_sagas.worker.runtime import runtime_of

HOUR = timedelta(hours=1)
#: The tasks that book, each with whether its undo takes the answer.
BOOKINGS = {"book_flight": True, "book_hotel": False, "book_car": True, "book_tour": False}
UNDOS = {name: name.replace("book", "cancel") for name in BOOKINGS}
ANSWERS, FAILURES = {"answer"}, {"failure", "uncertain", "deadline"}


class Trips:
    """The saga, its participants, and what these have done."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.parallel = self.in_turn = False
        self.ran: list[tuple[str, str]] = []  #: the task, and the id of the work that it did or undid

        class Trip(Saga, correlate_by="trip_id"):
            trip_id: str
            booked: int = 0

        def book(trip: Trip) -> None:
            name = list(BOOKINGS)[trip.booked]
            trip.booked += 1
            undo = self.app.tasks[UNDOS[name]]
            given = undo if BOOKINGS[name] else undo.si(name)
            trip.send(self.app.tasks[name].s(), then="booked", otherwise="failed", within=HOUR, undo=given)

        @Trip.starts(if_exists="ignore")
        def start(trip: Trip, trip_id: str) -> None:
            book(trip)
            while not self.in_turn and trip.booked < len(BOOKINGS):
                book(trip)

        @Trip.handles
        def booked(trip: Trip, what: str) -> None:
            if self.in_turn and trip.booked < len(BOOKINGS) and not trip.saga.undoing:
                book(trip)

        @Trip.handles
        def failed(trip: Trip, failure: Failure) -> None:
            if not trip.saga.undoing:
                trip.compensate(then="undone", parallel=self.parallel)

        @Trip.handles
        def give_up(trip: Trip, trip_id: str) -> None:
            if not trip.saga.undoing:
                trip.compensate(then="undone", parallel=self.parallel)

        @Trip.handles
        def undone(trip: Trip) -> None:
            trip.complete()

        self.Trip, self.start, self.give_up = Trip, start, give_up
        for name in (*BOOKINGS, *UNDOS.values()):
            app.task(self._participant(name), name=name, bind=True, acks_late=True)

    def _participant(self, name: str) -> Any:
        def work(task: Any, *given: object) -> str:
            self.ran.append((name, task.request.get("saga_undoes") or task.request.id))
            return f"{name} {task.request.id}"

        return work

    def entries(self) -> list[tuple[Entry, dict[str, Any]]]:
        """Return the journal of the trip, with its details."""
        history = runtime_of(self.app).backend.journal.history(["trip"], "7", 1_000)
        return [(entry, json.loads(entry.detail)) for entry in history]


class UndoMachine(RuleBasedStateMachine):
    """Delivers messages in any order, repeats them, kills workers, and lets time pass."""

    trips: Trips

    @initialize(parallel=st.booleans(), in_turn=st.booleans(), gives_up=st.booleans())
    def begin(self, parallel: bool, in_turn: bool, gives_up: bool) -> None:
        self.gives_up = gives_up  # at the latest once everything else has happened
        self.dropped: list[Outcome] = []
        step_ignored.connect(self.note_dropped, weak=False)
        self.trips.parallel, self.trips.in_turn, self.trips.ran = parallel, in_turn, []
        self.harness = SagaHarness(self.trips.app)
        self.harness.__enter__()
        self.harness.send(self.trips.start, "7")
        self.harness.deliver()
        self.is_begun = True

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        try:
            if hasattr(self, "is_begun"):
                self.end()
        finally:
            step_ignored.disconnect(self.note_dropped)
            self.harness.__exit__(None, None, None)

    def note_dropped(self, outcome: Outcome, **_: object) -> None:
        """Note an answer that the instance does not wait for."""
        if outcome.step == "trip.booked" and outcome.reason == "cancelled":
            self.dropped.append(outcome)

    def waiting(self) -> list[SentMessage]:
        return [message for message in self.harness.pending if self.harness.is_due(message)]

    @precondition(lambda self: self.waiting())
    @rule(data=st.data(), how=st.sampled_from(["well", "well", "well", "fails", "fails after it", "silent"]))
    def deliver_any(self, data: st.DataObject, how: str) -> None:
        """Deliver some message; a participant may fail, before or after it has done its work, or never answer."""
        message = data.draw(st.sampled_from(self.waiting()))
        is_participant = message.task in (*BOOKINGS, *UNDOS.values())
        if not is_participant or how == "well":
            self.harness.deliver(message)
        elif how == "silent":
            self.harness.deliver(message, silent=True)
        else:
            if how == "fails after it":
                self.trips.ran.append((message.task, message.headers.get("saga_undoes") or message.id))
            self.harness.deliver(message, fail=ValueError("no"))

    @precondition(lambda self: self.waiting())
    @rule(data=st.data(), point=st.sampled_from(POINTS))
    def kill(self, data: st.DataObject, point: Any) -> None:
        """Kill the worker while it handles some message."""
        self.harness.deliver(data.draw(st.sampled_from(self.waiting())), crash=point)

    @precondition(lambda self: self.harness.sent)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """Deliver a message that was delivered before."""
        delivered = [message for message in self.harness.sent if message.deliveries]
        if delivered:
            self.harness.deliver(data.draw(st.sampled_from(delivered)))

    @rule(minutes=st.sampled_from([1, 30, 61]))
    def wait(self, minutes: int) -> None:
        """Let time pass: deadlines fall due, and wait in the broker."""
        self.harness.wait(timedelta(minutes=minutes))

    @rule(step=st.sampled_from(["trip.booked", "trip.undone", "trip.(undone)"]))
    def overtake(self, step: str) -> None:
        """Let time pass, and everything happen but what waits for a step."""
        self.harness.hold(step)
        self.harness.advance(timedelta(minutes=61))
        self.harness.restore(step)

    @rule()
    def give_up(self) -> None:
        """Have the customer give up."""
        self.harness.send(self.trips.give_up, "7")

    @invariant()
    def nothing_is_undone_that_must_not_be(self) -> None:
        """Hold what was sent to undo against what came of the requests."""
        if hasattr(self, "is_begun"):
            self.check(Expected(self.trips.entries()))

    def check(self, history: "Expected") -> None:
        assert not history.undone_too_often(), self.harness.timeline()
        assert self.trips.parallel or not history.out_of_order(), self.harness.timeline()
        assert not self.dropped, self.harness.timeline()

    def end(self) -> None:
        """Let everything come to its end, and hold what was undone against the rule."""
        self.harness.run()
        if self.gives_up:
            self.give_up()
        for _ in range(20):
            self.harness.advance(timedelta(hours=2))
        history, timeline = Expected(self.trips.entries()), self.harness.timeline()
        self.check(history)
        assert not self.harness.dead, timeline
        assert (self.harness.state(self.trips.Trip, "7") is None) == history.is_compensated, timeline
        assert history.undone == history.to_undo(), timeline
        done = {id for name, id in self.trips.ran if name in UNDOS.values()}
        assert done == set(history.undone), timeline
        assert [entry.outcome for entry, _ in history.entries].count("completed") == history.is_compensated, timeline


class Expected:
    """What the rule says of a trip, given which outcomes its journal has, in which order."""

    def __init__(self, entries: list[tuple[Entry, dict[str, Any]]]) -> None:
        self.entries = entries
        asked = [(place, ask) for place, (_, about) in enumerate(entries) for ask in about.get("asked", ())]
        #: The tasks of the bookings, by their requests.
        self.tasks = {ask["request"]: ask["task"] for _, ask in asked if "undoes" not in ask}
        #: The first attempts to undo: the place in the journal, and the request that is undone.
        self.begins = [(place, ask["undoes"]) for place, ask in asked if "undoes" in ask and "number" not in ask]
        #: How often each piece of work was undone, by its request.
        self.undone = Counter(id for _, id in self.begins)
        begun = (place for place, (entry, _) in enumerate(entries) if _compensates(entry))
        self.begun = next(begun, len(entries))  #: where it was given up
        self.is_compensated = self.begun < len(entries)

    def outcomes(self, id: str) -> Iterator[tuple[int, str]]:
        """Yield what came of a request, each with its place in the journal."""
        for place, (_, about) in enumerate(self.entries):
            if about.get("request") == id:
                yield place, about["came"]

    def to_undo(self) -> Counter[str]:
        """Return how often each piece of work must be undone, by its request."""
        counts: Counter[str] = Counter()
        for id, task in self.tasks.items():
            came = list(self.outcomes(id))
            if not self.is_compensated:
                continue
            answers = sum(kind in ANSWERS for _, kind in came)
            after = [kind for place, kind in came if place > self.begun]
            before = len(came) > len(after)
            counts[id] = answers if BOOKINGS[task] else before + len(after)
        return +counts

    def undone_too_often(self) -> Counter[str]:
        """Return what was undone more often than the rule says so far."""
        return self.undone - self.to_undo()

    def out_of_order(self) -> list[tuple[str, str]]:
        """Return pairs of which the first was undone before the undo of the second had ended, whose outcome came later."""
        begun = {id: place for place, id in reversed(self.begins)}
        done = [(place, about) for place, (_, about) in enumerate(self.entries) if about.get("undoes")]
        ended = {about["undoes"]: place for place, about in reversed(done) if about["came"] == "answer"}
        came = {id: self._undoable_since(id) for id in self.tasks}
        pairs = [(first, second) for first in begun for second in begun if [] != came[first] < came[second]]
        return [(first, second) for first, second in pairs if begun[first] < ended.get(second, len(self.entries))]

    def _undoable_since(self, id: str) -> list[int]:
        """Return where the last outcome came that made a request undoable, before the trip was given up."""
        takes = BOOKINGS[self.tasks[id]]
        return [place for place, kind in self.outcomes(id) if place <= self.begun and (kind in ANSWERS or not takes)][-1:]


def _compensates(entry: Entry) -> bool:
    return entry.step in ("trip.failed", "trip.give_up") and entry.outcome == "handled"


def test_what_is_undone_is_what_the_rule_says(app: Celery) -> None:
    class Machine(UndoMachine):
        trips = Trips(app)

    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    run = settings(
        max_examples=100,
        stateful_step_count=30,
        deadline=None,
        derandomize=True,
        suppress_health_check=checks,
        phases=[Phase.generate],
    )
    run_state_machine_as_test(Machine, settings=run)
