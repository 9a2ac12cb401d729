"""One day in the shop: the worker starts, customers place orders and book trips, and in the end everything must add up."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from example_project.checks import (
    Bookings,
    Books,
    Filing,
    OrderLook,
    TripLook,
    all_done,
    look_at,
    look_at_trip,
    problems,
    read_bookings,
    read_books,
    read_filing,
)
from example_project.invoices import file_invoices
from example_project.journal import Entry, forget
from example_project.orders import SHOP, cancel_order, place_order
from example_project.premises import Premises
from example_project.scenarios import MISTAKE, SOLD, Planned, PlannedTrip
from example_project.till import close_till
from example_project.trips import book_trip, call_off
from example_project.worker import ShopError, Worker

#: Of the problems there are when time has run out.
_SHOWN = 10

Watch = Callable[[Sequence[OrderLook | TripLook]], None]


@dataclass(frozen=True)
class Day:
    """How the day went."""

    looks: list[OrderLook]
    trips: list[TripLook]
    books: Books
    filing: Filing
    bookings: Bookings

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to wait for."""
        return all_done(self.looks, self.books, self.filing) and all(look.settled for look in self.trips)

    @property
    def problems(self) -> list[str]:
        """Everything that is not as it must be."""
        of_trips = [problem for look in self.trips for problem in (*look.problems(), *self.bookings.problems(look.planned))]
        return problems(self.looks, self.books, self.filing) + of_trips

    @property
    def kept(self) -> int:
        """How many bookings the trips have in the end."""
        return sum(len(self.bookings.kept(look.planned.trip_id)) for look in self.trips)

    @property
    def busiest(self) -> list[Entry]:
        """The journal of the order that had the most messages."""
        return max((look.journal for look in self.looks), key=len)

    @property
    def undone(self) -> list[Entry]:
        """The journal of the trip of which the most was undone; empty if nothing was."""
        looks = [look for look in self.trips if look.planned.scenario.undone]
        return max(looks, key=lambda look: look.planned.scenario.undone).journal if looks else []


def run(
    orders: Sequence[Planned], trips: Sequence[PlannedTrip], premises: Premises, *, concurrency: int, timeout: float, watch: Watch
) -> Day:
    """Run the shop for a day.

    Args:
        orders: The orders that are placed.
        trips: The trips that are booked.
        premises: Where.
        concurrency: How many tasks the worker runs at the same time.
        timeout: Seconds that the day may last.
        watch: Called with every look at the orders and the trips.

    Raises:
        ShopError: The worker ended, or time ran out.
    """
    with Worker(premises, concurrency, time.monotonic() + timeout) as worker:
        worker.wait_until_ready()
        sell_at_the_counter()
        for trip in trips:
            set_out(trip)
        for order in orders:
            check_out(order)
        wait_for(orders, trips, worker, watch)
    return balance(orders, trips)  # the worker has ended: nothing changes any more


def sell_at_the_counter() -> None:
    """Do what the counter does: it adds its invoices past the broker, and again, as one does who got no answer.

    Its ids tell the aggregator that it has them already.
    """
    invoices = [*SOLD, MISTAKE]
    for _ in range(2):
        file_invoices.add_many(invoices, ids=[invoice.number for invoice in invoices])


def check_out(order: Planned) -> None:
    """Do what a customer does. Steps are ordinary Celery tasks."""
    scenario = order.scenario
    if scenario.cancelled:
        cancel_order.delay(order_id=order.order_id)
    for _ in range(scenario.clicks):
        place_order.delay(
            order_id=order.order_id,
            total=order.total,
            card=scenario.card,
            destination=scenario.destination,
            patience=scenario.patience,
        )


def set_out(trip: PlannedTrip) -> None:
    """Do what a traveller does."""
    scenario = trip.scenario
    if scenario.called_off:
        call_off.delay(trip_id=trip.trip_id)
    book_trip.delay(trip_id=trip.trip_id, destination=scenario.destination, patience=scenario.patience)


def wait_for(orders: Sequence[Planned], trips: Sequence[PlannedTrip], worker: Worker, watch: Watch) -> None:
    """Look at the orders, the trips and the invoices until there is nothing left to wait for."""
    day = look_at_all(orders, trips)
    while not day.is_over:
        try:
            worker.check()
        except ShopError as exc:
            raise ShopError("\n".join([*day.problems[:_SHOWN], str(exc)])) from exc
        time.sleep(0.1)
        day = _look_again(day)
        watch([*day.looks, *day.trips])


def look_at_all(orders: Sequence[Planned], trips: Sequence[PlannedTrip]) -> Day:
    """Look at everything."""
    return _day([look_at(order) for order in orders], [look_at_trip(trip) for trip in trips])


def _look_again(day: Day) -> Day:
    """Look at what had not ended, and at the books."""
    looks = [look if look.settled else look_at(look.planned) for look in day.looks]
    return _day(looks, [look if look.settled else look_at_trip(look.planned) for look in day.trips])


def _day(looks: list[OrderLook], trips: list[TripLook]) -> Day:
    return Day(looks, trips, read_books(), read_filing(), read_bookings())


def balance(orders: Sequence[Planned], trips: Sequence[PlannedTrip]) -> Day:
    """Check everything once more, and leave nothing in the database if it is right."""
    day = look_at_all(orders, trips)
    if not day.problems:
        if day.books.sales:
            close_till(shop=SHOP)  # a direct call handles the message here and now
        forget()
    return day
