"""What is read of the journal by time is found by its index of times."""

import re
from collections.abc import Iterator, Mapping

import pytest
from sqlalchemy import Integer

from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.stores.sql.connection.bulk import insert_rows
from celery_sagas.stores.sql.connection.statements import Build, Shape, Values
from celery_sagas.stores.sql.journal import _began, _end, _newest, _oldest, _recent
from celery_sagas.stores.sql.tables import journal
from tests.stores.sql.watching import explained, observed

#: So many that it is worth it to take a few of them through the index.
ENTRIES = 3_000
#: Where the index is entered, and that at most what is of one time is sorted.
_IN_ORDER: Mapping[str, str] = {
    "postgresql": r"limit [^>]*->  index scan backward using saga_journal_at .*index cond: .* and \(at <= ",
    "mysql": r"'saga_journal_at', 'saga_journal_at', '266', none, '\d+', 'using where(; using index)?'\)",  # and no filesort
    "sqlite": r"saga_journal_at \(prefix=\? and at<\?\).* temp b-tree for right part of order by",
}
#: From and to where the index is read.
_BETWEEN: Mapping[str, str] = {
    "postgresql": r"scan .*saga_journal_at .*index cond: .* and \(at <= .* and \(at >= ",
    "mysql": r"'range', 'saga_journal_at', 'saga_journal_at', '266', none, '\d+', 'using where'\)",
    "sqlite": r"saga_journal_at \(prefix=\? and at>\? and at<\?\).* temp b-tree for right part of order by",
}
#: That one entry of the index is read.
_FIRST_OF_INDEX: Mapping[str, str] = {
    "postgresql": r"(limit|^\[\('aggregate) .*index only scan using saga_journal_at .* rows=\d+ ",  # no limit where it is empty
    "mysql": r"select tables optimized away|no matching min/max row",
    "sqlite": r"search saga_journal using covering index saga_journal_at \(prefix=\? and at>\?\)",
}
#: That the entries of a key are not all sorted.
_NEWEST_OF_KEY: Mapping[str, str] = {
    "postgresql": r"incremental sort .*presorted key: at.* using saga_journal_key ",
    "mysql": r"'saga_journal_(at|key)', '\d+', [^']*('const,const,const'|none), '1?\d\d', ",
    "sqlite": r"saga_journal_key \(key=\? and saga=\? and prefix=\?\).* temp b-tree for (last term|right part) of order by",
}
#: The middle of them.
_PLACE: Values = {"at": ENTRIES // 6, "message_id": "m", "step": "s"}
_FIRST: Values = {**_PLACE, "at": 2**62}


@pytest.mark.parametrize("url", ["postgresql", "mariadb", "sqlite"], indirect=True)
def test_beginnings(sql: SqlBackend) -> None:
    fill(sql)
    if sql.database.name == "mysql":  # MariaDB's own statistics of a new table come when they come
        analyse(sql)
    statement = sql.database.statement(_began, (1,))
    values = statement.bind({"within": 1_000, "limit": 10, "saga_0": "order"})
    plan = explained(sql, statement.text, values, in_transaction=False).lower()
    assert "saga_journal_at" in plan


def test_oldest_entry(own: SqlBackend) -> None:
    """It is the first one of the index, however many follow."""
    for plan in _plans(own, _oldest, (), {}):
        assert re.search(_FIRST_OF_INDEX[own.database.name], plan), plan


def test_history_of_a_key_with_many_entries(own: SqlBackend) -> None:
    """It costs what it returns: the index is read from where the newest ones begin, and no more than these are sorted."""
    columns = [column for column in journal.c if column.name not in ("prefix", "saga", "key")]
    rows = [
        {each.name: n if isinstance(each.type, Integer) else f"{each.name} {n}" for each in columns} for n in range(1, ENTRIES)
    ]
    own.database.run(lambda session: insert_rows(session, journal, rows, {"saga": "order", "key": "42"}))
    analyse(own)
    with observed(own) as statements:
        assert [entry.version for entry in own.journal.history(("order", "purchase"), "42", 3)] == [
            ENTRIES - 3 + n for n in range(3)
        ]
    assert len(statements) == (2 if own.database.name == "mysql" else 1)
    assert len(own.journal.history(("order",), "42", 2 * ENTRIES)) == ENTRIES - 1
    values = {"saga_0": "order", "key": "42", "limit": 100, "since": ENTRIES - 100}
    statement = own.database.statement(_newest, (1, own.database.name == "mysql"))
    plan = explained(own, statement.text, statement.bind(values), in_transaction=False).lower()
    assert re.search(_NEWEST_OF_KEY[own.database.name], plan), plan


class TestRecent:
    """What was handled lately is read in the order of the index, however many entries there are."""

    @pytest.mark.parametrize("place", [_PLACE, _FIRST])
    def test_all(self, own: SqlBackend, place: Values) -> None:
        shape = (own.database.name, "saga_journal_at", False, 0, 0)
        for plan in _plans(own, _recent, shape, {**place, "limit": 500}):
            assert re.search(_IN_ORDER[own.database.name], plan), plan

    @pytest.mark.parametrize("place", [_PLACE, _FIRST])
    def test_end_of_what_is_looked_at(self, own: SqlBackend, place: Values) -> None:
        for plan in _plans(own, _end, (own.database.name, "saga_journal_at"), {**place, "limit": 500, "skipped": 499}):
            assert re.search(_IN_ORDER[own.database.name], plan), plan

    @pytest.mark.parametrize(("names", "outcomes"), [(2, 1), (1, 0), (0, 2)])
    def test_some(self, own: SqlBackend, names: int, outcomes: int) -> None:
        """Up to that end."""
        texts = {f"{name}_{number}": f"{name} {number}" for name in ("saga", "outcome") for number in range(2)}
        values = {**_FIRST, "end_at": ENTRIES // 6, "end_message_id": "m", "end_step": "s", "limit": 50, **texts}
        shape = (own.database.name, "saga_journal_at", True, names, outcomes)
        for plan in _plans(own, _recent, shape, values):
            assert re.search(_BETWEEN[own.database.name], plan), plan

    def test_statements_of_a_call(self, sql: SqlBackend) -> None:
        fill(sql)
        with observed(sql) as statements:
            assert len(sql.journal.recent(20).entries) == 20
            assert len(statements) == 1
            (line,) = sql.journal.recent(20, names=["saga 2999", "saga 7"]).entries
            assert len(statements) == 3
        assert (line.saga, line.at) == ("saga 2999", 999)


def fill(sql: SqlBackend) -> None:
    """Write entries, three at a time."""
    columns = [column for column in journal.c if column.name != "prefix"]
    numbers = range(3, ENTRIES + 3)
    rows = [{each.name: n // 3 if isinstance(each.type, Integer) else f"{each.name} {n}" for each in columns} for n in numbers]
    sql.database.run(lambda session: insert_rows(session, journal, rows))


def analyse(sql: SqlBackend) -> None:
    """Have the database make its statistics."""
    with sql.database.connect() as connection:
        connection.exec_driver_sql(f"ANALYZE {'TABLE ' if sql.database.name == 'mysql' else ''}saga_journal").close()


def _plans(sql: SqlBackend, build: Build, shape: Shape, values: Values) -> Iterator[str]:
    """Yield how a statement is run: on empty tables, on full ones, and once the database has its statistics of them."""
    statement = sql.database.statement(build, shape)
    for prepare in (lambda _: None, fill, analyse):
        prepare(sql)
        yield explained(sql, statement.text, statement.bind(values), in_transaction=False).lower()
