"""The checks: what the stores say has happened, against what must have."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from example_project import bank
from example_project.journal import Entry, history
from example_project.orders import SHOP, Order
from example_project.scenarios import ENDS, Planned
from example_project.till import Till


@dataclass(frozen=True)
class Look:
    """An order as the stores know it."""

    planned: Planned
    state: str
    journal: list[Entry]  #: empty while it lives

    @property
    def ended(self) -> bool:
        """Whether it has come to an end, right or wrong."""
        return bool(self.journal)

    @property
    def settled(self) -> bool:
        """Whether it has ended, and nothing more of it can be waited for."""
        wrong = self.state != self.planned.scenario.ends
        return self.ended and (wrong or not self.planned.journal() - self._counted())

    def problems(self) -> list[str]:
        """Return what is wrong with it."""
        ends, expected, found = self.planned.scenario.ends, self.planned.journal(), self._counted()
        wrong = [] if self.state == ends else [f"it is {self.state}, not {ends}"]
        for step, outcome in expected | found if self.ended else ():
            times, wanted = found[step, outcome], expected[step, outcome]
            if times != wanted:
                wrong.append(f"its journal says {times} times, not {wanted}, that {step} came to {outcome!r}")
        return [f"order {self.planned.order_id} ({self.planned.scenario.name}): {problem}" for problem in wrong]

    def _counted(self) -> Counter[tuple[str, str]]:
        return Counter((entry.step, str(entry.outcome)) for entry in self.journal)


def look_at(planned: Planned) -> Look:
    """Look an order up: while it lives it is found, later the journal knows how it ended."""
    order = Order.find(planned.order_id)
    if order is not None:
        return Look(planned, "paid" if order.receipt else "placed", [])
    outcome = Order.outcome(planned.order_id)
    if outcome is None:
        return Look(planned, "not placed", [])
    return Look(planned, ENDS.get(outcome.step, outcome.step), history(planned.order_id))


@dataclass(frozen=True)
class Books:
    """What the shop's till and the bank have counted."""

    payments: int
    taken: Decimal
    calls: int
    charged: int
    refunded: int
    balance: Decimal


def read_books() -> Books:
    """Read the till and the bank's books."""
    till = Till.find(SHOP)
    payments, taken = (till.orders, till.taken) if till is not None else (0, Decimal(0))
    return Books(payments, taken, bank.count("calls"), bank.count("charged"), bank.count("refunded"), bank.balance())


def expected_books(ends: Sequence[tuple[Decimal, str]], calls: int) -> Books:
    """Return what the books must say.

    Args:
        ends: Total and final state of each order.
        calls: How often the bank was called, which is not the shop's to decide.
    """
    delivered = [total for total, end in ends if end == "delivered"]
    cancelled = sum(end == "cancelled" for _, end in ends)
    return Books(
        payments=len(delivered),
        taken=sum(delivered, Decimal(0)),
        calls=calls,
        charged=len(delivered) + cancelled,
        refunded=cancelled,
        balance=sum(delivered, Decimal(0)),
    )


def all_done(looks: Sequence[Look], books: Books) -> bool:
    """Whether there is nothing left to wait for, be it right or wrong."""
    expected = expected_books([(look.planned.total, look.state) for look in looks], books.calls)
    counted = books.payments >= expected.payments and books.refunded >= expected.refunded
    return counted and all(look.settled for look in looks)


def problems(looks: Sequence[Look], books: Books) -> list[str]:
    """Return everything that is not as it must be."""
    expected = expected_books([(look.planned.total, look.planned.scenario.ends) for look in looks], books.calls)
    wrong = [problem for look in looks for problem in look.problems()]
    return wrong if books == expected else [*wrong, f"the books do not add up: {books}, not {expected}"]
