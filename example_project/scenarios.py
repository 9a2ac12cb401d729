"""What the customers, their cards and the carrier do, and how each order must end."""

from collections import Counter
from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True)
class Scenario:
    """A kind of order."""

    name: str
    card: str = "good"  #: what the bank makes of it, see bank.py
    express: bool = False  #: its parcel is reported as delivered before it is known as shipped, and twice
    clicks: int = 1  #: on "buy"
    cancelled: bool = False  #: the cancellation is sent before the order
    ends: str = "delivered"  #: the state that it must be in


SCENARIOS = (
    Scenario("good card"),
    Scenario("impatient customer", clicks=3, express=True),
    Scenario("flaky card", card="flaky"),
    Scenario("declined card", card="declined", ends="declined"),
    Scenario("overtaking parcel", express=True),
    Scenario("cancelled before paid", card="slow", cancelled=True, ends="cancelled"),
)

#: The step that ended an order, and the state that this is called.
ENDS = {"order.parcel_delivered": "delivered", "order.card_declined": "declined", "order.cancel_order": "cancelled"}

#: What the journal must hold beside the checkout: step and outcome, each once.
_MESSAGES = {
    "delivered": [
        ("order.card_charged", "handled"),
        ("order.shipped", "handled"),
        ("order.parcel_delivered", "completed"),
    ],
    "declined": [("order.card_declined", "completed")],
    "cancelled": [("order.cancel_order", "completed"), ("order.card_charged", "missing")],
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
        return +(clicks + Counter(_MESSAGES[self.scenario.ends]))


def plan(orders: int) -> list[Planned]:
    """Plan a number of orders, of every kind in turn."""
    return [
        Planned(str(1001 + number), Decimal(1999 + 137 * number) / 100, SCENARIOS[number % len(SCENARIOS)])
        for number in range(orders)
    ]
