"""What workers answer, and which of them are the app's."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from celery import Celery, shared_task

from celery_sagas import Saga
from celery_sagas.operate.doctor.asking import code_of, read_workers
from celery_sagas.settings import Settings, read_settings
from celery_sagas.worker.process import control

Answers = dict[str, dict[str, Any]]
QUEUE = "shop-steps"


@pytest.fixture
def shop(app: Celery) -> Celery:
    """An app with a saga that asks two participants, of which it knows one; under a prefix."""
    app.conf.saga_prefix = "shop"
    app.conf.task_default_queue = QUEUE
    app.conf.task_routes = {"shop.pay": {"queue": "pay"}}

    @shared_task(name="shop.pay", acks_late=True)
    def pay() -> None: ...

    class Order(Saga, correlate_by="order_id", schema_version=2):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str) -> None:
        order.send(pay.si(), then=paid)
        order.send(app.signature("elsewhere.work"), then=paid)

    @Order.handles
    def paid(order: Order) -> None: ...

    app.finalize()
    return app


@pytest.fixture
def answer(shop: Celery, monkeypatch: pytest.MonkeyPatch) -> Callable[[Answers], list[tuple[str, Any]]]:
    """Have workers answer: by command, and by worker. Returns a list of the questions, each with those it went to."""

    def answering(answers: Answers) -> list[tuple[str, Any]]:
        asked: list[tuple[str, Any]] = []

        def broadcast(command: str, destination: Sequence[str] | None = None, **options: Any) -> list[dict[str, Any]]:
            assert options["reply"]
            asked.append((command, destination))
            found = answers.get(command, {})
            return [{name: each} for name, each in found.items() if destination is None or name in destination]

        monkeypatch.setattr(shop.control, "broadcast", broadcast)
        return asked

    return answering


def code(**others: Any) -> dict[str, Any]:
    """Return what a worker of this app says of its code."""
    return {**control.code_here(), "prefix": "shop", "time": time.time(), **others}


def swept(**others: Any) -> dict[str, Any]:
    """Return what the relay of a worker says that has just swept."""
    last = {"ended_at": time.time(), "unknown": {}}
    return {"running": True, "last": last, "last_error": "", "trouble": None, "other_backends": [], **others}


def test_worker_that_is_well(shop: Celery, answer: Any) -> None:
    queues = {"w1": [{"name": QUEUE}], "other": [{"name": "pay"}]}
    asked = answer({"sagas_code": {"w1": code()}, "sagas_relay": {"w1": swept()}, "active_queues": queues})
    facts = read_workers(shop, read_settings(shop.conf))
    [worker] = facts.workers
    assert (worker.name, worker.code) == ("w1", facts.here)
    assert -60_000 < worker.ahead_ms <= 0  # it has answered before it was asked
    assert worker.relay is not None
    assert (worker.relay.is_running, worker.relay.error, worker.relay.unknown) == (True, "", ())
    assert 0 <= (worker.relay.swept_ms or 0) < 60_000
    assert facts.consumed == {QUEUE, "pay"}
    assert dict(facts.wanted) == {QUEUE: ["order.place", "order.paid"], "pay": ["shop.pay"]}
    assert asked == [("sagas_code", None), ("sagas_relay", ["w1"]), ("active_queues", None)]


def test_workers_of_others(shop: Celery, answer: Any) -> None:
    """Another prefix, other sagas, a release that does not know the question, and nonsense: they are asked no more."""
    others = {"p": code(prefix="other"), "s": code(sagas={"parcel": {}}), "o": {"error": "KeyError('sagas_code')"}, "n": 3}
    asked = answer({"sagas_code": others})
    facts = read_workers(shop, read_settings(shop.conf))
    assert (list(facts.workers), facts.others) == ([], 4)
    assert asked == [("sagas_code", None)]


def test_worker_with_another_clock(shop: Celery, answer: Any) -> None:
    """The age of its last sweep is by its own clock."""
    relay = swept(last={"ended_at": time.time() + 3595, "unknown": {}})
    answer({"sagas_code": {"w1": code(time=time.time() + 3600)}, "sagas_relay": {"w1": relay}})
    [worker] = read_workers(shop, read_settings(shop.conf)).workers
    assert 3_500_000 < worker.ahead_ms <= 3_600_000
    assert worker.relay is not None
    assert 0 < (worker.relay.swept_ms or 0) < 60_000


def test_relays_of_several_backends(shop: Celery, answer: Any) -> None:
    """The one that has swept the longest time ago counts; steps that any of them does not know."""
    other = {"last": {"ended_at": time.time() - 100, "unknown": {"order.gone": 2}}, "trouble": {}, "last_error": "a"}
    troubled = {"last": {"ended_at": time.time(), "unknown": {"order.lost": 1}}, "trouble": {"error": "b"}, "last_error": "b"}
    answer({"sagas_code": {"w1": code()}, "sagas_relay": {"w1": swept(other_backends=[other, troubled, {"last": None}])}})
    [worker] = read_workers(shop, read_settings(shop.conf)).workers
    assert worker.relay is not None
    assert (worker.relay.swept_ms or 0) >= 99_000
    assert worker.relay.error == "b"
    assert worker.relay.unknown == ("order.gone", "order.lost")


@pytest.mark.parametrize("relay", [{}, None, "nonsense", {"error": "it is busy"}])
def test_worker_that_says_nothing_of_its_relay(shop: Celery, answer: Any, relay: Any) -> None:
    answer({"sagas_code": {"w1": code()}, "sagas_relay": {"w1": relay}, "active_queues": {"w1": "nonsense"}})
    facts = read_workers(shop, read_settings(shop.conf))
    assert [worker.relay for worker in facts.workers] == [None]
    assert facts.consumed == frozenset()


def test_relay_that_has_not_swept_yet(shop: Celery, answer: Any) -> None:
    answer({"sagas_code": {"w1": code()}, "sagas_relay": {"w1": swept(last=None)}})
    [worker] = read_workers(shop, read_settings(shop.conf)).workers
    assert worker.relay is not None
    assert (worker.relay.is_running, worker.relay.swept_ms) == (True, None)


def test_broker_that_passes_on_no_questions(shop: Celery, answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as SQS."""
    asked = answer({})
    transport = type(shop.connection_for_write().transport)
    monkeypatch.setattr(transport, "implements", transport.implements.extend(exchange_type=frozenset({"direct"})))
    facts = read_workers(shop, Settings(relay=False, relay_interval=20))
    assert (facts.can_be_asked, facts.has_relays, facts.interval_ms) == (False, False, 20_000)
    assert asked == []


def test_code_that_is_nonsense() -> None:
    assert code_of({"sagas": {"a": 3, "b": {"schema_version": "x", "steps": 1}}}).schema_versions == {"a": 0, "b": 0}
