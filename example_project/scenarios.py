"""What the customers, their cards and the carriers do, how each order and trip must end, and what is sold at the counter."""

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

from example_project.invoices import Invoice


@dataclass(frozen=True)
class Scenario:
    """A kind of order."""

    name: str
    card: str = "good"  #: what the bank makes of it, see bank.py
    destination: str = "town"
    carrier: str = "prompt"  #: the cheapest that goes there; what it makes of the parcel, see shipping.py
    patience: timedelta = timedelta(hours=1)  #: with the carriers, until they have said what they ask for
    clicks: int = 1  #: on "buy"
    cancelled: bool = False  #: the cancellation is sent before the order
    ends: str = "delivered"  #: the state that it must be in


SCENARIOS = (
    Scenario("good card"),
    Scenario("impatient customer", clicks=3, destination="harbour", carrier="hasty"),
    Scenario("flaky card", card="flaky"),
    Scenario("declined card", card="declined", ends="declined"),
    Scenario("overtaking parcel", destination="harbour", carrier="hasty"),
    Scenario("forgotten parcel", destination="hills", carrier="silent"),
    Scenario("cancelled before paid", card="slow", cancelled=True, ends="cancelled"),
    Scenario("no carrier", destination="island", carrier="", patience=timedelta(seconds=1), ends="unserved"),
)

#: The invoices of what was sold at the counter, more than one batch of them; and one that somebody has entered wrongly.
SOLD = [Invoice(number=f"counter-{number}", book="counter", total=Decimal(499 + 250 * number) / 100) for number in range(1, 13)]
MISTAKE = Invoice(number="counter-13", book="counter", total=Decimal("-7.49"))

#: The step that decided how an order or a trip ends, and the state that this is called.
ENDS = {
    "order.parcel_delivered": "delivered",
    "order.not_charged": "declined",
    "order.cancel_order": "cancelled",
    "order.nobody_delivers": "unserved",
    "trip.car_booked": "booked",
    "trip.no_trip": "impossible",
    "trip.call_off": "called off",
}

#: The answer of an undo goes to a step of the library's own.
_GIVEN_BACK = [("order.(undone)", "undone"), ("order.given_back", "completed")]
#: What the journal must hold beside the checkout: step and outcome, each once.
_MESSAGES = {
    "delivered": [
        ("order.card_charged", "handled"),
        ("order.carriers_answered", "handled"),
        ("order.shipped", "handled"),
        ("order.parcel_delivered", "completed"),
    ],
    "declined": [("order.not_charged", "handled"), *_GIVEN_BACK],
    "cancelled": [("order.cancel_order", "handled"), ("order.card_charged", "undone"), *_GIVEN_BACK],
    "unserved": [("order.card_charged", "handled"), ("order.nobody_delivers", "handled"), *_GIVEN_BACK],
}


@dataclass(frozen=True)
class Planned:
    """An order that will be placed."""

    order_id: str
    total: Decimal
    scenario: Scenario

    @property
    def name(self) -> str:
        """What it is called in a sentence."""
        return f"order {self.order_id} ({self.scenario.name})"

    def journal(self) -> Counter[tuple[str, str]]:
        """Return what its journal must hold in the end."""
        clicks = Counter({("order.place_order", "started"): 1, ("order.place_order", "ignored"): self.scenario.clicks - 1})
        asked = Counter({("order.still_waiting", "handled"): self.scenario.carrier == "silent"})
        return +(clicks + asked + Counter(_MESSAGES[self.scenario.ends]))


def plan(orders: int) -> list[Planned]:
    """Plan a number of orders, of every kind in turn."""
    return [
        Planned(str(1001 + number), Decimal(1999 + 137 * number) / 100, SCENARIOS[number % len(SCENARIOS)])
        for number in range(orders)
    ]


@dataclass(frozen=True)
class TripScenario:
    """A kind of trip."""

    name: str
    destination: str  #: what the services make of it, see travel.py
    ends: str  #: the state that it must be in
    steps: tuple[tuple[str, str], ...]  #: what its journal must hold beside its beginning, and what follows when it is undone
    undone: int = 0  #: how many bookings
    patience: timedelta = timedelta(hours=1)  #: with the hotel
    called_off: bool = False  #: the customer's call comes before the trip is begun


_FLIGHT, _HOTEL = ("trip.flight_booked", "handled"), ("trip.hotel_booked", "handled")
TRIP_SCENARIOS = (
    TripScenario("trip", "Lisbon", "booked", (_FLIGHT, _HOTEL, ("trip.car_booked", "completed"))),
    TripScenario("trip without car", "Venice", "impossible", (_FLIGHT, _HOTEL, ("trip.no_trip", "handled")), undone=3),
    TripScenario(
        "trip to silent hotel",
        "Shangri-La",
        "impossible",
        (_FLIGHT, ("trip.no_trip", "handled")),
        undone=2,
        patience=timedelta(seconds=5),
    ),
    TripScenario(
        "trip called off",
        "Hanoi",
        "called off",
        (("trip.call_off", "handled"), ("trip.flight_booked", "undone")),
        undone=1,
        called_off=True,
    ),
)


@dataclass(frozen=True)
class PlannedTrip:
    """A trip that will be begun."""

    trip_id: str
    scenario: TripScenario

    @property
    def name(self) -> str:
        """What it is called in a sentence."""
        return f"trip {self.trip_id} ({self.scenario.name})"

    def journal(self) -> Counter[tuple[str, str]]:
        """Return what its journal must hold in the end."""
        undone = self.scenario.undone
        end = Counter({("trip.(undone)", "undone"): undone, ("trip.all_cancelled", "completed"): undone > 0})
        return +(Counter([("trip.book_trip", "started"), *self.scenario.steps]) + end)


def plan_trips(trips: int) -> list[PlannedTrip]:
    """Plan a number of trips, of every kind in turn."""
    return [PlannedTrip(f"T{1 + number}", TRIP_SCENARIOS[number % len(TRIP_SCENARIOS)]) for number in range(trips)]
