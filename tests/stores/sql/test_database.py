"""What the SQL backend does with connections, statements and the server's clock."""

import json
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any, ClassVar

import pytest
from sqlalchemy import Executable, text

from celery_sagas.errors import RevisionConflict, StoreError, StoreUnavailable
from celery_sagas.stores.records import Handling
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.stores.sql.connection.database import SqlSession, _StaleConnection
from celery_sagas.testing.samples import (
    MINUTE,
    STEP,
    by_key,
    change,
    claim,
    complete,
    dead_letter,
    effects,
    entry,
    found,
    ids,
    is_there,
    new_record,
    outgoing,
    send,
    start,
    update,
)
from tests.stores.sql.conftest import Open
from tests.stores.sql.watching import OpenConnections, losing_first_reply, observed
from tests.waiting import wait_until

#: By how much the clocks of this machine and of the server's may differ: less than any two time zones. Milliseconds.
APART_MS = MINUTE

only_servers = pytest.mark.parametrize("url", ["postgresql", "mariadb"], indirect=True)


#: Statements that take a lock, and say so late, and release it; and one that tells whether a connection waits for it.
LOCKS = {
    "postgresql": (
        "SELECT 'late' FROM pg_advisory_lock(42)",
        "SELECT pg_advisory_unlock(42)",
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND pid = {id}",
    ),
    "mysql": (
        "SELECT 'late', GET_LOCK(DATABASE(), 60)",
        "SELECT RELEASE_LOCK(DATABASE())",
        "SELECT count(*) FROM information_schema.processlist WHERE state = 'User lock' AND id = {id}",
    ),
}


class Interruption(BaseException):
    """What no driver raises: a soft time limit, Ctrl-C."""


def connection_ids(backend: SqlBackend) -> list[int]:
    """Return the server's id of the pooled connection; there is one."""
    return [row[0] for row in backend.database.fetch(_select_connection_id(backend), (), {})]


def _select_connection_id(backend: SqlBackend) -> Callable[[], Executable]:
    function = {"postgresql": "pg_backend_pid()", "mysql": "connection_id()"}[backend.database.name]
    return lambda: text(f"SELECT {function}")


def kill(backend: SqlBackend, id: int) -> None:
    """End a connection of somebody else, as a restart of the server does."""
    statement = {"postgresql": f"SELECT pg_terminate_backend({id}, 60000)", "mysql": f"KILL {id}"}[backend.database.name]
    with backend.database.connect() as connection:
        connection.exec_driver_sql(statement)


class TestStatements:
    """How many statements an operation takes."""

    #: find, and the commit of an update without keys and outgoing rows
    EXPECTED: ClassVar = {
        "postgresql": (["SELECT"], ["WITH"]),
        "mysql": (["SELECT"], ["BEGIN", "UPDATE", "INSERT", "COMMIT"]),
        "sqlite": (["SELECT"], ["BEGIN", "UPDATE", "INSERT", "COMMIT"]),
    }

    def test_find_is_one_and_an_update_at_most_four(self, sql: SqlBackend) -> None:
        """The pool adds none: no ping, no rollback on return."""
        record = start(sql)
        of_find, of_update = self.EXPECTED[sql.database.name]
        with observed(sql) as statements:
            sql.sagas.find(by_key(), Handling((STEP,), "message"))
        assert statements == of_find
        with observed(sql) as statements:
            sql.sagas.update(record, change(), effects(record))
        assert statements == of_update

    def test_cancelling_takes_one_more_at_most(self, sql: SqlBackend) -> None:
        """On PostgreSQL none: it is part of the commit."""
        rows = [outgoing("scheduled") for _ in range(50)]
        record = start(sql, "42", *rows)
        more = {"postgresql": [], "mysql": ["DELETE"], "sqlite": ["DELETE"]}[sql.database.name]
        with observed(sql) as statements:
            sql.sagas.update(record, change(cancelled=tuple(ids(rows))), effects(record))
        assert sorted(statements) == sorted([*self.EXPECTED[sql.database.name][1], *more])
        assert sql.outbox.count() == 0

    def test_many_rows_are_confirmed_in_one_transaction(self, sql: SqlBackend) -> None:
        """The disk is waited for once; a few rows, and on PostgreSQL any number, take one statement alone."""
        update(sql, start(sql), *(outgoing("scheduled", due_at=1) for _ in range(103)))
        rows = sorted(ids(claim(sql, "relay", 103)))
        with observed(sql) as statements:
            assert sql.outbox.confirm("relay", rows[:3]) == 3
        assert statements == ["DELETE"]
        with observed(sql) as statements:
            assert sql.outbox.confirm("relay", [*rows[3:], *rows[:3]]) == 100
        in_parts = ["BEGIN", "DELETE", "DELETE", "DELETE", "COMMIT"]
        assert [word.strip(";") for word in statements] == (["DELETE"] if sql.database.name == "postgresql" else in_parts)
        assert sql.outbox.count() == 0

    def test_thousands_of_scheduled_rows_end_in_one_statement(self, sql: SqlBackend) -> None:
        record = start(sql)
        for _ in range(3):
            record = update(sql, record, *(outgoing("scheduled", due_at=1) for _ in range(1_000)))
        texts: list[str] = []
        sql.database.observers.append(texts.append)
        complete(sql, record)
        assert len([text for text in texts if "DELETE FROM saga_outbox" in text]) == 1
        assert len(texts) <= 6
        assert sql.outbox.count() == 0

    @pytest.mark.parametrize("url", ["mariadb"], indirect=True)
    def test_server_counts_no_others(self, sql: SqlBackend) -> None:
        """MariaDB counts what this session sends; the last one asks for the count."""
        record = start(sql)

        def count() -> Executable:
            return text("SHOW SESSION STATUS LIKE 'Questions'")

        before = int(sql.database.fetch(count, (), {})[0][1])
        record = found(sql, by_key())
        sql.sagas.update(record, change(), effects(record))
        after = int(sql.database.fetch(count, (), {})[0][1])
        assert after - before - 1 == 5

    @pytest.mark.parametrize("url", ["postgresql"], indirect=True)
    def test_whole_commit_is_one_statement_on_postgresql(self, sql: SqlBackend) -> None:
        """Whatever it writes, and however many rows."""
        with observed(sql) as statements:
            new = new_record(keys=(("email", "T1"), ("tracking", "T1")))
            sql.sagas.insert(new, effects(new, *(outgoing() for _ in range(100))))
        assert statements == ["WITH"]
        texts: list[str] = []
        sql.database.observers.append(texts.append)
        complete(
            sql, update(sql, found(sql, by_key()), outgoing(), added=(("zone", "1"),), removed=(("email", "T1"),)), outgoing()
        )
        assert len([text for text in texts if text.startswith("WITH")]) == 2
        assert not any("ON CONFLICT" in text for text in texts)

    def test_values_are_never_part_of_the_text(self, sql: SqlBackend) -> None:
        texts: list[str] = []
        sql.database.observers.append(texts.append)
        start(sql, "VALUE", outgoing(payload="VALUE"), keys=(("tracking", "VALUE"),), data="VALUE")
        sql.dead.add(dead_letter("VALUE"))
        assert texts
        assert not any("VALUE" in text.replace("VALUES", "") for text in texts)

    def test_find_leaves_no_transaction_open(self, sql: SqlBackend, open_sql: Open) -> None:
        rival = open_sql()
        record = start(sql)
        for _ in range(3):
            assert found(sql, by_key()) == record
            record = update(rival, record)

    def test_threads_share_a_backend(self, sql: SqlBackend) -> None:
        failures: list[BaseException] = []

        def work(key: str) -> None:
            try:
                record = start(sql, key)
                for _ in range(10):
                    record = update(sql, record, outgoing())
            except BaseException as exc:
                failures.append(exc)

        threads = [threading.Thread(target=work, args=(str(number),)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert sql.outbox.count() == 80


class TestClock:
    """Without a clock of the test's own."""

    def test_servers_clock_is_used(self, sql: SqlBackend) -> None:
        """Milliseconds since the epoch, in whatever time zone the server is."""
        before = time.time_ns() // 1_000_000
        record = start(sql)
        assert before - APART_MS <= record.created_at <= time.time_ns() // 1_000_000 + APART_MS

    def test_leases_end_by_it(self, sql: SqlBackend) -> None:
        send(sql, outgoing(), owner="me", grace_ms=MINUTE)
        ready = outgoing()
        send(sql, ready)
        assert ids(claim(sql, "relay")) == [ready.id]
        assert claim(sql, "relay") == []
        assert sql.outbox.release("relay", [ready.id]) == 1
        assert ids(claim(sql, "another")) == [ready.id]

    def test_entries_age_by_it(self, sql: SqlBackend) -> None:
        send(sql)
        assert sql.journal.purge(MINUTE, 9) == 0
        assert sql.journal.purge(-MINUTE, 9) == 1


class TestLostConnections:
    """A server that was restarted since the connection was last used."""

    @only_servers
    def test_find_does_not_notice(self, sql: SqlBackend, open_sql: Open) -> None:
        record = start(sql)
        (id,) = connection_ids(sql)
        kill(open_sql(), id)
        assert found(sql, by_key()) == record
        assert connection_ids(sql) != [id]

    @only_servers
    def test_commit_does_not_notice(self, sql: SqlBackend, open_sql: Open) -> None:
        record = start(sql)
        (id,) = connection_ids(sql)
        kill(open_sql(), id)
        assert update(sql, record, outgoing()).version == 2
        assert sql.outbox.count() == 1

    @only_servers
    def test_connection_lost_between_two_statements(self, sql: SqlBackend, open_sql: Open) -> None:
        record = start(sql)
        (id,) = connection_ids(sql)
        killer = open_sql()

        def kill_once(statement: str) -> None:
            if "INSERT INTO saga_journal" in statement:
                sql.database.observers.clear()
                kill(killer, id)

        sql.database.observers.append(kill_once)
        assert update(sql, record).version == 2

    @only_servers
    def test_connection_lost_at_its_first_use_is_not_kept(self, sql: SqlBackend, open_sql: Open) -> None:
        """A server that ends new connections is unavailable; no dead connection waits in the pool for its return."""
        record, fresh = start(sql), open_sql()

        def lose(session: SqlSession) -> None:
            kill(sql, session.fetch(_select_connection_id(fresh), (), {})[0][0])
            session.fetch(_select_connection_id(fresh), (), {})

        with pytest.raises(StoreUnavailable):
            fresh.database.run(lose)
        assert found(fresh, by_key()) == record

    @pytest.mark.parametrize("write", ["insert", "update", "delete", "record"])
    def test_commit_whose_reply_was_lost_is_made_once(self, sql: SqlBackend, monkeypatch: pytest.MonkeyPatch, write: str) -> None:
        """The second run meets the journal's entry of the first one, of the same attempt."""
        record, new = start(sql), new_record("43")
        made = effects(None, outgoing(), line=entry(new if write == "insert" else record))
        arguments: tuple[Any, ...] = {"insert": (new,), "update": (record, change()), "delete": (record,), "record": ()}[write]
        with monkeypatch.context() as patch:
            patch.setattr(sql.database, "_attempt", losing_first_reply(sql.database._attempt))
            getattr(sql.sagas, write)(*arguments, made)
        assert sql.outbox.count() == 1
        assert is_there(sql, by_key("43")) == (write == "insert")
        assert sql.sagas.find(by_key(), Handling((made.entry.step,), made.entry.message_id)).handled is not None

    @only_servers
    def test_server_that_does_not_come_back_is_unavailable(self, sql: SqlBackend, monkeypatch: pytest.MonkeyPatch) -> None:
        start(sql)

        def refuse(work: object, *, may_repeat: bool) -> None:
            if may_repeat:
                raise _StaleConnection
            raise sql.database.driver.OperationalError("server closed the connection")

        monkeypatch.setattr(sql.database, "_attempt", refuse)
        with pytest.raises(StoreUnavailable):
            sql.sagas.find(by_key())


class TestInterruption:
    """An exception that is no driver's error, in the middle of an operation."""

    @pytest.mark.parametrize(
        ("url", "before"),
        [
            ("postgresql", "UPDATE saga_instance"),
            *((url, before) for url in ("sqlite", "mariadb") for before in ("UPDATE", "INSERT INTO saga_journal", "COMMIT")),
        ],
        indirect=["url"],
    )
    def test_nothing_is_written_and_the_connection_is_closed(self, sql: SqlBackend, before: str) -> None:
        record = start(sql, keys=(("tracking", "T1"),))
        opened = OpenConnections(sql)
        assert opened.count == 1

        def interrupt(statement: str) -> None:
            if before in statement:
                raise Interruption

        sql.database.observers.append(interrupt)
        with pytest.raises(Interruption):
            sql.sagas.update(record, change(), effects(record, outgoing()))
        sql.database.observers.clear()
        assert opened.count == 0
        assert found(sql, by_key()) == record
        assert sql.outbox.count() == 0

    @only_servers
    def test_signal_during_a_statement(self, sql: SqlBackend, open_sql: Open) -> None:
        """The answer that was not read must never be the answer to the next statement."""
        record, rival = start(sql), open_sql()
        (id,) = connection_ids(sql)
        lock, unlock, waiting = LOCKS[sql.database.name]

        def interrupt() -> None:
            with rival.database.connect() as looking:
                wait_until(lambda: looking.exec_driver_sql(waiting.format(id=id)).scalar(), "a statement that waits for the lock")
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)

        with rival.database.connect() as holding, _interruptible(), ThreadPoolExecutor(1) as thread:
            holding.exec_driver_sql(lock)
            interrupted = thread.submit(interrupt)
            opened = OpenConnections(sql)
            with pytest.raises(Interruption):
                sql.database.fetch(lambda: text(lock), (), {})
            interrupted.result()
            assert opened.count == 0
            holding.exec_driver_sql(unlock)  # the answer comes, late
            assert connection_ids(sql) != [id]
            assert found(sql, by_key()) == record

    def test_memory_database_survives_it(self) -> None:
        """Its connection is the database, and an interruption leaves at most a transaction behind."""
        backend = SqlBackend("sqlite://", prefix="")
        backend.prepare(create_schema=True, processes=1)
        record = start(backend)

        def interrupt(statement: str) -> None:
            if statement == "COMMIT":
                raise Interruption

        backend.database.observers.append(interrupt)
        with pytest.raises(Interruption):
            backend.sagas.update(record, change(), effects(record))
        backend.database.observers.clear()
        assert found(backend, by_key()) == record
        assert update(backend, record).version == 2
        backend.close()

    def test_threads_share_a_memory_database(self) -> None:
        """They take turns: none meets the transaction of another."""
        with closing(SqlBackend("sqlite://", prefix="")) as backend, ThreadPoolExecutor(8) as threads:
            backend.prepare(create_schema=True, processes=1)
            records = list(threads.map(lambda number: update(backend, start(backend, str(number)), outgoing()), range(80)))
            assert {record.version for record in records} == {2}
            assert backend.outbox.count() == 80


@contextmanager
def _interruptible() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise Interruption

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, previous)


class TestErrorsLeaveNothingBehind:
    """After every error the transaction is rolled back, before the connection goes to somebody else."""

    @pytest.mark.parametrize("url", ["mariadb"], indirect=True)
    def test_lock_time_out_writes_nothing(self, open_sql: Open) -> None:
        """MariaDB's 1205 undoes the statement alone: what came before it would be committed with what comes next."""
        options = {"connect_args": {"init_command": "SET SESSION innodb_lock_wait_timeout = 0"}}
        backend, rival = open_sql(options=options), open_sql()
        backend.prepare(create_schema=True, processes=1)
        record = start(backend)
        line = entry(record)
        with rival.database.connect() as connection:
            connection.exec_driver_sql("BEGIN")
            connection.exec_driver_sql(
                "INSERT INTO saga_journal"
                " (prefix, step, message_id, attempt, outcome, saga, `key`, instance_id, version, detail, at)"
                " VALUES (%s, %s, %s, '', '', '', '', '', 0, '', 1)",
                (backend.database.prefix, line.step, line.message_id),
            )
            with pytest.raises(RevisionConflict) as caught:
                backend.sagas.update(record, change(), effects(record, line=line))
            assert caught.value.args == (record.saga, record.key, "deadlock")
            assert isinstance(caught.value.__cause__, backend.database.driver.Error)
            connection.exec_driver_sql("ROLLBACK")
        start(backend, "43")
        assert found(rival, by_key()) == record

    @pytest.mark.parametrize("url", ["sqlite"], indirect=True)
    def test_busy_sqlite_is_unavailable(self, open_sql: Open) -> None:
        backend, rival = open_sql(options={"busy_timeout": 0}), open_sql()
        rival.prepare(create_schema=True, processes=1)
        record = start(rival)
        with rival.database.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            assert found(backend, by_key()) == record
            with pytest.raises(StoreUnavailable, match="database is locked"):
                backend.sagas.update(record, change(), effects(record))
            connection.exec_driver_sql("ROLLBACK")
        assert update(backend, record).version == 2

    @pytest.mark.parametrize("url", ["sqlite"], indirect=True)
    def test_full_disk_is_unavailable(self, open_sql: Open) -> None:
        """Nothing is half-written, and the next commit that has room succeeds."""
        backend = open_sql()
        record = start(backend)

        opened = backend.database.connections.check_out()
        assert opened
        opened.cursor.execute("PRAGMA max_page_count = 1")  # it cannot be fewer than there are
        opened.cursor.fetchall()
        backend.database.connections.check_in(opened)
        large = change(data=json.dumps("x" * 1_000_000))
        with pytest.raises(StoreUnavailable, match="database or disk is full"):
            backend.sagas.update(record, large, effects(record, outgoing()))
        assert (found(backend, by_key()), backend.outbox.count()) == (record, 0)
        backend.database.connections.close_idle()
        backend.sagas.update(record, large, effects(record, outgoing()))
        assert backend.outbox.count() == 1

    def test_values_that_no_database_takes_are_refused_for_good(self, sql: SqlBackend) -> None:
        new = new_record("a lone surrogate: \ud800")
        with pytest.raises(StoreError) as caught:
            sql.sagas.insert(new, effects(new))
        assert type(caught.value) is StoreError
        start(sql)

    @only_servers
    def test_values_that_are_too_long_are_refused_for_good(self, sql: SqlBackend) -> None:
        """SQLite has no limit."""
        key = "".join(chr(random.Random(number).randrange(0x4E00, 0x9FFF)) for number in range(3_000))
        new = new_record(key)
        with pytest.raises(StoreError) as caught:
            sql.sagas.insert(new, effects(new))
        assert type(caught.value) is StoreError
        assert caught.value.retry == "never"


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_row_that_is_leased_while_it_is_cancelled_is_removed(sql: SqlBackend, open_sql: Open) -> None:
    """The commit waits for the claim, and removes the row as the claim has left it."""
    row, rival = outgoing("scheduled"), open_sql()
    record = start(sql, "42", row)
    with rival.database.connect() as connection, ThreadPoolExecutor(1) as thread:
        connection.exec_driver_sql("BEGIN")
        connection.exec_driver_sql("UPDATE saga_outbox SET token = 'relay', available_at = 1 WHERE id = %s", (row.id,))
        done = thread.submit(update, sql, record, cancelled=(row.id,))
        blocked = "SELECT count(*) FROM pg_stat_activity WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))"
        wait_until(lambda: connection.exec_driver_sql(blocked).scalar(), "the commit waits")
        connection.exec_driver_sql("COMMIT")
    assert done.result().version == 2
    assert sql.outbox.count() == 0


def test_close_closes_every_connection(open_sql: Open) -> None:
    backend = open_sql()
    backend.prepare(create_schema=True, processes=1)
    start(backend)
    opened = OpenConnections(backend)
    assert opened.count == 1
    backend.close()
    assert opened.count == 0
