"""Sagas whose journeys are the same in a worker and in a test's harness: requests, gathers, timeouts, events, a child."""

import os
from datetime import timedelta
from typing import Any

from celery import Celery
from celery.exceptions import Ignore

from celery_sagas import Failure, Gathered, Message, Saga, publish

#: How the participants of an order behave, and its steps.
HOWS = ("good", "declined", "silent", "reminded", "parted", "broken")


class Ended(Message):
    """An order has ended."""

    order_id: str


class Order(Saga, correlate_by="order_id"):
    order_id: str
    how: str = ""


class Invoice(Saga, correlate_by="order_id"):
    order_id: str


class Ending(Saga, correlate_by="order_id"):
    order_id: str


def define(app: Celery) -> None:
    """Define the steps and the participants for an app."""

    @app.task(name="journeys.charge", acks_late=True)
    def charge(order_id: str, how: str) -> str:
        if how == "declined":
            raise ValueError("declined")
        if how == "silent":
            raise Ignore  # it neither answers nor fails
        return f"receipt of {order_id}"

    @app.task(name="journeys.quote", bind=True, acks_late=True)
    def quote(self: Any, how: str, number: int) -> int:
        if how == "parted" and number:
            raise KeyError(number)
        return number

    @Order.starts(if_exists="ignore")
    def begin(order: Order, order_id: str, how: str) -> None:
        order.how, within = how, timedelta(seconds=1) if how == "silent" else timedelta(minutes=5)
        order.send(charge.s(order_id, how), then=charged, otherwise=not_charged, within=within)

    @Order.handles
    def charged(order: Order, receipt: str) -> None:
        order.gather([quote.s(order.how, number) for number in range(3)], then=quoted, otherwise=not_quoted, at_least=2)

    @Order.handles
    def not_charged(order: Order, failure: Failure) -> None:
        order.complete()

    @Order.handles
    def quoted(order: Order, quotes: Gathered[int]) -> None:
        if order.how == "broken":
            raise KeyError("the message becomes a dead letter")
        order.send(bill.s(order.order_id), then=billed)

    @Order.handles
    def not_quoted(order: Order, quotes: Gathered[int]) -> None:
        order.complete()

    @Order.handles
    def billed(order: Order, number: str) -> None:
        order.schedule(remind, after=timedelta(seconds=1))

    @Order.handles
    def remind(order: Order) -> None:
        publish(Ended(order_id=order.order_id))
        if order.how == "reminded":
            order.schedule(nothing_heard, after=timedelta(seconds=0.5), name="last")
        else:
            order.complete()

    @Order.handles
    def nothing_heard(order: Order) -> None:
        order.complete()

    @Invoice.starts
    def bill(invoice: Invoice, order_id: str) -> None:
        invoice.schedule(answer, after=timedelta(seconds=0.5))

    @Invoice.handles
    def answer(invoice: Invoice) -> None:
        invoice.reply("i-" + invoice.order_id)
        invoice.complete()

    @Ending.starts
    def count(ending: Ending, ended: Ended) -> None:
        ending.complete()


if "CELERY_SAGAS_TEST_SETTINGS" in os.environ:
    from deployed import make_app

    app = make_app()
    define(app)
