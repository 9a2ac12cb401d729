"""``SagaHarness.replay``: a history against today's code."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pytest
from celery import Celery
from pydantic import Field

from celery_sagas import Failure, Gathered, Message, Saga, publish
from celery_sagas.core.registry import registry
from celery_sagas.engine.history import history_of
from celery_sagas.testing.harness.harness import SagaHarness
from celery_sagas.testing.harness.timeline import ScenarioError
from celery_sagas.worker.runtime import runtime_of
from tests.apps import app, definitions, new_app

__all__ = ["app", "definitions", "new_app"]


class Card(Message):
    """A card."""

    number: str = Field(repr=False)
    owner: str


class Shop(NamedTuple):
    """The steps of a version of the code."""

    order: Any
    place: Any
    end: Any
    charge: Any


class Changes(NamedTuple):
    """What another version of the code does otherwise."""

    sends_more: bool = False
    schedules: bool = True
    receipt: Callable[[str], str] = str
    counts_twice: bool = False
    publishes: bool = False


def task(app: Celery, name: str, function: Callable[[str], object]) -> Any:
    def run(text: str) -> object:
        return function(text)

    return app.tasks.get(name) or app.task(name=name, acks_late=True)(run)


def define(app: Celery, changes: Changes) -> Shop:
    registry.sagas.clear()
    registry.steps.clear()

    charge = task(app, "charge", lambda order_id: f"r-{order_id}")
    price, mail = task(app, "price", len), task(app, "mail", str)

    class Order(Saga, correlate_by="order_id", history="messages"):
        order_id: str
        card: Card | None = None
        receipt: str = ""
        placed: str = ""
        reminded: int = 0
        prices: int = 0

    @Order.starts
    def place(order: Order, order_id: str, card: Card, pin: Annotated[str, Field(repr=False)] = "") -> None:
        order.card, order.placed = card, order.saga.now.isoformat()
        if changes.sends_more:
            order.send(mail.s("placed"))
        if changes.publishes:
            mail.delay("placed")
            publish(Card(number="1", owner="me"))
        if changes.schedules:
            order.schedule(remind, after=timedelta(hours=1))
        order.send(charge.s(order_id), then=charged, otherwise=failed, within=timedelta(minutes=5))

    @Order.handles
    def charged(order: Order, receipt: str) -> None:
        order.receipt = changes.receipt(receipt)
        order.gather([price.s("a"), price.s("bc")], then=priced)

    @Order.handles
    def failed(order: Order, failure: Failure) -> None:
        order.receipt = failure.kind

    @Order.handles
    def priced(order: Order, prices: Gathered[int]) -> None:
        order.prices = sum(prices.values)

    @Order.handles
    def remind(order: Order) -> None:
        order.reminded += 2 if changes.counts_twice else 1
        order.send(mail.s("reminder"))

    @Order.handles
    def end(order: Order, order_id: str) -> None:
        order.complete()

    return Shop(Order, place, end, charge)


@pytest.fixture
def path(app: Celery, tmp_path: Path) -> Path:
    """A history of an order that has seen everything."""
    shop = define(app, Changes())
    with SagaHarness(app) as harness:
        harness.send(shop.place, "42", card=Card(number="visa-4242", owner="me"), pin="secret-pin")
        harness.run()
        harness.advance(timedelta(hours=2))
        harness.assert_state(shop.order, "42", receipt="r-42", prices=3, reminded=1)
        harness.send(shop.end, "42")
        harness.run()
        harness.assert_completed(shop.order, "42")
        return written(app, shop, tmp_path / "42.json")


def written(app: Celery, shop: Shop, path: Path) -> Path:
    path.write_text(history_of(runtime_of(app).backend.journal, shop.order.__saga__, "42").to_text())
    return path


def test_the_same_code_does_the_same(app: Celery, path: Path) -> None:
    assert "visa-4242" not in path.read_text()
    assert "secret-pin" not in path.read_text()
    with SagaHarness(app) as harness:
        assert harness.replay(path) is None
        assert (harness.sent, harness.timeouts) == ([], [])


def test_code_that_sends_more_does_the_same(app: Celery, path: Path) -> None:
    """The ids of what it sends are others: timeouts and answers are found by what they are."""
    define(app, Changes(sends_more=True))
    with SagaHarness(app) as harness:
        assert harness.replay(path) is None


def test_code_that_asks_the_same_task_for_something_else_before(app: Celery, tmp_path: Path) -> None:
    """Requests to one task are told apart by their steps, timeouts of one step by their names."""

    def open_shop(*, also: bool) -> tuple[Any, Any]:
        registry.sagas.clear()
        registry.steps.clear()
        price = task(app, "price", len)

        class Order(Saga, correlate_by="order_id", history="messages"):
            order_id: str
            goods: int = 0
            rung: list[str] = []

        @Order.starts(bind=True)
        def place(self: Any, order: Order, order_id: str) -> None:
            order.rung.append(self.request.id + order.saga.message.id)
            if also:
                order.send(price.s("shipping"), then=shipping)
                order.schedule(ring, after=timedelta(hours=9), name="late")
            order.send(price.s("goods!"), then=goods)
            order.schedule(ring, after=timedelta(hours=1), name="soon")

        @Order.handles
        def shipping(order: Order, price: int) -> None: ...

        @Order.handles
        def goods(order: Order, price: int) -> None:
            order.goods = price

        @Order.handles
        def ring(order: Order) -> None:
            order.rung.append(str(sorted(order.saga.timeouts)) if not also else "[]")

        return Order, place

    order, place = open_shop(also=False)
    with SagaHarness(app) as harness:
        harness.send(place, "42")
        harness.advance(timedelta(hours=2))
        history = tmp_path / "42.json"
        history.write_text(history_of(runtime_of(app).backend.journal, order.__saga__, "42").to_text())
    open_shop(also=True)
    with SagaHarness(app) as harness:
        replayed: Any = harness.replay(history)
        assert replayed.goods == 6
        assert len(replayed.rung) == 2


def test_a_difference_is_shown(app: Celery, path: Path) -> None:
    define(app, Changes(receipt=str.upper))
    with SagaHarness(app) as harness, pytest.raises(ScenarioError) as caught:
        harness.replay(path)
    assert str(caught.value).splitlines() == [
        "order '42' differs at message 2 (order.charged, 2040-01-01 00:00:00 UTC): another state: receipt",
        '  receipt is "R-42" today',
        "  hidden, so that other values stood in: card of order.place, pin of order.place",
    ]


def test_a_timeout_shows_a_difference_at_its_time(app: Celery, path: Path) -> None:
    define(app, Changes(counts_twice=True))
    with SagaHarness(app) as harness, pytest.raises(ScenarioError, match=r"\(order\.remind, 2040-01-01 01:00:00 UTC\).*reminded"):
        harness.replay(path)


def test_a_timeout_that_is_no_longer_scheduled_is_a_difference(app: Celery, path: Path) -> None:
    define(app, Changes(schedules=False))
    with (
        SagaHarness(app) as harness,
        pytest.raises(ScenarioError, match=r"it was handled, and today it is dropped \(cancelled\)"),
    ):
        harness.replay(path)


@pytest.mark.parametrize("is_eager", [False, True])
def test_nothing_is_published(app: Celery, path: Path, is_eager: bool) -> None:
    define(app, Changes(publishes=True))
    app.conf.saga_direct_publish = "allow"
    app.conf.task_always_eager = is_eager
    with SagaHarness(app) as harness:
        assert harness.replay(path) is None
        assert harness.sent == []
    assert app.conf.task_always_eager is is_eager


def test_the_instance_that_lives_on_is_returned(app: Celery, tmp_path: Path) -> None:
    shop = define(app, Changes())
    with SagaHarness(app) as harness:
        harness.fail(shop.charge, ValueError("no money"))
        harness.send(shop.place, "42", card=Card(number="visa-4242", owner="me"))
        harness.run()
        path = written(app, shop, tmp_path / "42.json")
    with SagaHarness(app) as harness:
        order: Any = harness.replay(str(path))
        assert (order.receipt, order.card.owner) == ("error", "me")
        assert harness.state(shop.order, "42") is None


def test_a_late_answer_is_late_again(app: Celery, tmp_path: Path) -> None:
    shop = define(app, Changes())
    with SagaHarness(app) as harness:
        harness.hold("order.charged")
        harness.send(shop.place, "42", card=Card(number="visa-4242", owner="me"))
        harness.run()
        harness.advance(timedelta(minutes=10))
        harness.assert_state(shop.order, "42", receipt="deadline")
        harness.deliver("order.charged")
        harness.run()
        harness.assert_state(shop.order, "42", receipt="r-42")
        path = written(app, shop, tmp_path / "42.json")
    assert '"late": true' in path.read_text()
    with SagaHarness(app) as harness:
        assert harness.replay(path) is not None
        define(app, Changes(receipt=str.upper))
        with pytest.raises(ScenarioError, match=r"differs at message 3 \(order\.charged"):
            harness.replay(path)


def test_a_saga_and_steps_that_were_renamed_are_replayed(app: Celery, tmp_path: Path) -> None:
    class Buying(Saga, correlate_by="key", history="messages"):
        key: str
        count: int = 0

    @Buying.starts
    def begin(buying: Buying, key: str) -> None:
        buying.schedule(remind, after=timedelta(hours=1), name="reminder")

    @Buying.handles
    def remind(buying: Buying) -> None:
        buying.count += 1

    with SagaHarness(app) as harness:
        harness.send(begin, "1")
        harness.advance(timedelta(hours=2))
        path = tmp_path / "1.json"
        path.write_text(history_of(runtime_of(app).backend.journal, Buying.__saga__, "1").to_text())  # type: ignore[arg-type]
    registry.sagas.clear()
    registry.steps.clear()

    class Order(Saga, correlate_by="key", formerly="buying"):
        key: str
        count: int = 0

    @Order.starts(formerly="buying.begin")
    def place(order: Order, key: str) -> None:
        order.schedule(nudge, after=timedelta(hours=1))

    @Order.handles(formerly="buying.remind")
    def nudge(order: Order) -> None:
        order.count += 1

    with SagaHarness(app) as harness:
        order: Any = harness.replay(path)
        assert (order.count, order.saga.name, order.saga.version) == (1, "order", 2)


def test_the_time_of_a_step_is_one(app: Celery) -> None:
    """So that a replay sees the same one, however often a step asks."""

    class Clocked(Saga, correlate_by="key", history="messages"):
        key: str
        times: list[str] = []

    @Clocked.starts
    def begin(clocked: Clocked, key: str) -> None:
        clocked.times = [clocked.saga.now.isoformat() for _ in range(3)]
        assert clocked.saga.message.at == clocked.saga.now

    app.conf.task_always_eager = True
    runtime_of(app).prepare(processes=1)
    begin.delay("1")
    found = Clocked.find("1")
    assert found is not None
    assert len(set(found.times)) == 1
    history = history_of(runtime_of(app).backend.journal, Clocked.__saga__, "1")  # type: ignore[arg-type]
    assert history.messages[0].now.isoformat() == found.times[0]
