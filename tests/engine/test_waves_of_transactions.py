"""Messages that are handled together, each in a transaction that it shares with rows of its own."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, event, text

from celery_sagas.engine.outcomes import Kind, Outcome
from celery_sagas.engine.session import Delivery
from celery_sagas.engine.waves import Batch, BatchedMessage
from celery_sagas.stores.sql.backend import SqlBackend
from tests.engine.conftest import Boom, Engine, Order, handler, patient, send, starter
from tests.engine.test_waves import delivery


class TimeLimit(Exception):
    """Interrupts a handler."""


def pay(order: Order, connection: Connection, order_id: str, amount: int = 1) -> None:
    """Write a row, then fail if there is nothing to pay."""
    connection.execute(text("INSERT INTO payment VALUES (:order_id, :amount)"), {"order_id": order_id, "amount": amount})
    if not amount:
        raise Boom
    order.total += amount
    send(order, f"receipt {order_id}")


def note(order: Order, order_id: str) -> None:
    """Change the order without a row."""
    order.note += "noted"


PAY, NOTE = starter(pay, transaction=Connection), handler(note)


@pytest.fixture
def sql(tmp_path: Path) -> Iterator[SqlBackend]:
    """A backend in a file, which has the table of the rows."""
    backend = SqlBackend(f"sqlite:///{tmp_path / 'shop.sqlite3'}", prefix="")
    backend.prepare(create_schema=True, processes=1)
    with backend.database.connect() as connection:
        connection.exec_driver_sql("CREATE TABLE payment (order_id TEXT, amount INTEGER)")
    yield backend
    backend.close()


@pytest.fixture
def engine(sql: SqlBackend) -> Engine:
    backend: Any = sql
    return Engine(backend)


@pytest.fixture
def seen(sql: SqlBackend) -> list[str]:
    """When transactions have begun, and when they have ended."""
    seen: list[str] = []
    for name in ("begin", "commit", "rollback"):
        event.listen(sql.shared._engine, name, lambda connection, name=name: seen.append(name))
    return seen


def rows(sql: SqlBackend) -> list[tuple[str, int]]:
    engine = create_engine(sql.database.location.url)
    try:
        with engine.connect() as connection:
            return [(row[0], row[1]) for row in connection.execute(text("SELECT * FROM payment ORDER BY rowid"))]
    finally:
        engine.dispose()


def kinds(outcomes: list[Outcome | None]) -> list[Kind | None]:
    return [outcome and outcome.kind for outcome in outcomes]


def together(engine: Engine, *deliveries: Delivery) -> list[Kind | None]:
    return kinds(engine.handle_together(*deliveries))


def test_each_is_committed_with_its_row_before_the_next_begins(engine: Engine, sql: SqlBackend, seen: list[str]) -> None:
    deliveries = [delivery(PAY, f"m{number}", order_id=str(number)) for number in range(3)]
    assert together(engine, *deliveries) == [Kind.STARTED] * 3
    assert rows(sql) == [("0", 1), ("1", 1), ("2", 1)]
    assert seen == ["begin", "commit"] * 3
    assert [message.task for message in engine.publisher.published] == ["receipt 0", "receipt 1", "receipt 2"]


def test_they_share_the_look_up_of_their_instances(engine: Engine, sql: SqlBackend) -> None:
    calls: list[list[str]] = []
    perform = sql.many

    def many(operations: Any) -> list[Any]:
        calls.append([type(each).__name__ for each in operations])
        return perform(operations)

    sql.many = many  # type: ignore[method-assign]
    together(engine, *(delivery(PAY, f"m{number}", order_id=str(number)) for number in range(3)))
    assert calls == [["Find"] * 3]


def test_messages_of_one_instance_follow_each_other(engine: Engine, sql: SqlBackend) -> None:
    deliveries = [delivery(PAY, f"m{number}", order_id="1", amount=number + 1) for number in range(3)]
    assert together(engine, *deliveries) == [Kind.STARTED, Kind.HANDLED, Kind.HANDLED]
    assert rows(sql) == [("1", 1), ("1", 2), ("1", 3)]
    assert engine.data("1")["total"] == 6


def test_one_that_fails_leaves_no_row_and_is_handled_alone(engine: Engine, sql: SqlBackend) -> None:
    deliveries = [delivery(PAY, f"m{number}", order_id=str(number), amount=number % 2) for number in range(4)]
    assert together(engine, *deliveries) == [None, Kind.STARTED, None, Kind.STARTED]
    assert rows(sql) == [("1", 1), ("3", 1)]


def test_one_that_meets_a_conflict_runs_again_in_the_batch(engine: Engine, sql: SqlBackend) -> None:
    engine.handle(PAY, order_id="1")
    rival, backend = Engine(engine.backend), engine.services.backend
    rivals = [lambda: rival.handle(NOTE, order_id="1")]
    begin = backend.shared.open  # type: ignore[union-attr]

    def open_after_a_rival(kind: object) -> Any:
        if rivals:
            rivals.pop()()
        return begin(kind)

    backend.shared.open = open_after_a_rival  # type: ignore[union-attr, method-assign]
    assert together(engine, delivery(PAY, "m1", order_id="1", amount=5), delivery(PAY, "m2", order_id="2")) == [
        Kind.HANDLED,
        Kind.STARTED,
    ]
    assert rows(sql) == [("1", 1), ("2", 1), ("1", 5)]
    assert (engine.data("1")["total"], engine.data("1")["note"]) == (6, "noted")


def test_others_are_committed_together_beside_them(engine: Engine, sql: SqlBackend) -> None:
    for order_id in "12":
        engine.handle(PAY, order_id=order_id)
    deliveries = [delivery(NOTE, "m1", order_id="1"), delivery(PAY, "m2", order_id="3"), delivery(NOTE, "m3", order_id="2")]
    assert together(engine, *deliveries) == [Kind.HANDLED, Kind.STARTED, Kind.HANDLED]
    assert rows(sql) == [("1", 1), ("2", 1), ("3", 1)]


def test_one_that_was_handled_before_is_left_without_a_row(engine: Engine, sql: SqlBackend) -> None:
    engine.handle(PAY, id="m1", order_id="1")
    assert together(engine, delivery(PAY, "m1", order_id="1"), delivery(PAY, "m2", order_id="2")) == [None, Kind.STARTED]
    assert rows(sql) == [("1", 1), ("2", 1)]


def test_a_time_limit_undoes_the_one_that_it_strikes(engine: Engine, sql: SqlBackend, seen: list[str]) -> None:
    def strike(connection: Any, cursor: Any, statement: str, *_: object) -> None:
        if len(seen) == 3 and statement.startswith("INSERT"):  # in the handler of the second one
            raise TimeLimit

    event.listen(sql.shared._engine, "before_cursor_execute", strike)
    messages = [BatchedMessage(delivery(PAY, f"m{number}", order_id=str(number)), nullcontext) for number in range(3)]
    batch = patient(Batch(engine.services, messages, (TimeLimit,)))
    with pytest.raises(TimeLimit):
        batch.handle()
    assert kinds(batch.outcomes) == [None, None, None]
    assert rows(sql) == [("0", 1)]  # its repeat finds that
