"""Reads of instances have a time limit."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest
from sqlalchemy import create_engine, text

from celery_sagas.errors import StoreUnavailable
from celery_sagas.stores.instances import Instances
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.stores.sql.connection.reads import limited, read
from celery_sagas.stores.sql.instances import SECONDS, SqlInstances
from celery_sagas.testing.samples import NAMES, start
from tests.stores.sql.conftest import Open
from tests.stores.sql.watching import OpenConnections, observed

NAME = NAMES[0]
PAID = ("status", "paid")
READS: Mapping[str, Callable[[Instances], object]] = {
    "page": lambda instances: instances.page(NAME, 9),
    "tagged": lambda instances: instances.tagged(NAME, PAID, 9),
    "read": lambda instances: instances.read(NAME, ["1"]),
    "count": lambda instances: instances.count(NAME, 9),
    "count of a tag": lambda instances: instances.count(NAME, 9, PAID),
}
#: Statements that run for long.
ENDLESS: Mapping[str, str] = {
    "postgresql": "SELECT pg_sleep(20)",
    "mysql": "SELECT SLEEP(20)",
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
}
#: How long a statement may take here: MariaDB waits for whole seconds.
SHORT: Mapping[str, float] = {"postgresql": 0.1, "mysql": 1, "sqlite": 0.1}

servers = pytest.mark.parametrize("url", ["postgresql", "mariadb"], indirect=True)


@contextmanager
def locked_tables(url: str) -> Iterator[None]:
    """Have another lock the tables."""
    engine = create_engine(url)
    with engine.connect() as rival:
        if engine.name == "postgresql":
            rival.execute(text("LOCK TABLE saga_instance, saga_key IN ACCESS EXCLUSIVE MODE"))
        else:
            rival.execute(text("LOCK TABLES saga_instance WRITE, saga_key WRITE"))
        yield
        rival.invalidate()
    engine.dispose()


@servers
def test_locked_table_holds_no_read_up(sql: SqlBackend, url: str) -> None:
    """The connection stays in use, without a transaction or a limit."""
    order = start(sql)
    name = sql.database.name
    opened = OpenConnections(sql)
    instances = SqlInstances(sql.database, SHORT[name])
    with locked_tables(url):
        for ask in READS.values() if name == "postgresql" else [READS["page"]]:
            with pytest.raises(
                StoreUnavailable, match=f"may take {SHORT[name]:g} s.* See which other statements lock the tables"
            ):
                ask(instances)
    assert opened.count == 1
    assert [glance.id for glance in instances.page(NAME, 9).instances] == [order.id]
    assert opened.count == 1


def test_statement_that_runs_for_too_long_is_ended(sql: SqlBackend) -> None:
    order, name = start(sql), sql.database.name
    opened = OpenConnections(sql)
    with pytest.raises(StoreUnavailable, match=f"may take {SHORT[name]:g} s"):
        read(sql.database, lambda session: session.execute(ENDLESS[name]).fetchall(), SHORT[name])
    assert opened.count == 1
    assert [glance.id for glance in sql.instances.page(NAME, 9).instances] == [order.id]
    start(sql, "2")
    assert opened.count == 1


def test_limit_ends_with_the_read(sql: SqlBackend) -> None:
    """What runs next on the connection has the settings that it had before."""
    shown = {
        "postgresql": "SELECT current_setting('statement_timeout')",
        "mysql": "SELECT @@max_statement_time, @@lock_wait_timeout",
        "sqlite": "SELECT 1",
    }[sql.database.name]
    settings: Callable[[], object] = lambda: sql.database.run(lambda session: session.execute(shown).fetchall())  # noqa: E731
    before = settings()
    for ask in READS.values():
        ask(SqlInstances(sql.database, 60))
    assert settings() == before


def test_commits_have_no_limit(sql: SqlBackend) -> None:
    """They have the same statements as ever; each read has the limit."""
    with observed(sql) as commits:
        start(sql)
    with observed(sql) as reads:
        sql.instances.page(NAME, 9)
    assert "SET" not in commits
    assert reads == {"postgresql": ["BEGIN", "SELECT", "COMMIT"], "mysql": ["/*M!"], "sqlite": ["SELECT"]}[sql.database.name]


def test_each_read_of_the_port_takes_five_seconds_at_most(open_sql: Open) -> None:
    assert open_sql().instances._seconds == SECONDS == 5


def test_limit_of_mariadb_and_of_mysql() -> None:
    """One text for both: what is one's limit, is a comment to the other."""
    limits = "/*M! SET STATEMENT max_statement_time = 1.5, lock_wait_timeout = 2 FOR */"
    assert limited("SELECT 1", 1.5) == f"{limits} SELECT /*+ MAX_EXECUTION_TIME(1500) */ 1"
