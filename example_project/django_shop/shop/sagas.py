"""The sagas of the shop; Celery finds this module by its name."""

from datetime import timedelta

from celery_sagas import Saga
from shop.models import Order, Payment


class Checkout(Saga, correlate_by="order_id"):
    """An order, from its row to its payment, or to the end of its patience."""

    order_id: int
    receipt: str = ""
    is_late: bool = False


@Checkout.starts(if_exists="ignore")
def order_placed(checkout: Checkout, order_id: int) -> None:
    """Wait for the payment, for a week."""
    checkout.schedule(payment_is_late, after=timedelta(days=7))


@Checkout.handles(transaction="default")
def paid(checkout: Checkout, order_id: int, receipt: str) -> None:
    """Write the payment together with the saga, once."""
    Payment.objects.create(order_id=order_id, receipt=receipt)
    Order.objects.filter(pk=order_id).update(is_paid=True)
    checkout.receipt = receipt


@Checkout.handles
def payment_is_late(checkout: Checkout) -> None:
    """Note that a week has passed without a payment."""
    checkout.is_late = not checkout.receipt
