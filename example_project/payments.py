"""Payments: plain Celery tasks that talk to the bank. They know nothing of sagas: what they return, or raise, is the answer."""

from decimal import Decimal
from typing import Any

from celery import Task, shared_task

from example_project import bank


# A bank that cannot be reached is Celery's business: the saga hears of the outcome alone, when the last retry is over. This task
# may run twice for one order, so the order's number is the bank's idempotency key.
@shared_task(
    bind=True,
    autoretry_for=(bank.Unreachable,),
    max_retries=10,
    retry_backoff=1,
    retry_backoff_max=1,
    throws=(bank.Declined,),  # no reason to log a traceback
)
def charge_card(self: "Task[Any, Any]", order_id: str, total: Decimal, card: str) -> str:
    """Charge the card of an order; return the receipt."""
    try:
        return bank.charge(card, total, key=order_id)
    except bank.Pending as exc:
        raise self.retry(exc=exc, countdown=3) from exc


@shared_task
def give_back(order_id: str) -> None:
    """Give back what an order's card was charged, if it was. It may run twice: the bank does it once."""
    bank.give_back(key=order_id)
