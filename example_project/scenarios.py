"""What the customers, their cards and the carrier do, how each order must end, and what is sold at the counter."""

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

#: The step that ended an order, and the state that this is called.
ENDS = {
    "order.parcel_delivered": "delivered",
    "order.not_charged": "declined",
    "order.card_charged": "cancelled",
    "order.nobody_delivers": "unserved",
}

#: What the journal must hold beside the checkout: step and outcome, each once.
_MESSAGES = {
    "delivered": [
        ("order.card_charged", "handled"),
        ("order.carriers_answered", "handled"),
        ("order.shipped", "handled"),
        ("order.parcel_delivered", "completed"),
    ],
    "declined": [("order.not_charged", "completed")],
    "cancelled": [("order.cancel_order", "handled"), ("order.card_charged", "completed")],
    "unserved": [("order.card_charged", "handled"), ("order.nobody_delivers", "completed")],
}


@dataclass(frozen=True)
class Planned:
    """An order that will be placed."""

    order_id: str
    total: Decimal
    scenario: Scenario

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
