"""The audit costs commits without it nothing, and is read in the order of its indexes."""

import re
from collections.abc import Iterator, Mapping

import pytest
from sqlalchemy import Integer

from celery_sagas.stores.operations import Update
from celery_sagas.stores.sql.audit import _end, _of_key, _recent
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.stores.sql.connection.bulk import insert_rows
from celery_sagas.stores.sql.connection.statements import Build, Shape, Values
from celery_sagas.stores.sql.tables import audit
from celery_sagas.testing.samples import audited, change, complete, effects, entry, send, start, update
from tests.stores.sql.watching import explained, observed

#: So many that it is worth it to take a few of them through the index.
ENTRIES = 3_000
#: Where the index is entered, and that nothing is sorted.
_IN_ORDER: Mapping[str, str] = {
    "postgresql": r"limit [^>]*->  index (only )?scan backward using saga_audit_at .*index cond: .* and \(at <= ",
    "mysql": r"'saga_audit_at', 'saga_audit_at', '\d+', (none|'const'), '\d+', 'using where(; using index)?'\)",
    "sqlite": r"saga_audit_at \(prefix=\? and at>\? and at<\?\)'\)\]",
}
#: From and to where the index is read: no more than a page looks at is left to be sorted.
_BETWEEN: Mapping[str, str] = {
    "postgresql": r"scan .*saga_audit_at .*index cond: .* and \(at <= .* and \(at >= ",
    "mysql": r"'range', 'saga_audit_at', 'saga_audit_at', '\d+', none, '\d+', 'using where'\)",
    "sqlite": r"saga_audit_at \(prefix=\? and at>\? and at<\?\)'\)\]",
}
#: The middle of them.
_PLACE: Values = {"at": ENTRIES // 6, "id": "m"}
_FIRST: Values = {**_PLACE, "at": 2**62}


class TestCommits:
    """What is written, and when."""

    @pytest.fixture
    def texts(self, sql: SqlBackend) -> list[str]:
        """The statements that were run."""
        texts: list[str] = []
        sql.database.observers.append(texts.append)
        return texts

    def test_commits_without_an_entry_do_not_touch_the_table(self, sql: SqlBackend, texts: list[str]) -> None:
        record = start(sql, keys=(("tracking", "T1"),), tags=(("status", "new"),))
        orders = [start(sql, str(number)) for number in range(3)]
        sql.many([Update(order, change(), effects(order)) for order in orders])
        send(sql)
        complete(sql, update(sql, record))
        assert texts
        assert not [text for text in texts if "saga_audit" in text]

    def test_commit_with_an_entry_has_one_statement_more(self, sql: SqlBackend) -> None:
        """On PostgreSQL it is a part of the only one."""
        record = start(sql)
        with observed(sql) as plain:
            sql.sagas.update(record, change(), effects(record))
        changed = record._replace(version=2)
        line = entry(changed)
        with observed(sql) as statements:
            sql.sagas.update(changed, change(), effects(line=line, audit=audited(line)))
        assert len(statements) == len(plain) + (sql.database.name != "postgresql")

    def test_commits_with_an_entry_are_made_beside_the_others(self, sql: SqlBackend, texts: list[str]) -> None:
        """In the same transaction."""
        orders = [start(sql, str(number)) for number in range(4)]
        lines = [entry(order) for order in orders]
        texts.clear()
        made = [effects(line=line, audit=audited(line) if number == 2 else None) for number, line in enumerate(lines)]
        commits = [Update(order, change(), each) for order, each in zip(orders, made, strict=True)]
        assert sql.many(commits) == [None] * 4
        assert len([text for text in texts if "saga_audit" in text]) == 1
        assert [text.split()[0] for text in texts].count("COMMIT") == 1


class TestRecent:
    """It costs the same, however many entries there are."""

    @pytest.mark.parametrize("place", [_PLACE, _FIRST])
    def test_all(self, own: SqlBackend, place: Values) -> None:
        for plan in _plans(own, _recent, ("saga_audit_at", 0, False), {**place, "limit": 500}):
            assert re.search(_IN_ORDER[own.database.name], plan), plan

    @pytest.mark.parametrize("place", [_PLACE, _FIRST])
    def test_end_of_what_is_looked_at(self, own: SqlBackend, place: Values) -> None:
        for plan in _plans(own, _end, ("saga_audit_at",), {**place, "limit": 1, "skipped": 499}):
            assert re.search(_IN_ORDER[own.database.name], plan), plan

    def test_some(self, own: SqlBackend) -> None:
        """Up to that end."""
        values = {**_FIRST, "end_at": ENTRIES // 3 - 150, "end_id": "m", "limit": 50, "saga_0": "saga 0", "saga_1": "saga 1"}
        for plan in _plans(own, _recent, ("saga_audit_at", 2, True), values):
            assert re.search(_BETWEEN[own.database.name], plan), plan

    @pytest.mark.parametrize("names", [1, 2])
    def test_one_key(self, own: SqlBackend, names: int) -> None:
        values = {**_FIRST, "key": "key 7", "limit": 50, "saga_0": "saga 7", "saga_1": "saga 8"}
        for plan in _plans(own, _of_key, (names,), values):
            assert "saga_audit_key" in plan, plan

    def test_statements_of_a_call(self, sql: SqlBackend) -> None:
        _fill(sql)
        with observed(sql) as statements:
            assert len(sql.audit.recent(20).entries) == 20
            assert len(statements) == 1
            (line,) = sql.audit.recent(20, names=["saga 2999", "saga 7"]).entries
            assert len(statements) == 3
            assert sql.audit.recent(20, names=["saga 2999", "saga 7"], key="key 2999").entries == (line,)
            assert len(statements) == 4
        assert (line.saga, line.at) == ("saga 2999", 999)


def _fill(sql: SqlBackend) -> None:
    """Write entries, three at a time."""
    columns = [column for column in audit.c if column.name != "prefix"]
    numbers = range(3, ENTRIES + 3)
    rows = [{each.name: n // 3 if isinstance(each.type, Integer) else f"{each.name} {n}" for each in columns} for n in numbers]
    sql.database.run(lambda session: insert_rows(session, audit, rows))


def _analyse(sql: SqlBackend) -> None:
    """Have the database make its statistics."""
    with sql.database.connect() as connection:
        connection.exec_driver_sql(f"ANALYZE {'TABLE ' if sql.database.name == 'mysql' else ''}saga_audit").close()


def _plans(sql: SqlBackend, build: Build, shape: Shape, values: Values) -> Iterator[str]:
    """Yield how a statement is run: on empty tables, on full ones, and once the database has its statistics of them."""
    statement = sql.database.statement(build, shape)
    for prepare in (lambda _: None, _fill, _analyse):
        prepare(sql)
        yield explained(sql, statement.text, statement.bind(values), in_transaction=False).lower()
