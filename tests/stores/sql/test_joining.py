"""One item that joins others on PostgreSQL: what happens while it waits for its group."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from celery_sagas.stores.items import Added, Addition
from celery_sagas.stores.sql.aggregators.additions import insert
from celery_sagas.stores.sql.aggregators.buffers import clear, remove_item
from celery_sagas.stores.sql.aggregators.items import FREE
from celery_sagas.stores.sql.aggregators.joining import Joinable
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.stores.sql.connection.database import SqlSession
from celery_sagas.testing.batches import CLOSED, add, buffered, new_items
from celery_sagas.testing.samples import HOUR
from tests.stores.sql.conftest import Open
from tests.waiting import DEADLINE_S, wait_until

RULES = CLOSED._replace(remember_ms=HOUR)

pytestmark = pytest.mark.parametrize("url", ["postgresql"], indirect=True)


def waits(backend: SqlBackend) -> bool:
    """Tell whether a statement waits for another transaction."""
    with backend.database.connect() as connection:
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        return bool(connection.exec_driver_sql(waiting).scalar())


@contextmanager
def joining_meanwhile(sql: SqlBackend, rival: SqlBackend, work: Callable[[SqlSession], object]) -> Iterator[Future[Added]]:
    """Do work in a transaction of a rival's, which ends when an item waits for it that was to join others."""
    has_changed, may_end = threading.Event(), threading.Event()

    def change(session: SqlSession) -> None:
        work(session)
        has_changed.set()
        assert may_end.wait(DEADLINE_S)

    with ThreadPoolExecutor(2) as pool:
        changing = pool.submit(rival.database.in_transaction, change)
        wait_until(lambda: has_changed.is_set() or changing.done(), "a change")
        added = pool.submit(add, sql, RULES, "item")
        wait_until(lambda: waits(rival), "an item that waits for its group")
        may_end.set()
        changing.result(DEADLINE_S)
        yield added


def come(session: SqlSession, id: str = "item") -> None:
    insert(session, RULES, [Addition("", new_items([id]))])


@pytest.fixture
def rival(open_sql: Open, sql: SqlBackend) -> SqlBackend:
    """Another process."""
    return open_sql()


def test_others_came_too(sql: SqlBackend, rival: SqlBackend) -> None:
    add(sql, RULES, "first")
    with joining_meanwhile(sql, rival, lambda session: come(session, "other")) as added:
        assert added.result(DEADLINE_S) == Added(1)
    assert sorted(buffered(sql)) == ["first", "item", "other"]


def test_the_same_item_came_and_is_skipped(sql: SqlBackend, rival: SqlBackend) -> None:
    add(sql, RULES, "first")
    with joining_meanwhile(sql, rival, come) as added:
        assert added.result(DEADLINE_S) == Added(0)
    assert buffered(sql) == ["first", "item"]


def test_the_same_item_came_and_went(sql: SqlBackend, rival: SqlBackend) -> None:
    """Its id is remembered."""

    def come_and_go(session: SqlSession) -> None:
        come(session)
        remove_item(session, RULES, "", "item", (FREE,))

    add(sql, RULES, "first")
    with joining_meanwhile(sql, rival, come_and_go) as added:
        assert added.result(DEADLINE_S) == Added(0)
    assert buffered(sql) == ["first"]


def test_the_same_item_came_and_all_went(sql: SqlBackend, rival: SqlBackend) -> None:
    """Its id is remembered if the group begins anew, too."""

    def come_and_clear(session: SqlSession) -> None:
        come(session)
        clear(session, RULES, "")

    add(sql, RULES, "first")
    with joining_meanwhile(sql, rival, come_and_clear) as added:
        assert added.result(DEADLINE_S) == Added(0)
    assert buffered(sql) == []


def test_the_group_was_cleared(sql: SqlBackend, rival: SqlBackend) -> None:
    """The item is the first of a new one."""
    add(sql, RULES, "first")
    with joining_meanwhile(sql, rival, lambda session: clear(session, RULES, "")) as added:
        assert added.result(DEADLINE_S) == Added(1)
    assert buffered(sql) == ["item"]
    (group,) = sql.buffers.groups(RULES.name, 9)
    assert group.free == 1


def test_what_is_remembered_of_groups_is_bounded(sql: SqlBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_sagas.stores.sql.aggregators.joining._REMEMBERED", 2)
    waiting = Joinable()
    additions = [Addition(f"group {number}", new_items(["item"])) for number in range(3)]
    waiting.note(RULES, additions, [Added(1)] * 3)

    assert [waiting.is_worth_while(RULES, [addition]) for addition in additions] == [False, True, True]
    assert not waiting.is_worth_while(RULES, additions)
    unread = additions[2]._replace(items=new_items(["item"], is_unreadable=True))
    assert not waiting.is_worth_while(RULES, [unread])
