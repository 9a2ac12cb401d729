"""SQLite's files and forks."""

import subprocess
import sys
import threading
from pathlib import Path
from sqlite3 import ProgrammingError
from typing import Any

import pytest
from sqlalchemy import Connection

from celery_sagas.forks import FILES, ForkGate
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.testing.samples import by_key, effects, found, outgoing, send, start
from tests.stores.sql.conftest import Open
from tests.waiting import PROGRAM_S, wait_until

only_files = pytest.mark.parametrize("url", ["sqlite"], indirect=True)


@only_files
def test_no_commit_is_lost_while_threads_write_and_the_process_forks(url: str) -> None:
    """Children inherit nothing that SQLite knows of its locks, and no lock in the middle of an operation."""
    script = Path(__file__).with_name("forking.py")
    forks_on_purpose = ["-W", "ignore:This process:DeprecationWarning"]  # of which Python 3.12 and later warn
    command = [sys.executable, *forks_on_purpose, str(script), url, "3", "16", "3"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S)
    assert run.stderr == ""
    failed, committed, there = map(int, run.stdout.split())
    assert (failed, there) == (0, committed)


@only_files
def test_fork_waits_for_an_operation_and_the_next_one_for_the_fork(sql: SqlBackend) -> None:
    """Whoever forks is let through when the last operation has ended, and no other begins before."""
    gate, begun, may_end, order = ForkGate(), threading.Event(), threading.Event(), list[str]()
    gate.close_before_forks(sql.database.connections)
    record = start(sql)
    assert sql.database.connections.idle == 1

    def operate() -> None:
        with gate:
            begun.set()
            may_end.wait()
            order.append("operation")

    def operate_later() -> None:
        with gate:
            order.append("next operation")

    def fork() -> None:
        gate.before_fork()
        order.append("fork")
        gate.after_fork()

    threads = [threading.Thread(target=target) for target in (operate, fork, operate_later)]
    threads[0].start()
    begun.wait()
    threads[1].start()
    wait_until(lambda: gate._forking, "the fork waits")
    threads[2].start()
    may_end.set()
    for thread in threads:
        thread.join()
    assert order == ["operation", "fork", "next operation"]
    assert sql.database.connections.idle == 0
    assert found(sql, by_key()) == record


@only_files
def test_fork_closes_the_connections_of_transactions_of_functions(sql: SqlBackend) -> None:
    transaction = sql.shared.open(Connection)
    driver: Any = transaction.handle.connection.dbapi_connection
    transaction.commit(lambda backend: backend.sagas.record(effects()))
    transaction.close()
    driver.execute("SELECT 1")
    FILES.before_fork()
    FILES.after_fork()
    with pytest.raises(ProgrammingError, match="closed"):
        driver.execute("SELECT 1")


@only_files
def test_every_way_to_a_file_leads_through_the_gate(sql: SqlBackend, open_sql: Open) -> None:
    """An operation, what is done once, and closing."""
    inside: list[bool] = []

    def look(_: str) -> None:
        inside.append(threading.get_ident() in FILES._working)

    sql.database.observers.append(look)
    send(sql, outgoing())
    assert sql.outbox.count() == 1
    with sql.database.connect():
        look("")
    other = open_sql()
    other.outbox.count()
    connections = other.database.connections
    connections.check_in(opened := connections.open())
    close = opened.connection.close
    opened.connection.close = lambda: (look(""), close())  # type: ignore[method-assign,func-returns-value,assignment]
    other.close()
    assert len(inside) == 7
    assert all(inside)
    assert threading.get_ident() not in FILES._working


@pytest.mark.parametrize("url", ["postgresql", "mariadb"], indirect=True)
def test_servers_have_no_gate(sql: SqlBackend) -> None:
    """They tell connections apart themselves; a fork waits for none of them."""
    inside: list[bool] = []
    sql.database.observers.append(lambda _: inside.append(threading.get_ident() in FILES._working))
    start(sql)
    assert inside
    assert not any(inside)
