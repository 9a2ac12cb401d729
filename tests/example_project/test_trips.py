"""The trips in virtual time: their own tasks, their own services, and no worker."""

from datetime import timedelta
from typing import Any

import pytest

from celery_sagas.testing import SagaHarness
from celery_sagas.testing.exploration import explore

MINUTE = timedelta(minutes=1)
WHAT = ("booked", "cancelled")


def set_out(harness: SagaHarness, shop: Any, destination: str = "Lisbon") -> None:
    """Do what a traveller does."""
    harness.send(shop.trips.book_trip, trip_id="T1", destination=destination, patience=MINUTE)


def lines(shop: Any) -> list[str]:
    """Return what the services have noted."""
    return [f"{line.service} {line.what}" for line in shop.bookings.lines()]


def test_trip_is_booked(harness: SagaHarness, shop: Any) -> None:
    set_out(harness, shop)
    harness.run()
    harness.assert_completed(shop.trips.Trip, "T1", by=shop.trips.car_booked)
    assert lines(shop) == ["flight booked", "hotel booked", "car booked"]


def test_trip_without_a_car_keeps_no_booking(harness: SagaHarness, shop: Any) -> None:
    set_out(harness, shop, "Venice")
    harness.run()
    harness.assert_completed(shop.trips.Trip, "T1", by=shop.trips.all_cancelled)
    assert lines(shop) == ["flight booked", "hotel booked", "car cancelled", "hotel cancelled", "flight cancelled"]


def test_hotel_that_has_booked_and_does_not_say_so_is_cancelled(harness: SagaHarness, shop: Any) -> None:
    set_out(harness, shop, "Shangri-La")
    harness.run()
    harness.assert_state(shop.trips.Trip, "T1")
    harness.advance(MINUTE)
    harness.assert_completed(shop.trips.Trip, "T1", by=shop.trips.all_cancelled)
    assert lines(shop) == ["flight booked", "hotel booked", "hotel cancelled", "flight cancelled"]


def test_trip_that_is_called_off_cancels_its_flight(harness: SagaHarness, shop: Any) -> None:
    set_out(harness, shop)
    harness.deliver(shop.trips.book_trip)
    harness.deliver(shop.travel.book_flight)
    harness.send(shop.trips.call_off, trip_id="T1")
    harness.deliver(shop.trips.call_off)
    harness.run()
    harness.assert_completed(shop.trips.Trip, "T1", by=shop.trips.all_cancelled)
    assert lines(shop) == ["flight booked", "flight cancelled"]


def test_flight_that_has_still_to_be_confirmed_is_revoked(harness: SagaHarness, shop: Any) -> None:
    harness.send(shop.trips.call_off, trip_id="T1")
    set_out(harness, shop, "Hanoi")
    harness.advance(timedelta(seconds=10))
    harness.assert_completed(shop.trips.Trip, "T1", by=shop.trips.all_cancelled)
    assert lines(shop) == ["flight cancelled"]


@pytest.mark.parametrize("destination", ["Lisbon", "Venice"])
def test_trip_has_all_its_bookings_or_none_in_every_order_of_arrival(shop: Any, destination: str) -> None:
    def one_trip(harness: SagaHarness) -> None:
        for file in shop.folder.glob("*.sqlite3"):
            file.unlink()
        set_out(harness, shop, destination)
        harness.send(shop.trips.call_off, trip_id="T1")

    def all_or_none(harness: SagaHarness) -> None:
        if harness.is_quiet:
            outcome = harness.assert_completed(shop.trips.Trip, "T1")
            booked, cancelled = ({line.service for line in shop.bookings.lines() if line.what == what} for what in WHAT)
            assert len(booked - cancelled) == (3 if outcome.step == "trip.car_booked" else 0)

    explore(one_trip, all_or_none, examples=30, faults=["repeat", "crash"], app=shop.app.app)
