"""A test that publishes, for which steps must not run where they are sent."""

import time

from django.db import connection, transaction
from django.test import TransactionTestCase

from bakery.sagas import ordered
from celery_sagas import send


class Publishing(TransactionTestCase):
    def test_database_can_be_dropped_after_messages_were_published(self):
        with transaction.atomic():
            send(ordered.si(order_id="1"), using="default")
        deadline = time.monotonic() + 10
        while self.count_unsent() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert self.count_unsent() == 0

    def count_unsent(self):
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM saga_outbox")
            return cursor.fetchone()[0]
