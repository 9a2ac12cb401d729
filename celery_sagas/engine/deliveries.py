"""Redeliveries: a message that ends its worker each time is found out, since nothing else would stop it."""

from dataclasses import dataclass

from celery_sagas.errors import TooManyDeliveries
from celery_sagas.stores.ports import Deliveries


@dataclass(slots=True)
class Redelivery:
    """One delivery of a message that the broker has delivered before.

    It is counted once, however often its step runs after conflicts, and not at all if its step does not come to run.
    """

    allowed: int  #: deliveries, the first among them, which nobody counted
    is_counted: bool = False

    def check(self, deliveries: Deliveries, step: str, message_id: str) -> None:
        """Count this delivery, right before the handler runs.

        Raises:
            TooManyDeliveries: There were more than are allowed.
        """
        if self.is_counted:
            return
        self.is_counted = True
        count = deliveries.count(step, message_id) + 1
        if count > self.allowed:
            raise TooManyDeliveries(step, message_id, count, self.allowed)
