"""Payments: plain Celery tasks that talk to the bank. They know nothing of sagas, and report by publishing events."""

from decimal import Decimal
from typing import Any

from celery import Task, shared_task

from celery_sagas import Message, publish
from example_project import bank


class CardCharged(Message):
    """The money of an order has come in."""

    order_id: str
    receipt: str


class CardDeclined(Message):
    """The bank does not accept the card of an order."""

    order_id: str
    reason: str


# A bank that cannot be reached is Celery's business: the saga hears of the outcome alone. This task may run twice for one
# order, so the order's number is the bank's idempotency key; the event may come twice, and its subscriber must bear that.
@shared_task(bind=True, autoretry_for=(bank.Unreachable,), max_retries=10, retry_backoff=1, retry_backoff_max=1)
def charge_card(self: "Task[Any, Any]", order_id: str, total: Decimal, card: str) -> None:
    """Charge the card of an order."""
    try:
        receipt = bank.charge(card, total, key=order_id)
    except bank.Pending as exc:
        raise self.retry(exc=exc, countdown=3) from exc
    except bank.Declined as exc:
        publish(CardDeclined(order_id=order_id, reason=str(exc)))
    else:
        publish(CardCharged(order_id=order_id, receipt=receipt))


@shared_task
def refund(receipt: str) -> None:
    """Give the money back. It may run twice: the bank refunds a receipt once."""
    bank.refund(receipt)
