"""Tests as a project's own: over Django's connection, each undone at its end, or in a database that is emptied."""

import sys
from contextlib import nullcontext, suppress
from io import StringIO
from unittest import skipUnless
from unittest.mock import patch

from celery import current_app
from django.core.management import call_command
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase
from django.test.utils import CaptureQueriesContext
from sqlalchemy import event
from sqlalchemy.orm import Session

from bakery import sagas
from bakery.models import Cake, Slice
from bakery.sagas import Baking, burn, crumbs, cut, eaten, ordered, ring, scorch, spoil
from celery_sagas import send
from celery_sagas.errors import ConfigurationError, MisuseError, StoreUnavailable
from celery_sagas.settings import read_settings
from celery_sagas.stores.urls import open_backend
from celery_sagas.worker.batches.handing_over import batch_size


class Sagas:
    """What holds in both kinds of tests."""

    def place(self, order_id):
        with self.committing(), transaction.atomic():
            Cake.objects.create(order_id=order_id, flavour="lemon")
            send(ordered.si(order_id=order_id), using="default")

    def test_saga_starts_beside_a_row(self):
        self.place("1")
        assert Baking.find("1").slices == 0

    def test_steps_use_models(self):
        self.place("1")
        cut.delay(order_id="1", number=1)
        cut.delay(order_id="1", number=2)
        assert Baking.find("1").slices == Slice.objects.count() == 2
        eaten.delay(order_id="1")
        assert not Slice.objects.exists()

    def test_error_of_a_step_undoes_its_rows(self):
        self.place("1")
        with self.assertRaises(ValueError):
            cut.delay(order_id="1", number=-1)
        assert (Baking.find("1").slices, Slice.objects.count()) == (0, 0)

    def test_error_of_a_step_in_eager_mode_reaches_the_sender(self):
        self.place("1")
        with self.assertRaises(ValueError), self.committing(), transaction.atomic():
            send(cut.si(order_id="1", number=-1), using="default")

    def test_batches_use_models(self):
        for number in range(3):
            crumbs.add(number)
        assert Slice.objects.filter(order_id="crumbs").count() == 3

    def test_nothing_is_sent_with_a_savepoint_that_is_undone(self):
        with self.committing(), transaction.atomic():
            with self.assertRaises(IntegrityError), transaction.atomic():
                send(ordered.si(order_id="1"), using="default")
                Cake.objects.create(order_id="1", flavour="lemon")
                Cake.objects.create(order_id="1", flavour="lemon")
            send(ordered.si(order_id="2"), using="default")
        assert Baking.find("1") is None
        assert Baking.find("2") is not None

    def test_error_that_a_step_catches_undoes_its_savepoint_alone(self):
        self.place("1")
        spoil.delay(order_id="1", in_savepoint=True)
        assert (Baking.find("1").slices, Cake.objects.count()) == (1, 1)

    def test_step_that_has_asked_for_a_rollback_fails(self):
        self.place("1")
        with self.assertRaisesRegex(MisuseError, "has ended the transaction"):
            burn.delay(order_id="1")
        assert not Slice.objects.exists()

    def test_nothing_is_sent_with_a_transaction_that_an_error_has_ended(self):
        with transaction.atomic():
            transaction.set_rollback(True)
            with self.assertRaisesRegex(MisuseError, "Leave atomic"):
                send(ordered.si(order_id="1"), using="default")
            with self.assertRaisesRegex(MisuseError, "Leave atomic"):
                Baking.find("1")
        assert Baking.find("1") is None

    @skipUnless(connection.vendor == "postgresql", "which ends a transaction with any error")
    def test_error_of_which_django_takes_no_note_ends_a_transaction(self):
        self.place("1")
        with self.assertRaisesRegex(MisuseError, "has ended the transaction"):
            scorch.delay(order_id="1")
        for use in (lambda: send(ordered.si(order_id="2"), using="default"), lambda: Baking.find("1"), lambda: crumbs.add(1)):
            with transaction.atomic():
                with suppress(DatabaseError), connection.cursor() as cursor:
                    cursor.execute("SELECT nothing FROM nowhere")
                with self.assertRaisesRegex(MisuseError, "Leave atomic"):
                    use()
                transaction.set_rollback(True)

    def test_transaction_is_one_of_the_database_of_the_backend(self):
        with transaction.atomic(), self.assertRaisesRegex(ConfigurationError, "django://other"):
            send(ordered.si(order_id="1"), using="other")

    def test_two_sends_share_a_commit(self):
        with self.committing(), transaction.atomic():
            for number in range(5):
                send(ordered.si(order_id=str(number)), using="default")
        assert [Baking.find(str(number)).order_id for number in range(5)] == list("01234")

    def test_commands_write_where_they_are_told_to(self):
        output = StringIO()
        call_command("sagas", "dead", "list", stdout=output)
        self.assertEqual(output.getvalue(), "There are no dead letters.\n")


class InOneTransaction(Sagas, TestCase):
    def committing(self):
        return self.captureOnCommitCallbacks(execute=True)

    def test_what_waits_for_the_commit_is_the_projects_own(self):
        self.place("1")
        with self.captureOnCommitCallbacks() as called:
            cut.delay(order_id="1", number=1)
        assert called == []


class InTransactions(Sagas, TransactionTestCase):
    def committing(self):
        return nullcontext()

    def test_outside_of_a_transaction_nothing_is_sent(self):
        with self.assertRaises(MisuseError):
            send(ordered.si(order_id="1"), using="default")

    def test_nothing_is_committed_for_a_caller_without_autocommit(self):
        transaction.set_autocommit(False)
        self.addCleanup(transaction.set_autocommit, True)
        self.addCleanup(transaction.rollback)
        Slice.objects.create(order_id="1", number=1)
        crumbs.add(1)
        assert Baking.find("1") is None
        transaction.rollback()
        assert not Slice.objects.exists()

    def test_step_that_catches_an_error_without_a_savepoint_fails(self):
        self.place("1")
        with self.assertRaisesRegex(MisuseError, "transaction.atomic"):
            spoil.delay(order_id="1", in_savepoint=False)
        assert Baking.find("1").slices == 0

    @skipUnless(connection.vendor == "sqlite", "where what has read cannot wait for its turn to write")
    def test_step_begins_to_write_at_once(self):
        self.place("1")
        with CaptureQueriesContext(connection) as ran:
            cut.delay(order_id="1", number=1)
        assert "BEGIN IMMEDIATE" in [each["sql"] for each in ran.captured_queries]

    def test_functions_of_a_step_run_after_its_commit(self):
        self.place("1")
        sagas.rung.clear()
        ring.delay(order_id="1")
        with self.assertLogs("celery_sagas", "ERROR"):
            ring.delay(order_id="1", fails=True)
        assert (sagas.rung, Baking.find("1").slices) == (["1", "1"], 2)

    def test_step_after_an_interrupted_commit_commits(self):
        self.place("1")
        with (
            self.assertRaises((InterruptedError, StoreUnavailable)),
            patch.object(connection, "_commit", side_effect=InterruptedError),
        ):
            cut.delay(order_id="1", number=1)
        cut.delay(order_id="1", number=2)
        assert connection.get_autocommit()
        connection.close()  # which undoes what was not committed
        assert Baking.find("1").slices == Slice.objects.count()

    def test_sends_of_a_transaction_are_published_together(self):
        with transaction.atomic():
            for number in range(3):
                send(ordered.si(order_id=str(number)), using="default")
            assert len(connection.run_on_commit) == 1

    def test_saga_can_be_read_where_it_was_started(self):
        with transaction.atomic():
            ordered.delay(order_id="1")
            assert Baking.find("1") is not None
            transaction.set_rollback(True)
        assert Baking.find("1") is None


class Settings(SimpleTestCase):
    def test_steps_that_use_models_run_alone(self):
        size = {step.name: batch_size(current_app.tasks[step.name], read_settings(current_app.conf)) for step in (ordered, cut)}
        assert size == {ordered.name: 50, cut.name: 1}

    def assert_refused(self, url, text):
        with self.assertRaisesRegex(ConfigurationError, text):
            open_backend(url, prefix="x", options={})

    def test_alias_must_be_known(self):
        self.assert_refused("django://nowhere", "has no 'nowhere'")

    def test_alias_must_be_one(self):
        for url in ("django://", "django://user@host/name", "db+django://default"):
            self.assert_refused(url, "django://alias")

    @skipUnless(connection.vendor == "mysql", "where it is seen how a connection is opened")
    def test_options_of_the_database_hold_for_workers(self):
        backend = open_backend("django://default", prefix="x", options={})
        given = {}

        def note(dialect, entry, positional, named):
            given.update(named)
            raise backend.database.driver.OperationalError(2003, "not now")

        event.listen(backend.database.engine, "do_connect", note)
        changed = patch.dict(connection.settings_dict["OPTIONS"], {"connect_timeout": 7})
        with changed, self.assertRaises(StoreUnavailable), backend.database.connect():
            pass
        assert (given["connect_timeout"], given["autocommit"]) == (7, True)

    @skipUnless(connection.vendor != "sqlite", "whose driver is Python's own")
    def test_driver_must_be_there(self):
        with patch.dict(sys.modules, {"psycopg": None, "pymysql": None}):
            self.assert_refused("django://default", "pip install")

    def test_alias_must_commit(self):
        self.assert_refused("django://manual", "AUTOCOMMIT")

    def test_transaction_must_be_djangos(self):
        backend = open_backend("django://default", prefix="x", options={})
        with self.assertRaisesRegex(ConfigurationError, "transaction='default'"):
            backend.shared.check(Session)
        with self.assertRaisesRegex(ConfigurationError, "django://other"):
            backend.shared.check("other")

    def test_alias_is_refused_by_other_backends(self):
        backend = open_backend("sqlite:////tmp/none", prefix="x", options={})
        with self.assertRaisesRegex(ConfigurationError, "django://default"):
            backend.shared.check("default")
        with self.assertRaisesRegex(ConfigurationError, "django://default"):
            backend.shared.add("default", [], print)
