"""Transactions that a function's rows share with a commit of the library."""

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, Integer, String, create_engine, insert, select, text
from sqlalchemy import column as named
from sqlalchemy import table as plain_table
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from celery_sagas.errors import (
    AlreadyHandled,
    ConfigurationError,
    LeaseLost,
    MisuseError,
    RevisionConflict,
    StoreError,
    StoreUnavailable,
)
from celery_sagas.stores.shared import SharedTransaction
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.testing.batches import CLOSED, add, buffered
from celery_sagas.testing.samples import by_id, change, claim, effects, entry, found, handled, new_record, outgoing, start, update
from tests.servers import unique
from tests.stores.sql.conftest import Open


class Interrupted(Exception):
    """Raised by a signal."""


PAYMENT = plain_table("payment", named("id", String()), named("amount", Integer()))
KINDS = (Session, Connection)


@pytest.fixture
def engine(sql: SqlBackend) -> Iterator[Engine]:
    """The user's own engine, with a table of theirs."""
    engine = create_engine(sql.database.location.url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS payment"))
        connection.execute(text("CREATE TABLE payment (id VARCHAR(80) PRIMARY KEY, amount INTEGER NOT NULL)"))
    yield engine
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE payment"))
    engine.dispose()


@pytest.fixture(autouse=True)
def payments(engine: Engine) -> Callable[[], list[str]]:
    """Return the ids in the user's table."""

    def read() -> list[str]:
        with engine.connect() as connection:
            return sorted(connection.scalars(select(PAYMENT.c.id)))

    return read


Payments = Callable[[], list[str]]


def pay(transaction: SharedTransaction, id: str, amount: int = 1) -> None:
    """Write a row of the user's."""
    transaction.handle.execute(insert(PAYMENT).values(id=id, amount=amount))
    transaction.flush()


@pytest.mark.parametrize("kind", KINDS)
class TestCommit:
    """Rows and commit are one."""

    def test_new_instance(self, sql: SqlBackend, payments: Payments, kind: type) -> None:
        record, row = new_record(), outgoing()
        transaction = sql.shared.open(kind)
        pay(transaction, "p")
        transaction.commit(lambda backend: backend.sagas.insert(record, effects(record, row, line=entry(record, version=1))))
        transaction.close()
        assert payments() == ["p"]
        assert found(sql, by_id(record.id)).version == 1
        assert [each.id for each in claim(sql)] == [row.id]

    def test_changed_instance_with_keys_and_rows(self, sql: SqlBackend, payments: Payments, kind: type) -> None:
        timeout = outgoing("scheduled", due_at=2**41)
        record = start(sql, "42", timeout, keys=(("tracking", "old"),))
        changed = change(added=(("tracking", "new"),), removed=(("tracking", "old"),), cancelled=(timeout.id,))
        transaction = sql.shared.open(kind)
        pay(transaction, "p")
        transaction.commit(lambda backend: backend.sagas.update(record, changed, effects(record)))
        transaction.close()
        assert payments() == ["p"]
        assert found(sql, by_id(record.id)).version == 2
        assert sql.outbox.count() == 0

    def test_completed_instance(self, sql: SqlBackend, payments: Payments, kind: type) -> None:
        record = start(sql)
        transaction = sql.shared.open(kind)
        pay(transaction, "p")
        transaction.commit(lambda backend: backend.sagas.delete(record, effects(record)))
        transaction.close()
        assert payments() == ["p"]
        assert sql.sagas.find(by_id(record.id)).record is None

    def test_stale_version_undoes_all(self, sql: SqlBackend, payments: Payments, kind: type) -> None:
        record, line = start(sql), entry()
        update(sql, record)
        transaction = sql.shared.open(kind)
        pay(transaction, "p")
        with pytest.raises(RevisionConflict) as caught:
            transaction.commit(lambda backend: backend.sagas.update(record, change(), effects(record, outgoing(), line=line)))
        transaction.close()
        assert caught.value.reason == "version"
        assert (payments(), handled(sql, line), sql.outbox.count()) == ([], None, 0)

    def test_message_that_was_handled_undoes_all(self, sql: SqlBackend, payments: Payments, kind: type) -> None:
        record, line = start(sql), entry()
        sql.sagas.record(effects(line=line))
        transaction = sql.shared.open(kind)
        pay(transaction, "p")
        again = line._replace(attempt="another")
        with pytest.raises(AlreadyHandled):
            transaction.commit(lambda backend: backend.sagas.update(record, change(), effects(record, line=again)))
        transaction.close()
        assert payments() == []
        assert found(sql, by_id(record.id)).version == 1

    def test_taken_key_undoes_all(self, sql: SqlBackend, payments: Payments, kind: type) -> None:
        start(sql, "41", keys=(("tracking", "t"),))
        record = start(sql, "42")
        transaction = sql.shared.open(kind)
        pay(transaction, "p")
        added = change(added=(("tracking", "t"),))
        with pytest.raises(RevisionConflict) as caught:
            transaction.commit(lambda backend: backend.sagas.update(record, added, effects(record)))
        transaction.close()
        assert caught.value.reason == "unique"
        assert payments() == []

    def test_closed_without_a_commit_undoes_all(self, sql: SqlBackend, payments: Payments, kind: type) -> None:
        transaction = sql.shared.open(kind)
        pay(transaction, "p")
        transaction.close()
        transaction.close()
        assert payments() == []

    def test_error_of_the_function_is_its_own(self, sql: SqlBackend, payments: Payments, kind: type) -> None:
        transaction = sql.shared.open(kind)
        pay(transaction, "p")
        with pytest.raises(IntegrityError) as caught:
            pay(transaction, "p")
        assert not transaction.is_conflict(caught.value)
        assert transaction.loss_of(caught.value) is None
        transaction.close()
        assert payments() == []

    def test_error_that_the_function_has_caught(self, sql: SqlBackend, payments: Payments, kind: type) -> None:
        line = entry()
        transaction = sql.shared.open(kind)
        pay(transaction, "p")
        with pytest.raises(IntegrityError):
            transaction.handle.execute(insert(PAYMENT).values(id="p", amount=1))
        if sql.database.name == "postgresql":  # there it has ended the transaction
            with pytest.raises(MisuseError, match="begin_nested"):
                transaction.commit(lambda backend: backend.sagas.record(effects(line=line)))
        else:
            transaction.commit(lambda backend: backend.sagas.record(effects(line=line)))
        transaction.close()
        assert (payments() == ["p"]) == (handled(sql, line) is not None) == (sql.database.name != "postgresql")

    def test_error_with_which_sqlite_has_undone_all(self, sql: SqlBackend, payments: Payments, kind: type) -> None:
        if sql.database.name != "sqlite":
            return
        line = entry()
        transaction = sql.shared.open(kind)
        pay(transaction, "p")
        with suppress(IntegrityError):
            transaction.handle.execute(text("INSERT OR ROLLBACK INTO payment VALUES ('p', 1)"))
        with pytest.raises(MisuseError, match="raise an error"):
            transaction.commit(lambda backend: backend.sagas.record(effects(line=line)))
        transaction.close()
        assert (payments(), handled(sql, line)) == ([], None)

    def test_commit_that_fails_undoes_all(self, sql: SqlBackend, payments: Payments, kind: type) -> None:
        """A constraint that is checked then; the connection is not used again."""
        if sql.database.name != "postgresql":
            return
        line = entry()
        transaction = sql.shared.open(kind)
        connection = transaction.handle if kind is Connection else transaction.handle.connection()
        driver = connection.connection.dbapi_connection
        columns = "id VARCHAR(80) REFERENCES payment DEFERRABLE INITIALLY DEFERRED"
        connection.execute(text(f"CREATE TABLE child ({columns})"))
        connection.execute(text("INSERT INTO child VALUES ('no such payment')"))
        transaction.flush()
        with pytest.raises(IntegrityError):
            transaction.commit(lambda backend: backend.sagas.record(effects(line=line)))
        transaction.close()
        assert (payments(), handled(sql, line)) == ([], None)
        following = sql.shared.open(Connection)
        assert following.handle.connection.dbapi_connection is not driver
        following.close()

    @pytest.mark.parametrize("end", ["COMMIT", " commit", "ROLLBACK", "rollback work", "END"])
    def test_function_cannot_end_it_by_a_text(self, sql: SqlBackend, payments: Payments, kind: type, end: str) -> None:
        transaction = sql.shared.open(kind)
        pay(transaction, "p")
        with pytest.raises(MisuseError, match=f"Leave {end.split()[0].upper()} out"):
            transaction.handle.execute(text(end))
        transaction.handle.execute(text("SAVEPOINT a_part"))
        transaction.handle.execute(text("ROLLBACK TO SAVEPOINT a_part"))
        transaction.flush()
        transaction.commit(lambda backend: backend.sagas.record(effects()))
        transaction.close()
        assert payments() == ["p"]

    def test_function_cannot_commit(self, sql: SqlBackend, payments: Payments, kind: type) -> None:
        transaction = sql.shared.open(kind)
        connection = transaction.handle if kind is Connection else transaction.handle.connection()
        connection.execute(insert(PAYMENT).values(id="p", amount=1))
        with pytest.raises(MisuseError, match="commit"):
            connection.commit()
        with pytest.raises(MisuseError, match="commit"):
            transaction.flush()
        with pytest.raises(MisuseError, match="commit"):
            transaction.commit(lambda backend: backend.sagas.record(effects()))
        transaction.close()
        assert payments() == []

    def test_batch_is_removed_with_its_rows(self, sql: SqlBackend, payments: Payments, kind: type) -> None:
        rules = CLOSED._replace(size=2)
        add(sql, rules, "a", "b")
        assert sql.aggregates.claim(rules, "", "token")
        transaction = sql.shared.open(kind)
        pay(transaction, "p")
        transaction.commit(lambda backend: backend.aggregates.remove(rules, "", "token"))
        transaction.close()
        assert payments() == ["p"]
        assert buffered(sql) == []

    def test_batch_whose_lease_was_given_up_undoes_all(self, sql: SqlBackend, payments: Payments, kind: type) -> None:
        transaction = sql.shared.open(kind)
        pay(transaction, "p")
        with pytest.raises(LeaseLost):
            transaction.commit(lambda backend: backend.aggregates.remove(CLOSED, "", "no such token"))
        transaction.close()
        assert payments() == []


def test_time_zone_is_that_of_the_users_own_connections(sql: SqlBackend, engine: Engine) -> None:
    """So that ``NOW()`` says the same in rows of handlers as in others."""
    if sql.database.name != "mysql":
        return
    transaction = sql.shared.open(Connection)
    query = text("SELECT @@session.time_zone")
    with engine.connect() as connection:
        assert transaction.handle.scalar(query) == connection.scalar(query)
    transaction.close()


class TestSnapshot:
    """The function has read rows, and with MySQL's default isolation goes on to see the database as it was then."""

    def test_lease_that_was_given_up_since_undoes_all(self, sql: SqlBackend, payments: Payments) -> None:
        if sql.database.name == "sqlite":  # nobody else writes meanwhile
            return
        rules = CLOSED._replace(size=2, lease_ms=0)
        add(sql, rules, "a", "b")
        assert sql.aggregates.claim(rules, "", "mine")
        transaction = sql.shared.open(Session)
        transaction.handle.execute(select(PAYMENT)).all()
        assert sql.aggregates.claim(rules, "", "another")
        pay(transaction, "p")
        with pytest.raises(LeaseLost):
            transaction.commit(lambda backend: backend.aggregates.remove(rules, "", "mine"))
        transaction.close()
        assert payments() == []
        sql.aggregates.remove(rules, "", "another")
        assert buffered(sql) == []

    def test_lease_that_was_given_since_is_remembered(self, sql: SqlBackend, payments: Payments) -> None:
        if sql.database.name == "sqlite":
            return
        rules = CLOSED._replace(size=2)
        add(sql, rules, "a", "b", "c", "d")
        assert sql.aggregates.claim(rules, "", "mine")
        transaction = sql.shared.open(Session)
        transaction.handle.execute(select(PAYMENT)).all()
        assert sql.aggregates.claim(rules._replace(lease_ms=0), "", "another")
        transaction.commit(lambda backend: backend.aggregates.remove(rules, "", "mine"))
        transaction.close()
        assert [due.group for due in sql.aggregates.claim_due([rules.name], 10, 60_000)] == [""]


class TestSession:
    """What a session may do in the hands of a function."""

    def test_its_commit_commits_nothing(self, sql: SqlBackend, payments: Payments) -> None:
        transaction = sql.shared.open(Session)
        pay(transaction, "p")
        transaction.handle.commit()
        pay(transaction, "q")
        assert payments() == []
        transaction.commit(lambda backend: backend.sagas.record(effects()))
        transaction.close()
        assert payments() == ["p", "q"]

    def test_its_commit_before_an_error_commits_nothing(self, sql: SqlBackend, payments: Payments) -> None:
        transaction = sql.shared.open(Session)
        pay(transaction, "p")
        transaction.handle.commit()
        transaction.close()
        assert payments() == []

    def test_its_savepoint_can_be_rolled_back(self, sql: SqlBackend, payments: Payments) -> None:
        transaction = sql.shared.open(Session)
        pay(transaction, "p")
        with transaction.handle.begin_nested() as savepoint:
            transaction.handle.execute(insert(PAYMENT).values(id="q", amount=1))
            savepoint.rollback()
        transaction.flush()
        transaction.commit(lambda backend: backend.sagas.record(effects()))
        transaction.close()
        assert payments() == ["p"]

    def test_its_rollback_is_refused_at_the_end(self, sql: SqlBackend, payments: Payments) -> None:
        line = entry()
        transaction = sql.shared.open(Session)
        pay(transaction, "p")
        transaction.handle.rollback()
        with pytest.raises(MisuseError, match="rollback"):
            transaction.flush()
        with pytest.raises(MisuseError, match="rollback"):
            transaction.commit(lambda backend: backend.sagas.record(effects(line=line)))
        transaction.close()
        assert (payments(), handled(sql, line)) == ([], None)

    def test_class_of_the_users_own(self, sql: SqlBackend) -> None:
        class Own(Session):
            """A session with more to it."""

        transaction = sql.shared.open(Own)
        assert type(transaction.handle) is Own
        transaction.close()

    def test_class_that_chooses_another_connection(self, sql: SqlBackend, engine: Engine, payments: Payments) -> None:
        """As those do that have several databases: what it writes there would be committed by nobody."""

        class Routing(Session):
            def get_bind(self, *args: Any, clause: Any = None, **kwargs: Any) -> Any:
                return self.bind if clause is None else engine

        transaction = sql.shared.open(Routing)
        try:
            with pytest.raises(MisuseError, match=r"Routing\.get_bind"):
                transaction.handle.execute(select(PAYMENT))
        finally:
            transaction.close()

    def test_what_was_not_flushed_is_written(self, sql: SqlBackend, payments: Payments) -> None:
        from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

        class Base(DeclarativeBase):
            """The user's tables."""

        class Payment(Base):
            __tablename__ = "payment"
            id: Mapped[str] = mapped_column(primary_key=True)
            amount: Mapped[int]

        transaction = sql.shared.open(Session)
        transaction.handle.add(Payment(id="p", amount=1))
        transaction.flush()
        transaction.commit(lambda backend: backend.sagas.record(effects()))
        transaction.close()
        assert payments() == ["p"]


class TestInterrupted:
    """A function that is interrupted while it waits for the database, as by a soft time limit."""

    def test_its_connection_is_not_used_again(self, sql: SqlBackend) -> None:
        if sql.database.name == "sqlite":  # it waits for no reply
            return
        sleep = "SELECT pg_sleep(20)" if sql.database.name == "postgresql" else "SELECT SLEEP(20)"
        transaction = sql.shared.open(Session)
        connection = transaction.handle.connection().connection.dbapi_connection

        def interrupt(*_: object) -> None:
            raise Interrupted

        before = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            with pytest.raises(Interrupted):
                transaction.handle.execute(text(sleep))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            transaction.close()
        for answer in (7, 8):
            following = sql.shared.open(Session)
            assert following.handle.connection().connection.dbapi_connection is not connection
            assert following.handle.scalar(text(f"SELECT {answer}")) == answer
            following.close()

    def test_what_it_has_left_open_is_not_committed_by_the_next_one(self, sql: SqlBackend, payments: Payments) -> None:
        """The interruption came while the transaction was being closed."""
        transaction = sql.shared.open(Session)
        pay(transaction, "p")
        del transaction
        gc.collect()
        following = sql.shared.open(Session)
        pay(following, "q")
        following.commit(lambda backend: backend.sagas.record(effects()))
        following.close()
        assert payments() == ["q"]


class TestConflicts:
    """The database undoes a transaction in favour of another one."""

    @pytest.mark.parametrize("how", ["raised", "caught", "caught around a savepoint"])
    def test_deadlock_of_rows_is_a_conflict(self, sql: SqlBackend, engine: Engine, payments: Payments, how: str) -> None:
        """Also if the function has caught it, where the whole transaction is gone with it."""
        if sql.database.name == "sqlite":  # one writes at a time
            return
        with engine.begin() as connection:
            connection.execute(insert(PAYMENT), [{"id": id, "amount": 0} for id in ("a", "b")])
        barrier, answers = threading.Barrier(2), dict[str, object]()
        catching = nullcontext() if how == "raised" else suppress(DBAPIError)

        def work(first: str, second: str) -> None:
            transaction = sql.shared.open(Session)
            try:
                pay(transaction, f"by {first}")
                transaction.handle.execute(text("UPDATE payment SET amount = amount + 1 WHERE id = :id"), {"id": first})
                barrier.wait()
                with catching, transaction.handle.begin_nested() if "savepoint" in how else nullcontext():
                    transaction.handle.execute(text("UPDATE payment SET amount = amount + 1 WHERE id = :id"), {"id": second})
                transaction.flush()
                transaction.commit(lambda backend: backend.sagas.record(effects()))
                answers[first] = "committed"
            except (DBAPIError, StoreUnavailable, MisuseError) as exc:
                answers[first] = transaction.is_conflict(exc)
            finally:
                transaction.close()

        threads = [threading.Thread(target=work, args=order) for order in (("a", "b"), ("b", "a"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [f"by {first}" for first in "ab" if answers[first] == "committed"] == payments()[2:]
        if sql.database.name == "mysql" or how == "raised":
            assert sorted(answers.values(), key=str) == [True, "committed"]
        elif "savepoint" in how:  # PostgreSQL undoes no more than that
            assert list(answers.values()) == ["committed", "committed"]
        else:
            assert sorted(answers.values(), key=str) == [False, "committed"]

    def test_loss_that_the_function_has_caught(self, sql: SqlBackend, engine: Engine, payments: Payments) -> None:
        if sql.database.name == "sqlite":  # there is no connection to lose
            return
        own, end = ("pg_backend_pid()", "SELECT pg_terminate_backend({})")
        if sql.database.name == "mysql":
            own, end = ("CONNECTION_ID()", "KILL CONNECTION {}")
        transaction = sql.shared.open(Session)
        pay(transaction, "p")
        id = transaction.handle.scalar(text(f"SELECT {own}"))
        with engine.connect() as connection:
            connection.execute(text(end.format(id)))
        with suppress(DBAPIError):
            transaction.handle.execute(text("SELECT 1"))
        with pytest.raises(StoreUnavailable) as caught:
            transaction.flush()
        assert not transaction.is_conflict(caught.value)
        assert isinstance(transaction.loss_of(ValueError("of the function, for the one that it has caught")), StoreUnavailable)
        transaction.close()
        assert payments() == []

    def test_serialization_failure_at_the_commit_is_a_conflict(self, sql: SqlBackend, engine: Engine) -> None:
        if sql.database.name != "postgresql":  # the others have none at the commit
            return
        with engine.begin() as connection:
            connection.execute(insert(PAYMENT), [{"id": id, "amount": 0} for id in ("a", "b")])
        transactions = [sql.shared.open(Connection) for _ in range(2)]
        for transaction, (read, written) in zip(transactions, [("a", "b"), ("b", "a")], strict=True):
            transaction.handle.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
            transaction.handle.execute(select(PAYMENT.c.amount).where(PAYMENT.c.id == read)).all()
            transaction.handle.execute(text("UPDATE payment SET amount = 1 WHERE id = :id"), {"id": written})
        first, second = transactions
        first.commit(lambda backend: backend.sagas.record(effects()))
        with pytest.raises(StoreError) as caught:  # of the statement, or of the commit itself
            second.commit(lambda backend: backend.sagas.record(effects()))
        assert isinstance(caught.value, RevisionConflict) or second.is_conflict(caught.value)
        for transaction in transactions:
            transaction.close()

    @pytest.mark.parametrize("move", ["update", "handled"])
    def test_rival_before_each_statement(self, sql: SqlBackend, open_sql: Open, payments: Payments, move: str) -> None:
        """A rival commits before one statement after the other: all is written, or nothing."""
        if sql.database.name == "sqlite":  # nobody else writes meanwhile
            return
        rival = open_sql(
            options={"connect_args": {"init_command": "SET SESSION innodb_lock_wait_timeout = 0"}}
            if sql.database.name == "mysql"
            else {"connect_args": {"options": "-c lock_timeout=1"}}
        )
        for number in range(1, 20):
            record, line, id = start(sql, unique()), entry(), unique()
            transaction, seen = sql.shared.open(Session), [0]

            def interfere(statement: str, number: int = number, record: Any = record, line: Any = line, seen: Any = seen) -> None:
                seen[0] += 1
                if seen[0] != number:
                    return
                try:
                    if move == "update":
                        rival.sagas.update(record, change(), effects(record))
                    else:
                        rival.sagas.record(effects(line=line._replace(attempt="rival")))
                except (StoreUnavailable, RevisionConflict):
                    seen.append("gave way")

            pay(transaction, id)
            sql.database.observers.append(interfere)
            try:
                transaction.commit(
                    lambda backend, record=record, line=line: backend.sagas.update(
                        record, change(data='{"total": 9}'), effects(record, line=line)
                    )
                )
                is_committed = True
            except (RevisionConflict, AlreadyHandled, StoreUnavailable):
                is_committed = False
            finally:
                sql.database.observers.remove(interfere)
                transaction.close()
            mine = handled(sql, line)
            assert (id in payments()) == is_committed == (mine is not None and mine.attempt == line.attempt)
            assert ('"total": 9' in found(sql, by_id(record.id)).data) == is_committed
            if seen[0] < number:
                break
        assert number > 2


class TestRefused:
    """What cannot be opened is refused before anything runs."""

    @pytest.mark.parametrize("kind", [None, int, "default", object(), type("Connected", (Connection,), {})])
    def test_other_kinds(self, sql: SqlBackend, kind: object) -> None:
        with pytest.raises(ConfigurationError):
            sql.shared.check(kind)

    def test_database_in_memory(self) -> None:
        backend = SqlBackend("sqlite://", prefix="")
        with pytest.raises(ConfigurationError, match="memory"):
            backend.shared.check(Session)
        backend.close()
