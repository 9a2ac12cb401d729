"""One day in the shop: the worker starts, customers place orders, and in the end everything must add up."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from example_project.checks import Books, Filing, Look, all_done, look_at, problems, read_books, read_filing
from example_project.invoices import file_invoices
from example_project.journal import Entry, forget
from example_project.orders import SHOP, cancel_order, place_order
from example_project.premises import Premises
from example_project.scenarios import MISTAKE, SOLD, Planned
from example_project.till import close_till
from example_project.worker import ShopError, Worker

#: Of the problems there are when time has run out.
_SHOWN = 10

Watch = Callable[[Sequence[Look]], None]


@dataclass(frozen=True)
class Day:
    """How the day went."""

    looks: list[Look]
    books: Books
    filing: Filing
    problems: list[str]

    @property
    def busiest(self) -> list[Entry]:
        """The journal of the order that had the most messages."""
        return max((look.journal for look in self.looks), key=len)


def run(planned: Sequence[Planned], premises: Premises, *, concurrency: int, timeout: float, watch: Watch) -> Day:
    """Run the shop for a day.

    Args:
        planned: The orders that are placed.
        premises: Where.
        concurrency: How many tasks the worker runs at the same time.
        timeout: Seconds that the day may last.
        watch: Called with every look at the orders.

    Raises:
        ShopError: The worker ended, or time ran out.
    """
    with Worker(premises, concurrency, time.monotonic() + timeout) as worker:
        worker.wait_until_ready()
        sell_at_the_counter()
        for order in planned:
            check_out(order)
        wait_for(planned, worker, watch)
    return balance(planned)  # the worker has ended: nothing changes any more


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


def wait_for(planned: Sequence[Planned], worker: Worker, watch: Watch) -> None:
    """Look at the orders and the invoices until there is nothing left to wait for."""
    looks, books, filing = [look_at(order) for order in planned], read_books(), read_filing()
    while not all_done(looks, books, filing):
        try:
            worker.check()
        except ShopError as exc:
            raise ShopError("\n".join([*problems(looks, books, filing)[:_SHOWN], str(exc)])) from exc
        time.sleep(0.1)
        looks = [look if look.settled else look_at(look.planned) for look in looks]
        books, filing = read_books(), read_filing()
        watch(looks)


def balance(planned: Sequence[Planned]) -> Day:
    """Check everything once more, and leave nothing in the database if it is right."""
    looks, books, filing = [look_at(order) for order in planned], read_books(), read_filing()
    day = Day(looks, books, filing, problems(looks, books, filing))
    if not day.problems:
        if books.sales:
            close_till(shop=SHOP)  # a direct call handles the message here and now
        forget()
    return day
