"""What uses connections in threads of its own: the database of the tests cannot be dropped while one of them is open."""

import time

from django.db import connection, transaction
from django.test import TransactionTestCase

from bakery.sagas import ordered
from celery_sagas import send
from celery_sagas.telemetry.stored import registry_of
from celery_sagas.worker.celery_internals import current_app
from celery_sagas.worker.runtime import runtime_of


class Publishing(TransactionTestCase):
    def test_database_can_be_dropped_after_messages_were_published(self):
        with transaction.atomic():
            send(ordered.si(order_id="1"), using="default")
        deadline = time.monotonic() + 10
        while self.count_unsent() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert self.count_unsent() == 0

    def test_database_can_be_dropped_after_a_scrape(self):
        found = {family.name: family for family in registry_of(runtime_of(current_app())).collect()}
        assert [sample.value for sample in found["celery_sagas_up"].samples] == [1.0]
        assert found["celery_sagas_instances"].samples

    def count_unsent(self):
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM saga_outbox")
            return cursor.fetchone()[0]
