"""Connections stay open between operations, as many and as long as the options allow."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Engine, NullPool, TextClause, create_engine, text
from sqlalchemy.exc import TimeoutError as NoConnection

from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.stores.sql.connections import Connections


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return create_engine(f"sqlite:///{tmp_path}/file", poolclass=NullPool)


@pytest.fixture
def connections(engine: Engine) -> Iterator[Connections]:
    with closing(make(engine)) as made:
        yield made


def make(engine: Engine, *, pool_recycle: float = 60) -> Connections:
    """Make connections: two at a time, of which one stays open."""
    return Connections(engine, {"pool_size": 1, "max_overflow": 1, "pool_timeout": 0.01, "pool_recycle": pool_recycle})


def test_connection_is_used_again(connections: Connections) -> None:
    first = connections.borrow()
    assert (connections.lent, connections.idle) == (1, 0)
    connections.give_back(first)
    assert (connections.lent, connections.idle) == (0, 1)
    assert connections.borrow() is first
    connections.give_back(first)


def test_overflow_is_closed(connections: Connections) -> None:
    first, second = connections.borrow(), connections.borrow()
    connections.give_back(first)
    connections.give_back(second)
    assert (connections.lent, connections.idle) == (0, 1)
    assert second.driver_connection is None


def test_more_than_allowed_wait_in_vain(connections: Connections) -> None:
    lent = [connections.borrow(), connections.borrow()]
    with pytest.raises(NoConnection, match="each of the 2 connections"):
        connections.borrow()
    for each in lent:
        connections.give_back(each)
    assert connections.lent == 0


@pytest.mark.parametrize(("size", "overflow"), [(0, 0), (1, -1)])
def test_as_many_as_wanted(engine: Engine, size: int, overflow: int) -> None:
    """As SQLAlchemy means it."""
    options = {"pool_size": size, "max_overflow": overflow, "pool_timeout": 0.01, "pool_recycle": 60}
    with closing(Connections(engine, options)) as connections:
        lent = [connections.borrow() for _ in range(30)]
        for each in lent:
            connections.give_back(each)
        assert (connections.lent, connections.idle) == (0, size or 30)


def test_old_connection_is_replaced(engine: Engine) -> None:
    with closing(make(engine, pool_recycle=0)) as connections:
        first = connections.borrow()
        connections.give_back(first)
        second = connections.borrow()
        assert second is not first
        assert first.driver_connection is None
        connections.give_back(second)


def test_connection_never_grows_too_old(engine: Engine) -> None:
    """As SQLAlchemy means it."""
    with closing(make(engine, pool_recycle=-1)) as connections:
        first = connections.borrow()
        connections.give_back(first)
        assert connections.borrow() is first


@pytest.mark.parametrize("end", ["discard", "give_back"])
def test_place_is_free_only_when_the_connection_is_closed(connections: Connections, end: str) -> None:
    """Else more than allowed would be open while it ends."""
    first, second = connections.borrow(), connections.borrow()
    if end == "give_back":
        connections.give_back(second)
        second = connections.borrow()
        connections._is_closed = True
    seen: list[int] = []
    close = first.connection.close

    def look() -> None:
        seen.append(connections.lent)
        close()

    first.connection.close = first.connection.invalidate = look  # type: ignore[method-assign,assignment]
    getattr(connections, end)(first)
    assert (seen, connections.lent) == ([2], 1)


def test_discarded_connection_is_closed(connections: Connections) -> None:
    first = connections.borrow()
    connections.discard(first)
    assert (connections.lent, connections.idle) == (0, 0)
    assert first.driver_connection is None


def test_connection_that_cannot_be_opened_is_not_lent(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/no/such/folder", poolclass=NullPool)
    connections = make(engine)
    for _ in range(3):
        with pytest.raises(Exception, match="unable to open"):
            connections.borrow()
    assert connections.lent == 0


def test_lent_connection_is_closed_after_the_others(connections: Connections) -> None:
    first = connections.borrow()
    connections.close()
    connections.give_back(first)
    assert (connections.lent, connections.idle) == (0, 0)
    assert first.driver_connection is None


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
