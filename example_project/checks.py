"""The checks: what the stores say has happened, against what must have."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Generic, TypeAlias, TypeVar

from example_project import bank, bookings, ledger
from example_project.invoices import SIZE, file_invoices
from example_project.journal import Entry, history, rejected
from example_project.orders import SHOP, Order
from example_project.scenarios import ENDS, MISTAKE, SOLD, Planned, PlannedTrip
from example_project.till import Till
from example_project.trips import SERVICES, Trip

PlannedT = TypeVar("PlannedT", bound=Planned | PlannedTrip)


@dataclass(frozen=True)
class Look(Generic[PlannedT]):
    """An order, or a trip, as the stores know it."""

    planned: PlannedT
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
        return [f"{self.planned.name}: {problem}" for problem in wrong]

    def _counted(self) -> Counter[tuple[str, str]]:
        """Count what came of its messages; one that has waited long for its beginning has further entries that say so."""
        return Counter((entry.step, str(entry.outcome)) for entry in self.journal if entry.outcome != "deferred")


OrderLook: TypeAlias = Look[Planned]
TripLook: TypeAlias = Look[PlannedTrip]


def look_at(planned: Planned) -> OrderLook:
    """Look an order up: while it lives it is found, later the journal knows how it ended."""
    order = Order.find(planned.order_id)
    if order is not None:
        return Look(planned, order.status, [])
    if Order.outcome(planned.order_id) is None:
        return Look(planned, "not placed", [])
    journal = history("order", planned.order_id)
    return Look(planned, end_of(journal), journal)


def look_at_trip(planned: PlannedTrip) -> TripLook:
    """Look a trip up."""
    if Trip.find(planned.trip_id) is not None:
        return Look(planned, "under way", [])
    if Trip.outcome(planned.trip_id) is None:
        return Look(planned, "not begun", [])
    journal = history("trip", planned.trip_id)
    return Look(planned, end_of(journal), journal)


def end_of(journal: Sequence[Entry]) -> str:
    """Return how an order or a trip has ended: what is undone has still to be, when the step has run that decides it."""
    return next((ENDS[entry.step] for entry in reversed(journal) if entry.step in ENDS), journal[-1].step)


@dataclass(frozen=True)
class Books:
    """What the shop's till and the bank have counted."""

    sales: int
    taken: Decimal
    calls: int
    charged: int
    refunded: int
    balance: Decimal


def read_books() -> Books:
    """Read the till and the bank's books."""
    till = Till.find(SHOP)
    sales, taken = (till.orders, till.taken) if till is not None else (0, Decimal(0))
    return Books(sales, taken, bank.count("calls"), bank.count("charged"), bank.count("refunded"), bank.balance())


def expected_books(ends: Sequence[tuple[Decimal, str]], calls: int) -> Books:
    """Return what the books must say.

    Args:
        ends: Total and final state of each order.
        calls: How often the bank was called, which is not the shop's to decide.
    """
    delivered = [total for total, end in ends if end == "delivered"]
    given_back = sum(end in ("cancelled", "unserved") for _, end in ends)
    return Books(
        sales=len(delivered),
        taken=sum(delivered, Decimal(0)),
        calls=calls,
        charged=len(delivered) + given_back,
        refunded=given_back,
        balance=sum(delivered, Decimal(0)),
    )


@dataclass(frozen=True)
class Filing:
    """What has become of the invoices."""

    filed: list[ledger.Filed]
    batches: list[ledger.Line]
    rejected: list[str]  #: the ids of those that were rejected
    waiting: int  #: in the buffer of the aggregator

    @property
    def total(self) -> Decimal:
        """What the filed invoices add up to."""
        return sum((invoice.total for invoice in self.filed), Decimal(0))

    def is_done(self, delivered: Sequence[Planned]) -> bool:
        """Whether there is nothing left to wait for."""
        filed, expected = len(self.filed), len(expected_invoices(delivered))
        return not self.waiting and filed >= expected and filed + len(self.rejected) > expected  # one is the mistake

    def problems(self, delivered: Sequence[Planned]) -> list[str]:
        """Return what is wrong with it."""
        expected = expected_invoices(delivered)
        lacks, has = Counter(expected) - Counter(self.filed), Counter(self.filed) - Counter(expected)
        wrong = [f"the ledger lacks the invoice {_shown(each)}" for each in lacks]
        wrong += [f"the ledger should not have the invoice {_shown(each)}" for each in has]
        wrong += [f"a batch has {line.size} invoices, and {SIZE} is the most" for line in self.batches if line.size > SIZE]
        if self.waiting:
            wrong.append(f"{self.waiting} invoices wait to be filed")
        if self.rejected != [MISTAKE.number]:
            wrong.append(f"the invoices {self.rejected} were rejected, not {[MISTAKE.number]}")
        return wrong


def _shown(invoice: ledger.Filed) -> str:
    return f"{invoice.number} over {invoice.total} in the book of {invoice.book}"


def read_filing() -> Filing:
    """Read the ledger, and look at what has not come to it."""
    return Filing(ledger.invoices(), ledger.batches(), rejected(), file_invoices.count())


def expected_invoices(delivered: Sequence[Planned]) -> list[ledger.Filed]:
    """Return what the ledger must have: the orders that were delivered, and what the counter has sold."""
    sold = [ledger.Filed(invoice.number, invoice.book, invoice.total) for invoice in SOLD]
    return sold + [ledger.Filed(order.order_id, order.scenario.carrier, order.total) for order in delivered]


@dataclass(frozen=True)
class Bookings:
    """What the airline, the hotel and the car rental have noted."""

    lines: list[bookings.Line]

    def services(self, what: str, trip_id: str) -> list[str]:
        """Return the services that have ``booked`` or ``cancelled`` a trip, in their order."""
        return [line.service for line in self.lines if (line.what, line.trip) == (what, trip_id)]

    def kept(self, trip_id: str) -> list[str]:
        """Return the services that have booked a trip, and not cancelled it."""
        cancelled = self.services("cancelled", trip_id)
        return [service for service in self.services("booked", trip_id) if service not in cancelled]

    def problems(self, trip: PlannedTrip) -> list[str]:
        """Return what is wrong with those of a trip: it has all of them, or none, and the last one was cancelled first."""
        kept, wanted = self.kept(trip.trip_id), list(SERVICES) if trip.scenario.ends == "booked" else []
        wrong = [] if kept == wanted else [f"it has the bookings {kept}, not {wanted}"]
        cancelled = self.services("cancelled", trip.trip_id)
        if cancelled != [service for service in reversed(SERVICES) if service in cancelled]:
            wrong.append(f"its bookings were cancelled in a wrong order: {cancelled}")
        return [f"{trip.name}: {problem}" for problem in wrong]


def read_bookings() -> Bookings:
    """Read the books of the airline, the hotel and the car rental."""
    return Bookings(bookings.lines())


def all_done(looks: Sequence[OrderLook], books: Books, filing: Filing) -> bool:
    """Whether there is nothing left of the orders to wait for, be it right or wrong."""
    expected = expected_books([(look.planned.total, look.state) for look in looks], books.calls)
    counted = books.sales >= expected.sales and books.refunded >= expected.refunded
    filed = filing.is_done([look.planned for look in looks if look.state == "delivered"])
    return counted and filed and all(look.settled for look in looks)


def problems(looks: Sequence[OrderLook], books: Books, filing: Filing) -> list[str]:
    """Return everything of the orders that is not as it must be."""
    expected = expected_books([(look.planned.total, look.planned.scenario.ends) for look in looks], books.calls)
    wrong = [problem for look in looks for problem in look.problems()]
    if books != expected:
        wrong.append(f"the books do not add up: {books}, not {expected}")
    return wrong + filing.problems([look.planned for look in looks if look.planned.scenario.ends == "delivered"])
