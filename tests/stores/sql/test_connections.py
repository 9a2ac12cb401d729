"""Connections stay open between operations, until they are too old."""

import threading
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Engine, NullPool, TextClause, create_engine, text

from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.stores.sql.connection.connections import Connections
from tests.stores.sql.watching import OpenConnections
from tests.waiting import DEADLINE_S


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return create_engine(f"sqlite:///{tmp_path}/file", poolclass=NullPool)


@pytest.mark.parametrize("recycle_s", [60, -1])
def test_connection_is_used_again(engine: Engine, recycle_s: float) -> None:
    with closing(Connections(engine, recycle_s)) as connections:
        assert connections.check_out() is None
        connections.check_in(first := connections.open())
        assert connections.check_out() is first
        connections.check_in(first)


def test_old_connection_is_closed(engine: Engine) -> None:
    with closing(Connections(engine, 0)) as connections:
        opened = connections.open(), connections.open()
        for each in opened:
            connections.check_in(each)
        assert connections.check_out() is None
        assert [each.driver_connection for each in opened] == [None, None]


@pytest.mark.parametrize("url", ["postgresql", "mariadb"], indirect=True)
def test_a_process_opens_as_many_as_operations_run_at_once(sql: SqlBackend) -> None:
    """Not one for each thread that there ever was."""
    opened, at_once = OpenConnections(sql), threading.Barrier(3)
    sql.database.observers.append(lambda _: at_once.wait(DEADLINE_S))
    for _ in range(4):
        threads = [threading.Thread(target=sql.outbox.count) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    sql.database.observers.clear()
    assert opened.count == 3


#: A role finds another function of this name first.
_POOLED = """
CREATE SCHEMA IF NOT EXISTS pooled;
CREATE OR REPLACE FUNCTION pooled.pg_backend_pid() RETURNS integer LANGUAGE sql AS 'SELECT 0';
"""
_PATH = {"options": "-c search_path=pooled,pg_catalog,public"}


@pytest.mark.parametrize(
    ("arguments", "is_prepared"),
    [({}, True), (_PATH, False), ({**_PATH, "prepare_threshold": 3}, True)],
    ids=["direct", "pooler", "asked for"],
)
def test_nothing_is_prepared_in_a_pooler(postgresql_url: str, arguments: dict[str, object], is_prepared: bool) -> None:
    """It says another process id than the server, and has other statements on its next connection; PgBouncer 1.21 knows them."""
    with closing(SqlBackend(postgresql_url, prefix="", options={"connect_args": arguments})) as backend:
        with backend.database.connect() as connection:
            connection.exec_driver_sql(_POOLED)
        for _ in range(9):
            backend.outbox.count()
        ((prepared,),) = backend.database.fetch(_count_prepared, (), {})
    assert (prepared > 0) == is_prepared


def _count_prepared() -> TextClause:
    return text("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%saga_outbox%'")
