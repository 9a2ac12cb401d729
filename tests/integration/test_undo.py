"""Trips are undone whichever workers are killed: what an undone trip has booked is cancelled, and nothing of one that stands.

How many trips there are and how many kills stands in ``CELERY_SAGAS_TEST_TRIPS``. ``tox -e chaos`` runs the long one.
"""

import os
import random
from collections import Counter, defaultdict
from functools import partial
from typing import NamedTuple

import pytest

from celery_sagas.core.pending import read_pending
from tests.integration.apps.bookings import BOOKED, CANCELLED, Bookings, Event, reference_of
from tests.integration.conftest import Deploy
from tests.integration.crew import Crew
from tests.integration.deaths import VISIBILITY
from tests.integration.ledgers import SOON
from tests.integration.matrices import matrix
from tests.integration.worker import Deployment
from tests.waiting import wait_until

TRIPS, KILLS = map(int, os.environ.get("CELERY_SAGAS_TEST_TRIPS", "60,8").split(","))
#: Trips a second that even a slow machine ends between kills.
SLOWEST = 2
#: A kill comes so many seconds after it was asked for, at most.
PAUSE_S = 0.5
BEGIN, CALL_OFF, END = "trip.begin", "trip.call_off", "trip.end"
STANDS, UNDONE = "trip.car_booked", ("trip.undone", END)
SERVICES = ("flight", "hotel", "car")
#: Of twenty trips: what a service does, and where.
PLANS = [
    *[("fails", "hotel"), ("fails", "car"), ("fails booked", "flight"), ("fails booked", "car")],
    *[("silent", "hotel"), ("silent", "car"), ("silent booked", "hotel"), ("silent booked", "car")],
    *[("late", "car"), ("late unasked", "hotel")],
    *[("called off", service) for service in SERVICES],
    *[("good", "")] * 7,
]
#: How each trip with such a service ends.
ENDS = {"fails": UNDONE, "silent": UNDONE, "good": (STANDS,), "late": (STANDS, *UNDONE), "called": (STANDS, *UNDONE)}


class Planned(NamedTuple):
    """A trip that is to be made."""

    trip_id: str
    how: str
    at: str
    fails: int  #: how often a service fails to cancel

    @property
    def is_late(self) -> bool:
        """Whether an answer may come when the trip is undone."""
        return self.how.startswith("late")


def plan(count: int) -> list[Planned]:
    """Plan trips of every kind."""
    return [
        Planned(f"trip-{number}", *PLANS[number * 7 % len(PLANS)], number // len(PLANS) * 2 % 3 if number % 2 else 0)
        for number in range(count)
    ]


@pytest.mark.parametrize(("engine", "broker"), matrix(("postgresql", "rabbitmq"), ("redis", "redis")))
@pytest.mark.timeout(600 + TRIPS // SLOWEST + 10 * KILLS)
def test_what_a_trip_has_booked_is_cancelled_if_and_only_if_it_is_undone(deploy: Deploy, engine: str, broker: str) -> None:
    deployment, planned = deploy_trips(deploy, engine, broker), plan(TRIPS)
    queues = [",".join(deployment.queues)] * 3
    crew = Crew(deployment, random.Random(f"{engine} {broker}"), queues, spare_last=False, pause_s=PAUSE_S)
    for kill in range(KILLS):
        crew.wait_ready()
        set_out(deployment, planned[TRIPS * kill // KILLS : TRIPS * (kill + 1) // KILLS])
        wait_until(partial(crew.kill_one, is_whole=kill % 2 == 0), "a process to kill")
    wait_ended(deployment, planned)
    assert_ends(deployment, planned)
    assert_bookings(deployment, planned)


def deploy_trips(deploy: Deploy, engine: str, broker: str) -> Deployment:
    """Deploy trips and their services; on Redis with the transport that loses nothing when its worker is killed."""
    settings = {"broker_transport_options": VISIBILITY} if broker == "redis" else {}
    deployment = deploy("trips", broker, engine, **SOON, **settings)
    if broker == "redis":
        deployment.settings["broker_read_url"] = f"sagas-{deployment.broker}"
    for service in SERVICES:
        deployment.route(f"{service}.*")
    Bookings(deployment.folder).create()
    return deployment


def set_out(deployment: Deployment, planned: list[Planned]) -> None:
    """Begin trips, and call some of them off."""
    for trip in planned:
        how = "good" if trip.how == "called off" else trip.how
        deployment.send(BEGIN, trip_id=trip.trip_id, how=how, at=trip.at, fails=trip.fails)
    for trip in planned:
        if trip.how == "called off":
            deployment.send(CALL_OFF, trip_id=trip.trip_id)


def wait_ended(deployment: Deployment, planned: list[Planned]) -> None:
    """Wait until every trip stands or is undone, and end those that still wait for late answers: there are none any more."""
    deadline_s = 60 + TRIPS / SLOWEST
    late = [trip for trip in planned if trip.is_late]
    for trip in planned:
        wait_until(partial(is_settled, deployment, trip), lambda: f"{trip}: {describe(deployment, trip)}", deadline_s)  # noqa: B023
    for trip in late:
        if deployment.record("trip", trip.trip_id):
            deployment.send(END, trip_id=trip.trip_id)
    for trip in late:
        wait_until(lambda: deployment.outcome("trip", trip.trip_id), lambda: describe(deployment, trip))  # noqa: B023
    wait_until(lambda: deployment.queued() == 0 and deployment.backend.outbox.count() == 0, deployment.describe)
    wait_until(lambda: deployment.unacknowledged() == 0, deployment.describe)


def is_settled(deployment: Deployment, trip: Planned) -> bool:
    """Whether a trip has ended, or is undone, and the late answer to it, too."""
    record = deployment.record("trip", trip.trip_id)
    if record is None:
        return deployment.outcome("trip", trip.trip_id) is not None
    state = deployment.state("trip", trip.trip_id) or {}
    if not trip.is_late or not state.get("is_undone"):
        return False
    reference, events = reference_of(trip.at, trip.trip_id), Bookings(deployment.folder).events()
    is_cancelled = any((event.what, event.reference) == (CANCELLED, reference) for event in events)
    return is_cancelled and not read_pending(record.pending).is_undoing


def describe(deployment: Deployment, trip: Planned) -> str:
    """Describe where a trip stands, for a failed test."""
    events = [event for event in Bookings(deployment.folder).events() if event.reference.endswith(f" {trip.trip_id}")]
    entries = [(entry.step, entry.outcome, entry.detail) for entry in deployment.history("trip", trip.trip_id)]
    return "\n".join(map(str, [deployment.record("trip", trip.trip_id), *events, *entries, deployment.describe()]))


def assert_ends(deployment: Deployment, planned: list[Planned]) -> None:
    """Assert that each trip ended as it must, and that nothing is left to do."""
    ends = [(trip, end_of(deployment, trip)) for trip in planned]
    assert [(trip, end) for trip, end in ends if end not in ENDS[trip.how.partition(" ")[0]]] == []
    assert [trip for trip in planned if deployment.record("trip", trip.trip_id)] == []
    assert deployment.backend.dead.list(10) == []
    assert [failure for failure in deployment.failures() if "Refused" not in failure] == []


def end_of(deployment: Deployment, trip: Planned) -> str:
    """Return the step that ended a trip."""
    outcome = deployment.outcome("trip", trip.trip_id)
    return outcome.step if outcome else ""


def assert_bookings(deployment: Deployment, planned: list[Planned]) -> None:
    """Assert what is left of the bookings, and in which order they were cancelled."""
    of_trips = defaultdict[str, list[Event]](list)
    for event in Bookings(deployment.folder).events():
        of_trips[event.reference.partition(" of ")[2]].append(event)
    wrong = [(trip, *found) for trip in planned if (found := wrong_events(deployment, trip, of_trips[trip.trip_id]))]
    assert wrong == []
    counted = Counter(end_of(deployment, trip) == STANDS for trip in planned)
    assert counted[True] >= TRIPS // 4, "too few trips stand"
    assert counted[False] >= TRIPS // 4, "too few trips were undone"


def wrong_events(deployment: Deployment, trip: Planned, events: list[Event]) -> list[Event]:
    """Return what has happened to a trip, if it is not what must have."""
    references = {what: [event.reference for event in events if event.what == what] for what in (BOOKED, CANCELLED)}
    booked, cancelled = references[BOOKED], references[CANCELLED]
    if end_of(deployment, trip) == STANDS:
        is_right = booked == [reference_of(service, trip.trip_id) for service in SERVICES] and not cancelled
    elif trip.is_late:  # nobody waits for a late answer: its booking is cancelled when it comes
        last = reference_of(trip.at, trip.trip_id)
        in_time = [[each for each in found if each != last] for found in (booked, cancelled)]
        is_right = sorted(cancelled) == sorted(booked) and in_time[1] == in_time[0][::-1]
    else:
        is_right = cancelled == booked[::-1]
    return [] if is_right else events
