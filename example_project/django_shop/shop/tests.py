"""The tests of the shop. Sagas are rows of its database: what a test has started is undone with its transaction."""

from django.db import transaction
from django.test import TestCase, override_settings

from celery_sagas import send
from shop.models import Order, Payment
from shop.sagas import Checkout, order_placed


@override_settings(CELERY_TASK_ALWAYS_EAGER=True, CELERY_TASK_EAGER_PROPAGATES=True)
class CheckoutTest(TestCase):
    """An order, from the view to its payment."""

    def place(self, total: str = "12.50") -> int:
        """Place an order; a ``TestCase`` commits nothing, so that it is said when what waits for the commit is to run."""
        with self.captureOnCommitCallbacks(execute=True):
            return self.client.post("/orders/", {"total": total}).json()["order"]

    def test_order_has_its_saga(self) -> None:
        order_id = self.place()
        self.assertEqual(self.client.get(f"/orders/{order_id}/").json(), {"receipt": "", "is_late": False})

    def test_payment_is_written_with_the_saga(self) -> None:
        order_id = self.place()
        self.client.post(f"/orders/{order_id}/payment/", {"receipt": "r-1"})
        self.assertEqual(Payment.objects.get().receipt, "r-1")
        self.assertEqual(Checkout.find(order_id).receipt, "r-1")
        self.assertTrue(Order.objects.get().is_paid)

    def test_order_that_is_rolled_back_has_no_saga(self) -> None:
        with self.captureOnCommitCallbacks(execute=True), transaction.atomic():
            send(order_placed.si(order_id=1), using="default")
            transaction.set_rollback(True)
        self.assertIsNone(Checkout.find(1))
