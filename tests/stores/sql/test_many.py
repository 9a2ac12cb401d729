"""The operations of several messages at once: how many statements they take, and what becomes of them when something breaks."""

from collections.abc import Callable

import pytest

from celery_sagas.errors import RevisionConflict, StoreError, StoreUnavailable
from celery_sagas.stores.operations import Find, Insert, Operation, Update
from celery_sagas.stores.records import Handling, Record
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.stores.sql.connection.database import SqlSession
from celery_sagas.stores.sql.sagas.lookups import find_each
from celery_sagas.stores.sql.sagas.together import _sought
from celery_sagas.testing.samples import (
    STEP,
    by_id,
    by_key,
    by_tracking,
    change,
    effects,
    entry,
    found,
    new_record,
    outgoing,
    start,
)
from tests.stores.sql.conftest import Open
from tests.stores.sql.test_database import Interruption, connection_ids, kill, only_servers
from tests.stores.sql.watching import OpenConnections, explained, losing_first_reply, observed

MANY = 25
only_postgresql = pytest.mark.parametrize("url", ["postgresql"], indirect=True)


def started(sql: SqlBackend, count: int = MANY) -> list[Record]:
    """Start instances with the keys from "0"."""
    return [start(sql, str(number)) for number in range(count)]


def updating(record: Record, message_id: str = "", data: str = "{}") -> Operation:
    """Return an update with one outgoing row."""
    return Update(record, change(data=data), effects(record, outgoing(), line=entry(record, message_id=message_id)))


def versions(sql: SqlBackend, records: list[Record]) -> set[int]:
    """Return the versions that the instances have now."""
    return {found(sql, by_id(record.id)).version for record in records}


class TestStatements:
    """How many they take."""

    def test_finds(self, sql: SqlBackend) -> None:
        started(sql)
        finds = [Find(by_key(str(number)), Handling((STEP,), f"{number}")) for number in range(MANY)]
        with observed(sql) as statements:
            answers = sql.many(finds)
        assert {answer.record.version for answer in answers} == {1}
        assert len(statements) == (MANY if sql.database.name == "sqlite" else 1)

    def test_updates(self, sql: SqlBackend) -> None:
        """All are one transaction, and on PostgreSQL one statement."""
        records = started(sql)
        with observed(sql) as statements:
            assert sql.many([updating(record) for record in records]) == [None] * MANY
        assert [statements.count(word) for word in ("BEGIN", "COMMIT")] == [1, 1]
        assert (len(statements) == 3) == (sql.database.name == "postgresql")
        assert sql.outbox.count() == MANY
        assert versions(sql, records) == {2}

    def test_stale_update_is_left_out(self, sql: SqlBackend) -> None:
        """The others are not undone for it."""
        records = started(sql, 3)
        with observed(sql) as statements:
            first, stale, last = sql.many([updating(records[0]), updating(records[1]._replace(version=7)), updating(records[2])])
        assert (first, stale.reason, last) == (None, "version", None)
        assert [statements.count(word) for word in ("BEGIN", "COMMIT", "ROLLBACK")] == [1, 1, 0]

    def test_key_that_is_taken_has_them_made_one_by_one(self, sql: SqlBackend) -> None:
        records, new = started(sql, 3), new_record("1")
        operations = [*map(updating, records), Insert(new, effects(new, outgoing()))]
        with observed(sql) as statements:
            *done, taken = sql.many(operations)
        assert done == [None] * 3
        assert isinstance(taken, RevisionConflict)
        assert taken.reason == "unique"
        assert statements.count("ROLLBACK") >= 1
        assert (sql.outbox.count(), versions(sql, records)) == (3, {2})


class TestLostConnections:
    """Every answer is the same, and nothing is written twice."""

    @only_servers
    @pytest.mark.parametrize("before", ["UPDATE saga_instance", "COMMIT"])
    def test_in_the_middle(self, sql: SqlBackend, open_sql: Open, before: str) -> None:
        records, killer = started(sql), open_sql()
        (id,) = connection_ids(sql)

        def kill_once(statement: str) -> None:
            if before in statement:
                sql.database.observers.clear()
                kill(killer, id)

        sql.database.observers.append(kill_once)
        assert sql.many([updating(record) for record in records]) == [None] * MANY
        assert (versions(sql, records), sql.outbox.count()) == ({2}, MANY)

    def test_reply_to_the_commit_is_lost(self, sql: SqlBackend, monkeypatch: pytest.MonkeyPatch) -> None:
        records, new = started(sql, 3), new_record("43")
        operations = [*map(updating, records), Insert(new, effects(new, outgoing())), updating(records[0]._replace(version=7))]
        with monkeypatch.context() as patch:
            patch.setattr(sql.database, "_attempt", losing_first_reply(sql.database._attempt))
            *done, stale = sql.many(operations)
        assert (done, stale.reason) == ([None] * 4, "version")
        assert (versions(sql, records), sql.outbox.count()) == ({2}, 4)


@pytest.mark.parametrize("before", ["UPDATE saga_instance", "INSERT INTO saga_journal", "COMMIT"])
def test_interruption_writes_nothing_and_closes_the_connection(sql: SqlBackend, before: str) -> None:
    """Such as that of a time limit."""
    records = started(sql, 3)
    opened = OpenConnections(sql)

    def interrupt(statement: str) -> None:
        if before in statement:
            raise Interruption

    sql.database.observers.append(interrupt)
    with pytest.raises(Interruption):
        sql.many(list(map(updating, records)))
    sql.database.observers.clear()
    assert opened.count == 0
    assert (versions(sql, records), sql.outbox.count()) == ({1}, 0)


def test_victim_of_a_deadlock_has_them_made_one_by_one(sql: SqlBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    records, end = started(sql, 3), SqlSession.end

    def fail_once(session: SqlSession, how: str) -> None:
        monkeypatch.setattr(SqlSession, "end", end)
        raise sql.database.driver.OperationalError(1213, "deadlock")

    monkeypatch.setattr(SqlSession, "end", fail_once)
    assert sql.many(list(map(updating, records))) == [None] * 3
    assert (versions(sql, records), sql.outbox.count()) == ({2}, 3)


def test_database_that_is_away_is_waited_for_once(sql: SqlBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    records, attempts = started(sql, 3), list[bool]()

    def fail(work: object, *, may_repeat: bool) -> None:
        attempts.append(may_repeat)
        raise sql.database.driver.OperationalError("it is away")

    with monkeypatch.context() as patch:
        patch.setattr(sql.database, "_attempt", fail)
        answers = sql.many(list(map(updating, records)))
    assert [type(answer) for answer in answers] == [StoreUnavailable] * 3
    assert attempts == [True]
    assert (versions(sql, records), sql.outbox.count()) == ({1}, 0)


REFUSED: dict[str, Callable[[], str]] = {"sqlite": lambda: "\ud800", "postgresql": lambda: "\0", "mysql": lambda: "x" * 2**24}


def test_state_that_is_refused_leaves_the_others(sql: SqlBackend) -> None:
    """On MariaDB one that is too large."""
    records = started(sql, 3)
    refused = updating(records[1], data=REFUSED[sql.database.name]())
    first, second, third = sql.many([updating(records[0]), refused, updating(records[2])])
    assert (first, type(second), third) == (None, StoreError, None)
    assert ([found(sql, by_id(record.id)).version for record in records], sql.outbox.count()) == ([2, 1, 2], 2)


@only_postgresql
@pytest.mark.parametrize("lookup", [by_key("1"), by_id("1"), by_tracking("1")], ids=["key", "id", "alternate key"])
def test_joint_find_reads_no_whole_table(sql: SqlBackend, lookup: object) -> None:
    """Each is looked up through an index, whatever the tables' statistics are."""
    finds = [Find(lookup, Handling((STEP,), str(number))) for number in range(MANY)]  # type: ignore[arg-type]
    ((by, rows),) = _sought(finds).items()
    statement = sql.database.statement(find_each, (by,))
    names = ("number", "saga", "property", "value", "step", "message_id")
    values = {f"sought_{name}": list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    plan = explained(sql, statement.text, statement.bind(values), in_transaction=False)
    assert "Seq Scan" not in plan
    assert "Index Scan using saga_journal_pkey" in plan
