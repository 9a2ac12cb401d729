"""The shop's sagas in virtual time: its own tasks, its own bank and ledger, and no worker."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from celery_sagas.testing import SagaHarness
from celery_sagas.testing.exploration import explore
from tests.matrices import many

EXAMPLE = Path(__file__).parents[2] / "example_project"
ORDERS = EXAMPLE / "orders.py"
TOTAL = Decimal("19.99")
DAY = timedelta(days=1)


@contextmanager
def changed(shop: Any, line: str, other: str) -> Iterator[None]:
    """Have one line of the orders be another one meanwhile: steps that are defined again replace those before."""
    source = ORDERS.read_text()
    assert source.count(line) == 1
    try:
        exec(compile(source.replace(line, other), ORDERS, "exec"), vars(shop.orders))
        yield
    finally:
        exec(compile(source, ORDERS, "exec"), vars(shop.orders))


def check_out(harness: SagaHarness, shop: Any, card: str = "good", destination: str = "town") -> None:
    """Do what a customer does."""
    hour = timedelta(hours=1)
    harness.send(shop.orders.place_order, order_id="42", total=TOTAL, card=card, destination=destination, patience=hour)


def test_order_is_delivered(harness: SagaHarness, shop: Any) -> None:
    check_out(harness, shop)
    harness.run()
    order = harness.assert_state(shop.orders.Order, "42", receipt="receipt-42", carrier="prompt", tracking="1Z-42")
    assert [timeout.name for timeout in harness.timeouts] == ["delivery"]
    assert order.total == TOTAL
    harness.advance(timedelta(seconds=5))
    harness.assert_completed(shop.orders.Order, "42", by=shop.orders.parcel_delivered)
    assert harness.assert_state(shop.till.Till, "high street", orders=1).taken == TOTAL
    assert [invoice.number for invoice in shop.ledger.invoices()] == ["42"]
    assert shop.bank.balance() == TOTAL


def test_second_click_changes_nothing(harness: SagaHarness, shop: Any) -> None:
    check_out(harness, shop)
    check_out(harness, shop)
    harness.advance(timedelta(seconds=5))
    assert shop.bank.count("calls") == 1


@pytest.mark.parametrize("card", ["flaky", "slow"])
def test_bank_that_answers_later(harness: SagaHarness, shop: Any, card: str) -> None:
    check_out(harness, shop, card=card)
    harness.advance(timedelta(seconds=10))
    assert len(harness.assert_sent(shop.payments.charge_card)) > 1
    harness.assert_completed(shop.orders.Order, "42", by=shop.orders.parcel_delivered)


def test_card_that_is_declined(harness: SagaHarness, shop: Any) -> None:
    check_out(harness, shop, card="declined")
    harness.run()
    harness.assert_completed(shop.orders.Order, "42", by=shop.orders.given_back)
    harness.assert_sent(shop.payments.give_back, "42", times=1)


def test_bank_that_never_answers(harness: SagaHarness, shop: Any) -> None:
    harness.silence(shop.payments.charge_card)
    check_out(harness, shop)
    harness.advance(timedelta(minutes=59))
    harness.assert_state(shop.orders.Order, "42")
    harness.advance(timedelta(minutes=1))
    harness.assert_completed(shop.orders.Order, "42", by=shop.orders.given_back)
    harness.assert_sent(shop.payments.give_back, "42", times=1)


def test_orders_are_listed_by_their_status(harness: SagaHarness, shop: Any) -> None:
    harness.silence(shop.payments.charge_card)
    check_out(harness, shop)
    harness.run()
    assert [order.order_id for order in shop.orders.Order.all(status="placed")] == ["42"]
    assert shop.orders.Order.all(status="paid").count() == 0
    harness.advance(timedelta(hours=1))
    assert shop.orders.Order.all().count() == 0


def test_carriers_that_do_not_answer(harness: SagaHarness, shop: Any) -> None:
    harness.silence(shop.shipping.quote)
    check_out(harness, shop)
    harness.advance(2 * timedelta(hours=1))
    harness.assert_completed(shop.orders.Order, "42", by=shop.orders.given_back)
    assert shop.bank.balance() == 0


def test_parcel_that_everybody_has_forgotten(harness: SagaHarness, shop: Any) -> None:
    harness.answer(shop.shipping.ship, "1Z-lost")
    harness.silence(shop.shipping.ask_carrier)
    check_out(harness, shop)
    harness.advance(5 * DAY)
    harness.assert_sent(shop.shipping.ask_carrier, "1Z-lost", times=1)
    harness.assert_state(shop.orders.Order, "42")


def test_customer_who_is_quicker_than_the_checkout(harness: SagaHarness, shop: Any) -> None:
    harness.send(shop.orders.cancel_order, order_id="42")
    check_out(harness, shop, card="slow")
    harness.advance(timedelta(seconds=10))
    harness.assert_completed(shop.orders.Order, "42", by=shop.orders.given_back)
    assert shop.bank.balance() == 0
    harness.assert_sent(shop.payments.give_back, "42", times=1)


class TestExploration:
    """Each order ends, and a customer has paid what was delivered: in whichever order the messages come, and however often."""

    #: Without it a report that comes before the shop knows the parcel is ignored, and its repeats are repeats.
    GUARD = '@Order.handles(by="tracking", when="shipped", if_missing="defer", defer_for=EARLY)'

    #: The steps that run if somebody has not answered in time: nobody cancels this order.
    LATE = frozenset({"order.not_charged", "order.nobody_delivers"})

    def explore(self, shop: Any, examples: int) -> None:
        def one_order(harness: SagaHarness) -> None:
            for file in shop.folder.glob("*.sqlite3"):
                file.unlink()
            check_out(harness, shop)

        def books_balance(harness: SagaHarness) -> None:
            if harness.is_quiet:
                outcome = harness.assert_completed(shop.orders.Order, "42")
                is_late = any(
                    each.kind == "handled" and each.step in self.LATE for each in harness.journal(shop.orders.Order, "42")
                )
                assert is_late or outcome.step == "order.parcel_delivered"
                assert shop.bank.balance() == (TOTAL if outcome.step == "order.parcel_delivered" else 0)

        explore(one_order, books_balance, examples=examples, faults=["repeat", "crash"], app=shop.app.app)

    def test_every_order_of_arrival_is_fine(self, shop: Any) -> None:
        self.explore(shop, many(60, full=200))

    def test_finds_the_report_that_comes_too_early(self, shop: Any) -> None:
        without = '@Order.handles(by="tracking")'
        with changed(shop, self.GUARD, without), pytest.raises(AssertionError, match="has not completed") as caught:
            self.explore(shop, 200)
        assert "order.parcel_delivered(tracking='1Z-42')" in str(caught.value)
        assert "ignored (missing)" in str(caught.value)
        assert "def test_found(saga_harness):" in caught.value.__notes__[0]
