"""Transactions behind PgBouncer, which gives each of them another connection to PostgreSQL."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.orm import Session

from celery_sagas.errors import ConfigurationError
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.testing.samples import claim, effects, entry, handled, outgoing, start
from tests import pgbouncer, servers
from tests.servers import unique
from tests.stores.sql import layout_5


@pytest.fixture
def sql(postgresql_url: str) -> Iterator[SqlBackend]:
    """A backend behind it, whose own connections prepare nothing."""
    with pgbouncer.running(postgresql_url) as pooler, closing(SqlBackend(pooler.url, prefix=unique())) as backend:
        backend.prepare(create_schema=True, processes=1)
        yield backend


def test_callers_engine_that_prepares_statements_is_refused(sql: SqlBackend) -> None:
    engine = create_engine(sql.database.location.url, poolclass=NullPool)
    with Session(engine) as session, pytest.raises(ConfigurationError, match=r"pooler.*prepare_threshold"):
        sql.shared.add(session, [outgoing()], lambda cause: None)


def test_callers_engine_that_prepares_nothing(sql: SqlBackend) -> None:
    engine = create_engine(sql.database.location.url, poolclass=NullPool, connect_args={"prepare_threshold": None})
    for _ in range(10):
        with Session(engine) as session, session.begin():
            sql.shared.add(session, [outgoing()], lambda cause: None)
    assert len(claim(sql)) == 10


def test_transactions_for_functions(sql: SqlBackend) -> None:
    lines = [entry() for _ in range(10)]
    for line in lines:
        transaction = sql.shared.open(Session)
        transaction.handle.execute(text("SELECT 1"))
        transaction.flush()
        transaction.commit(lambda backend, line=line: backend.sagas.record(effects(line=line)))
        transaction.close()
    assert all(handled(sql, line) for line in lines)


def test_migration() -> None:
    """Its lock is that of a transaction, since others have the connection between two statements."""
    with (
        servers.database("postgresql") as url,
        pgbouncer.running(url) as pooler,
        closing(SqlBackend(pooler.url, prefix="")) as backend,
    ):
        layout_5.create(backend)
        order = start(backend)
        assert "The table saga_switch was created." in backend.migrate()
        backend.prepare(create_schema=False, processes=1)
        assert [glance.id for glance in backend.instances.page(order.saga, 9).instances] == [order.id]
        assert backend.migrate() == []
