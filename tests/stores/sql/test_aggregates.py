"""What an aggregator costs in SQL, and what it leaves behind."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest
from psycopg.errors import DeadlockDetected
from sqlalchemy import Select, func, select, text

from celery_sagas.errors import StoreUnavailable
from celery_sagas.stores.items import Addition, DueGroup
from celery_sagas.stores.sql.aggregators import items
from celery_sagas.stores.sql.aggregators.groups import _due
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.stores.sql.connection.statements import PREFIX, Build, Shape
from celery_sagas.stores.sql.connection.statements import numbered as parameters
from celery_sagas.stores.sql.tables import metadata
from celery_sagas.testing.batches import (
    CLOSED,
    HOURLY,
    LEASE,
    NAME,
    PAIRS,
    RUN,
    add,
    dead_letters_of,
    flush,
    lease_lost,
    new_items,
    numbered,
    reject,
    sends_of,
)
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.samples import HOUR, claim
from tests.stores.sql.conftest import Open
from tests.stores.sql.watching import OpenConnections, explained, losing_first_reply, observed

THOUSANDS = CLOSED._replace(size=1_000, remember_ms=HOUR)
#: So many that it is worth it to take a few of them through the index.
MANY = 600

only_servers = pytest.mark.parametrize("url", ["postgresql", "mariadb"], indirect=True)


class TestStatements:
    """How many statements a call takes, BEGIN and COMMIT included."""

    def test_thousand_items_take_few(self, sql: SqlBackend) -> None:
        add(sql, THOUSANDS, "before")
        with observed(sql) as of_insert:
            add(sql, THOUSANDS, *numbered(1_000))
        with observed(sql) as of_claim:
            flush(sql, THOUSANDS)
        with observed(sql) as of_removal:
            sql.aggregates.remove(THOUSANDS, "", RUN)
        taken = (len(of_insert), len(of_claim), len(of_removal))
        assert taken == ((4, 7, 9) if sql.database.name == "postgresql" else (7, 8, 11))

    def test_no_call_looks_at_the_schema(self, sql: SqlBackend, monkeypatch: pytest.MonkeyPatch) -> None:
        """A worker has made it when it started: neither the first call nor any later one asks for a table or an index."""
        texts: list[str] = []
        sql.database.observers.append(texts.append)
        monkeypatch.setattr(sql.database, "connect", lambda: pytest.fail("a connection for the schema"))
        for number in numbered(3):
            add(sql, PAIRS, f"{number} a", f"{number} b")
            flush(sql, PAIRS, number)
            sql.aggregates.remove(PAIRS, "", number)
        assert not [text for text in texts if re.search(r"\b(CREATE|ALTER|SHOW|PRAGMA)\b|information_schema|sqlite_|pg_", text)]
        assert texts[len(texts) // 3 * 2 :] == texts[len(texts) // 3 : len(texts) // 3 * 2]

    def test_one_item_takes_fewer(self, sql: SqlBackend) -> None:
        add(sql, CLOSED, "before")
        with observed(sql) as statements:
            add(sql, CLOSED, "item")
        assert len(statements) == (1 if sql.database.name == "postgresql" else 6)

    def test_one_item_that_fires_the_trigger_takes_few(self, sql: SqlBackend) -> None:
        """On PostgreSQL it is tried in vain to do with one."""
        add(sql, PAIRS, "before")
        with observed(sql) as statements:
            add(sql, PAIRS, "item")
        assert len(statements) == (5 if sql.database.name == "postgresql" else 6)

    def test_one_item_of_many_groups_takes_no_more(self, sql: SqlBackend) -> None:
        """Nobody tries that where no item is known to wait."""
        with observed(sql) as of_first:
            add(sql, HOURLY, "item", group="first")
        with observed(sql) as of_second:
            add(sql, HOURLY, "item", group="second")
        assert len(of_second) <= len(of_first)

    def test_repeat_takes_few(self, sql: SqlBackend) -> None:
        add(sql, CLOSED, "item")
        with observed(sql) as statements:
            add(sql, CLOSED, "item")
        assert len(statements) == (6 if sql.database.name == "postgresql" else 5)

    def test_three_hundred_groups_take_as_many_as_one_whose_items_are_as_many(self, sql: SqlBackend) -> None:
        with observed(sql) as of_one:
            add(sql, CLOSED, *numbered(300))
        with observed(sql) as of_many:
            sql.aggregates.insert(CLOSED, [Addition(group, new_items(["item"])) for group in numbered(300, "group")])
        assert len(of_many) <= len(of_one)

    def test_values_are_never_part_of_the_text(self, sql: SqlBackend) -> None:
        texts: list[str] = []
        sql.database.observers.append(texts.append)
        rules = PAIRS._replace(name="VALUE", remember_ms=HOUR)
        add(sql, rules, "VALUE", "other", group="VALUE")
        first, second = flush(sql, rules, "VALUE", "VALUE").items
        [dead_letter] = dead_letters_of(first, group="VALUE", name="VALUE", text="VALUE")
        sql.aggregates.remove(rules, "VALUE", "VALUE", rejected=[dead_letter], unreadable=[second.number])
        assert sql.buffers.unresolved("VALUE", 9, ("VALUE", 0))
        assert sql.aggregates.resolve(rules, "VALUE", [second.number]) == 1
        assert sql.aggregates.restore(rules, dead_letter)
        assert not any("VALUE" in text.replace("VALUES", "") for text in texts)


@pytest.mark.parametrize(
    ("build", "shape", "values", "index"),
    [
        (items._first, (1, False), {"group_digest": "p", "state_0": "free", "limit": 9}, "saga_buffer_state"),
        (items._first, (1, True), {"group_digest": "p", "state_0": "free", "limit": 9, "after": 9}, "saga_buffer_state"),
        (items._oldest, (), {"group_digest": "p", "state": "free", "limit": 1}, "saga_buffer_state"),
        (items._leased_numbers, (), {"group_digest": "p", "state": "leased", "token": "t"}, "saga_buffer_state"),
        (items.select_known, (64,), parameters("key", numbered(64)), "saga_buffer_"),
        (_due, (), {"name": NAME, "limit": 9}, "saga_group_due"),
        (items.select_unresolved, (False,), {"aggregator": NAME, "state": "unresolved", "limit": 9}, "saga_group_unresolved"),
    ],
    ids=["first", "next", "oldest", "leased", "known", "due", "unresolved"],
)
def test_nothing_is_searched_or_sorted(
    sql: SqlBackend, build: Build, shape: Shape, values: dict[str, object], index: str
) -> None:
    sql.aggregates.insert(HOURLY, [Addition(group, new_items(["item"])) for group in numbered(MANY, "group")])
    add(sql, HOURLY, *numbered(MANY))
    if sql.database.name == "mysql":
        with sql.database.connect() as connection:
            connection.exec_driver_sql("ANALYZE TABLE saga_buffer, saga_group").close()
    statement = sql.database.statement(build, shape)
    plan = explained(sql, statement.text, statement.bind(values)).lower()
    assert index in plan.replace("autoindex_", "")
    assert "seq scan" not in plan
    if shape == ():
        for word in ("sort", "temp b-tree"):
            assert word not in plan


class TestTraces:
    """What a group leaves behind when its items are gone."""

    def test_empty_group_leaves_what_is_remembered(self, sql: SqlBackend) -> None:
        rules = PAIRS._replace(remember_ms=HOUR)
        add(sql, rules, "a", "b")
        flush(sql, rules)
        sql.aggregates.remove(rules, "", RUN)
        add(sql, rules, "c", is_unreadable=True)
        add(sql, rules, "d")
        sql.buffers.clear(rules, "")
        assert _rows(sql) == {"saga_aggregator": 1, "saga_seen": 4}

    def test_unresolved_and_rejected_items_leave_nothing_either(self, sql: SqlBackend) -> None:
        add(sql, CLOSED, "a", is_unreadable=True)
        sql.buffers.remove(CLOSED, "", "a", unresolved=True)
        [first, second] = reject(sql, "b", "c")
        assert sql.dead.remove(first.id)
        assert sql.aggregates.restore(CLOSED, second)
        sql.buffers.remove(CLOSED, "", "c")
        assert _rows(sql) == {"saga_aggregator": 1}

    def test_number_is_never_given_again(self, sql: SqlBackend) -> None:
        """A stale one names nothing, whatever has come since."""
        numbers = []
        for _ in range(2):
            add(sql, PAIRS, "a", "b")
            numbers += [item.number for item in flush(sql, PAIRS).items]
            sql.aggregates.remove(PAIRS, "", RUN)
        assert len(set(numbers)) == 4

    def test_removal_of_a_lost_lease_is_undone(self, sql: SqlBackend) -> None:
        opened = OpenConnections(sql)
        with lease_lost():
            sql.aggregates.remove(PAIRS, "", RUN)
        assert (opened.count, sql.database.connections.idle) == (1, 1)


def _rows(sql: SqlBackend) -> dict[str, int]:
    """Count the rows of the tables that have any under the test's prefix."""
    names = [name for name, table in metadata.tables.items() if "prefix" in table.c]
    counts = {name: sql.database.fetch(_count, (name,), {})[0][0] for name in names}
    return {name: count for name, count in counts.items() if count}


def _count(name: str) -> Select[tuple[int]]:
    return select(func.count()).where(metadata.tables[name].c.prefix == PREFIX)


class TestLostReplies:
    """A call whose connection breaks after its COMMIT runs again."""

    @pytest.fixture
    def again(self, sql: SqlBackend, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], Any]:
        """Run a call whose first reply is lost."""

        def run(call: Callable[[], Any]) -> Any:
            with monkeypatch.context() as patch:
                patch.setattr(sql.database, "_attempt", losing_first_reply(sql.database._attempt))
                return call()

        return run

    def test_insertion_adds_once(self, sql: SqlBackend, again: Callable[[Callable[[], Any]], Any]) -> None:
        add(sql, CLOSED, "a")
        again(lambda: add(sql, CLOSED, "b", "c"))
        assert [item.id for item in sql.buffers.read(NAME, "", 9)] == ["a", "b", "c"]
        assert sql.buffers.count(NAME).buffered == 3

    def test_claim_returns_what_it_has_claimed(self, sql: SqlBackend, again: Callable[[Callable[[], Any]], Any]) -> None:
        add(sql, PAIRS, *"abcd")
        snapshot = again(lambda: sql.aggregates.claim(PAIRS, "", RUN))
        assert [item.id for item in snapshot.items] == ["a", "b"]
        assert snapshot.is_more
        assert snapshot == sql.aggregates.claim(PAIRS, "", RUN)

    @pytest.mark.parametrize("needs_flush", [True, False])
    def test_removal_has_removed(self, sql: SqlBackend, again: Callable[[Callable[[], Any]], Any], needs_flush: bool) -> None:
        add(sql, PAIRS, "a", "b")
        flush(sql, PAIRS)
        add(sql, CLOSED, *(["c", "d"] if needs_flush else ["c"]))
        assert again(lambda: sql.aggregates.remove(PAIRS, "", RUN)) is needs_flush
        assert sql.buffers.count(NAME).buffered == 1 + needs_flush

    def test_removal_sends_once(self, sql: SqlBackend, again: Callable[[Callable[[], Any]], Any]) -> None:
        add(sql, PAIRS, "a", "b")
        flush(sql, PAIRS)
        sends = sends_of(sql, "m1", "m2")
        assert again(lambda: sql.aggregates.remove(PAIRS, "", RUN, sends=sends)) is False
        assert [row.message_id for row in claim(sql)] == ["m1", "m2"]

    def test_release_has_released(self, sql: SqlBackend, again: Callable[[Callable[[], Any]], Any]) -> None:
        add(sql, PAIRS, "a", "b")
        flush(sql, PAIRS)
        again(lambda: sql.aggregates.release(PAIRS, "", RUN))
        assert [item.attempts for item in sql.buffers.read(NAME, "", 9)] == [1, 1]

    def test_renewal_of_a_lost_lease_stays_one(self, sql: SqlBackend, again: Callable[[Callable[[], Any]], Any]) -> None:
        assert again(lambda: sql.aggregates.renew(PAIRS, "", RUN)) is False
        with lease_lost():
            again(lambda: sql.aggregates.remove(PAIRS, "", RUN))


class TestRivals:
    """Calls at the same time."""

    @only_servers
    def test_claim_passes_over_what_another_is_about_to_mark(self, open_sql: Open) -> None:
        clock = Clock()
        sql, rival = open_sql(clock=clock), open_sql(clock=clock)
        sql.prepare(create_schema=True, processes=1)
        for group in ("first", "second", "third"):
            add(sql, HOURLY, "item", group=group)
            clock.advance(1)
        clock.advance(HOUR)
        meanwhile: list[DueGroup] = []

        def claim_before_commit(statement: str) -> None:
            if statement == "COMMIT":
                meanwhile.extend(rival.aggregates.claim_due([NAME], 1, LEASE))

        sql.database.observers.append(claim_before_commit)
        assert sql.aggregates.claim_due([NAME], 1, LEASE) == [DueGroup(NAME, "first")]
        assert meanwhile == [DueGroup(NAME, "second")]

    def test_calls_for_the_same_groups_in_any_order_do_not_wait_in_a_circle(self, sql: SqlBackend) -> None:
        groups = numbered(6, "group")

        def insert(number: int) -> None:
            for turn in range(10):
                order = groups if number % 2 else groups[::-1]
                sql.aggregates.insert(CLOSED, [Addition(group, new_items([f"{number} {turn}"])) for group in order])
                sql.buffers.clear(CLOSED, order[turn % 6])

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(insert, range(4)))
        assert all(group.free == group.free + group.leased + group.unresolved for group in sql.buffers.groups(NAME, 9))


class TestVictims:
    """Calls that the database has undone for the sake of another."""

    @pytest.mark.parametrize("url", ["postgresql"], indirect=True)
    @pytest.mark.parametrize(("failures", "is_made"), [(2, True), (3, False)])
    def test_call_is_made_again_but_not_for_ever(self, sql: SqlBackend, failures: int, is_made: bool) -> None:
        commits: list[str] = []

        def lose(statement: str) -> None:
            if statement == "COMMIT" and len(commits) < failures:
                commits.append(statement)
                raise DeadlockDetected

        sql.database.observers.append(lose)
        with nullcontext() if is_made else pytest.raises(StoreUnavailable):
            add(sql, CLOSED, "item")
        sql.database.observers.clear()
        assert sql.buffers.count(NAME).buffered == int(is_made)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_table_keeps_digests_of_one_length(sql: SqlBackend) -> None:
    """However long the names are, the indexes stay small."""
    add(sql, CLOSED._replace(name="n" * 255), "i" * 255, group="g" * 255)
    with sql.database.connect() as connection:
        assert connection.execute(text("SELECT length(group_digest), length(key) FROM saga_buffer")).all() == [(40, 40)]
