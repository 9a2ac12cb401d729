"""Rows that plain code writes into the outbox, over a connection of its own."""

import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, NullPool, create_engine, event, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from celery_sagas.clock import time_s
from celery_sagas.errors import ConfigurationError, MisuseError
from celery_sagas.stores.shared import SEND, sent_by
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.testing.samples import claim, outgoing
from tests.servers import unique
from tests.stores.sql.conftest import Open


class Published(list[list[str]]):
    """The ids of the messages that each commit has made due."""

    def __init__(self, sql: SqlBackend) -> None:
        self._sql = sql

    def __call__(self, cause: str) -> None:
        rows = self._sql.outbox.claim_due("me", 100, 60_000, sent_by(cause))
        assert {(row.step, row.cause, row.kind) for row in rows} <= {(SEND, cause, "sent")}
        self.append([row.id for row in rows])
        self._sql.outbox.confirm("me", [row.id for row in rows])


@pytest.fixture
def published(sql: SqlBackend) -> Published:
    """What the commits have made due."""
    return Published(sql)


@pytest.fixture
def engine(sql: SqlBackend) -> Iterator[Engine]:
    """An engine of the user's, with SQLAlchemy's own settings."""
    engine = create_engine(sql.database.location.url, poolclass=NullPool)
    yield engine
    engine.dispose()


class TestSession:
    """A session of SQLAlchemy's."""

    def test_rows_are_due_once_it_has_committed(self, sql: SqlBackend, engine: Engine, published: Published) -> None:
        first, second = outgoing(id="1"), outgoing(id="2", payload='{"é": "𝄞"}')
        with Session(engine) as session:
            sql.shared.add(session, [first], published)
            sql.shared.add(session, [second], published)
            if sql.database.name != "sqlite":  # which lets nobody else look for a lease meanwhile
                assert claim(sql) == []
            session.commit()
        assert published == [["1", "2"]]
        assert sql.outbox.count() == 0

    def test_row_is_as_it_was_given(self, sql: SqlBackend, engine: Engine) -> None:
        row = outgoing(payload='{"é": "𝄞"}')
        with Session(engine) as session, session.begin():
            sql.shared.add(session, [row], lambda cause: None)
        (stored,) = claim(sql)
        assert stored[:6] == row
        assert (stored.attempts, stored.instance_id, stored.step) == (0, "", SEND)

    def test_row_is_as_it_was_given_whatever_the_connection_encodes_texts_with(self, sql: SqlBackend) -> None:
        if sql.database.name != "mysql":
            return
        row = outgoing(payload='{"é": "𝄞"}')._replace(message_id="é", task="é")
        engine = create_engine(sql.database.location.url.update_query_dict({"charset": "latin1"}), poolclass=NullPool)
        with Session(engine) as session, session.begin():
            sql.shared.add(session, [row], lambda cause: None)
        (stored,) = claim(sql)
        assert stored[:6] == row

    def test_row_waits_for_its_due_time(self, sql: SqlBackend, engine: Engine, published: Published) -> None:
        with Session(engine) as session, session.begin():
            sql.shared.add(session, [outgoing(due_at=int(time_s() * 1000) + 60_000)], published)
        assert published == [[]]
        assert (claim(sql), sql.outbox.count()) == ([], 1)

    def test_is_published_once_the_session_is_free(self, sql: SqlBackend, engine: Engine) -> None:
        """A broker that is slow holds no connection of the caller's, and a task that runs inline may use the session."""
        seen: list[object] = []
        with Session(engine) as session:

            def publish(cause: str) -> None:
                seen.extend([session.in_transaction(), session.scalar(select(7))])

            sql.shared.add(session, [outgoing()], publish)
            session.commit()
        assert seen == [False, 7]

    def test_nothing_is_sent_for_what_is_rolled_back(self, sql: SqlBackend, engine: Engine, published: Published) -> None:
        with Session(engine) as session:
            sql.shared.add(session, [outgoing()], published)
            session.rollback()
            sql.shared.add(session, [outgoing(id="kept")], published)
            session.commit()
        assert [each for each in published if each] == [["kept"]]
        assert sql.outbox.count() == 0

    def test_savepoint_takes_its_rows_back(self, sql: SqlBackend, engine: Engine, published: Published) -> None:
        with Session(engine) as session, session.begin():
            with session.begin_nested():
                sql.shared.add(session, [outgoing(id="1")], published)
            with session.begin_nested() as savepoint:
                sql.shared.add(session, [outgoing(id="2")], published)
                savepoint.rollback()
            assert published == [], "a released savepoint is no commit"
        assert published == [["1"]]
        assert sql.outbox.count() == 0

    def test_each_transaction_of_a_session_is_published_by_itself(
        self, sql: SqlBackend, engine: Engine, published: Published
    ) -> None:
        with Session(engine) as session:
            for id in ("1", "2"):
                sql.shared.add(session, [outgoing(id=id)], published)
                session.commit()
            session.execute(text("SELECT 1"))
            session.commit()
        assert published == [["1"], ["2"]]

    def test_commit_inside_an_outer_transaction_is_none(self, sql: SqlBackend, engine: Engine, published: Published) -> None:
        with engine.connect() as connection, connection.begin() as outer:
            with Session(connection, join_transaction_mode="create_savepoint") as session:
                sql.shared.add(session, [outgoing()], published)
                session.commit()
            assert published == []
            outer.commit()
        assert (published, len(claim(sql))) == ([], 1)

    def test_scoped_session(self, sql: SqlBackend, engine: Engine, published: Published) -> None:
        sessions = scoped_session(sessionmaker(engine))
        sql.shared.add(sessions, [outgoing(id="1")], published)
        sessions.commit()
        sessions.remove()
        assert published == [["1"]]

    @pytest.mark.parametrize("on", ["engine", "connection"])
    def test_session_that_translates_the_schemas_of_the_users_tables(self, sql: SqlBackend, engine: Engine, on: str) -> None:
        options: dict[str, Any] = {"schema_translate_map": {None: "of_a_tenant"}}
        with Session(engine.execution_options(**options) if on == "engine" else engine) as session, session.begin():
            session.connection(execution_options=options if on == "connection" else {})
            sql.shared.add(session, [outgoing(id="1")], lambda cause: None)
        assert [row.id for row in claim(sql)] == ["1"]

    def test_session_whose_info_is_something_else(self, sql: SqlBackend, engine: Engine, published: Published) -> None:
        """Neither one that sends nor any other is asked for it."""

        class Logging(Session):
            def info(self, text: str) -> None:  # type: ignore[override]
                raise NotImplementedError(text)

        for rows in ([outgoing(id="1")], []):
            with Logging(engine) as session, session.begin():
                session.execute(text("SELECT 1"))
                if rows:
                    sql.shared.add(session, rows, published)
        assert published == [["1"]]

    def test_two_backends_share_a_transaction(self, sql: SqlBackend, open_sql: Open, engine: Engine) -> None:
        other = open_sql(prefix=unique())
        mine, others = Published(sql), Published(other)
        with Session(engine) as session, session.begin():
            sql.shared.add(session, [outgoing(id="1")], mine)
            other.shared.add(session, [outgoing(id="2")], others)
        assert (mine, others) == ([["1"]], [["2"]])

    def test_error_of_the_database_is_the_callers(self, sql: SqlBackend, engine: Engine) -> None:
        row = outgoing()
        with Session(engine) as session, session.begin():
            sql.shared.add(session, [row], lambda cause: None)
            with pytest.raises(IntegrityError), session.begin_nested():
                sql.shared.add(session, [row], lambda cause: None)
        assert len(claim(sql)) == 1

    def test_by_the_backends_clock(self, open_sql: Open, engine: Engine) -> None:
        sql = open_sql(clock=lambda: 5_000)
        with Session(engine) as session, session.begin():
            sql.shared.add(session, [outgoing()], lambda cause: None)
        with sql.database.connect() as connection:
            times = connection.execute(
                text("SELECT available_at, leased_until FROM saga_outbox WHERE prefix = :prefix"), {"prefix": sql.database.prefix}
            )
            assert times.all() == [(5_000, 0)]


class TestConnection:
    """A connection of SQLAlchemy's, which nothing tells of its commit."""

    def test_rows_are_due_once_it_has_committed(self, sql: SqlBackend, engine: Engine, published: Published) -> None:
        with engine.begin() as connection:
            sql.shared.add(connection, [outgoing(id="1")], published)
        assert published == []
        assert [row.id for row in claim(sql)] == ["1"]

    def test_rolled_back(self, sql: SqlBackend, engine: Engine, published: Published) -> None:
        with engine.connect() as connection:
            sql.shared.add(connection, [outgoing()], published)
            connection.rollback()
        assert sql.outbox.count() == 0


class TestRefused:
    """What cannot share a transaction is refused, and nothing is written."""

    @pytest.mark.parametrize("using", [None, 7, object(), "a", Session])
    def test_something_else(self, sql: SqlBackend, using: object) -> None:
        with pytest.raises((TypeError, ConfigurationError)):
            sql.shared.add(using, [outgoing()], lambda cause: None)

    def test_asynchronous_session_is_told_what_to_do(self, sql: SqlBackend) -> None:
        with pytest.raises(TypeError, match="run_sync"):
            sql.shared.add(AsyncSession(), [outgoing()], lambda cause: None)

    @pytest.mark.parametrize("on", ["engine", "connection"])
    def test_autocommit(self, sql: SqlBackend, on: str) -> None:
        level = {"isolation_level": "AUTOCOMMIT"}
        engine = create_engine(sql.database.location.url, poolclass=NullPool, **(level if on == "engine" else {}))
        options = level if on == "connection" else {}
        with engine.connect().execution_options(**options) as connection, pytest.raises(MisuseError, match="autocommit"):
            sql.shared.add(connection, [outgoing()], lambda cause: None)
        assert sql.outbox.count() == 0

    @pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has no such argument")
    def test_autocommit_of_the_driver(self, sql: SqlBackend) -> None:
        if sql.database.name != "sqlite":
            return
        engine = create_engine(sql.database.location.url, poolclass=NullPool, connect_args={"autocommit": True})
        with Session(engine) as session, pytest.raises(MisuseError, match="autocommit"):
            sql.shared.add(session, [outgoing()], lambda cause: None)
        assert sql.outbox.count() == 0

    def test_session_whose_transaction_has_failed(self, sql: SqlBackend, engine: Engine) -> None:
        row = outgoing()
        with Session(engine) as session:
            session.begin()
            with pytest.raises(IntegrityError):
                sql.shared.add(session, [row, row], lambda cause: None)
            if sql.database.name != "postgresql":
                return
            with pytest.raises(MisuseError, match="ended by an earlier error"):
                sql.shared.add(session, [outgoing()], lambda cause: None)

    def test_another_database(self, sql: SqlBackend, engine: Engine, tmp_path: object) -> None:
        """Its tables are those of another saga_backend."""
        with closing(SqlBackend(f"sqlite:///{tmp_path}/other.sqlite3", prefix="")) as other:
            other.prepare(create_schema=True, processes=1)
            elsewhere = create_engine(other.database.location.url, poolclass=NullPool)
            with Session(elsewhere) as session, pytest.raises(ConfigurationError, match=r"another database|leads to sqlite"):
                sql.shared.add(session, [outgoing()], lambda cause: None)
            assert other.outbox.count() == 0

    def test_database_without_our_tables(self, sql: SqlBackend, tmp_path: object) -> None:
        if sql.database.name != "sqlite":
            return
        elsewhere = create_engine(f"sqlite:///{tmp_path}/empty.sqlite3", poolclass=NullPool)
        with Session(elsewhere) as session, pytest.raises(ConfigurationError, match="no table saga_database"):
            sql.shared.add(session, [outgoing()], lambda cause: None)

    def test_database_is_looked_at_once_for_each_engine(self, sql: SqlBackend, engine: Engine) -> None:
        seen: list[str] = []
        with Session(engine) as session, session.begin():
            sql.shared.add(session, [outgoing()], lambda cause: None)
            with watched(session.connection(), seen):
                sql.shared.add(session, [outgoing()], lambda cause: None)
        assert [statement.split()[0] for statement in seen] == ["INSERT"]


class watched:
    """Notes the statements over a connection meanwhile."""

    def __init__(self, connection: Connection, seen: list[str]) -> None:
        self._connection, self._seen = connection, seen

    def _note(self, conn: object, cursor: object, statement: str, *rest: object) -> None:
        self._seen.append(statement)

    def __enter__(self) -> None:
        event.listen(self._connection, "before_cursor_execute", self._note)

    def __exit__(self, *_: object) -> None:
        event.remove(self._connection, "before_cursor_execute", self._note)
