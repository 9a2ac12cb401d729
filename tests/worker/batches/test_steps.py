"""Steps in batches: each message is handled as its task would handle it, or is left to its task."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, Task, current_task, signals
from celery.exceptions import SoftTimeLimitExceeded
from celery.utils.saferepr import saferepr
from celery.worker.request import Request as CeleryRequest

from celery_sagas import Saga
from celery_sagas import signals as saga_signals
from celery_sagas.engine import waves
from celery_sagas.errors import StoreUnavailable
from celery_sagas.settings import Settings
from celery_sagas.worker.batches import steps
from celery_sagas.worker.batches.consumer import Settled
from celery_sagas.worker.batches.steps import StepBatches, consumer_for, handle_together
from celery_sagas.worker.headers import MESSAGE_ID
from tests.apps import NewApp, Worker, backend_of, interposed
from tests.waiting import DEADLINE_S
from tests.worker.consumers import Consumer, Request

Shop = Any


@pytest.fixture
def shop(app: Celery, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A saga, its steps, and what its handlers have seen."""
    monkeypatch.setattr(waves, "BATCH_S", DEADLINE_S)  # however busy the machine is
    seen: list[Any] = []

    class Order(Saga, correlate_by="order_id"):
        order_id: str
        total: int = 0

    @Order.starts
    def place(order: Order, order_id: str, total: int = 1) -> None:
        if total < 0:
            raise ValueError("a negative total")
        order.total += total
        order.send(told.s(order_id))

    @Order.handles
    def finish(order: Order, order_id: str) -> None:
        order.complete()

    @Order.starts
    def read(order: Order, order_id: str) -> str:
        return "long " * 1_000

    @Order.starts(bind=True)
    def look(task: Any, order: Order, order_id: str) -> None:
        seen.append((task.request.id, current_task.request.id, current_task.name, task.request.args, task.request.kwargs))

    @app.task(name="told")
    def told(order_id: str) -> None:
        """Do nothing."""

    app.finalize()
    return SimpleNamespace(app=app, order=Order, seen=seen)


def message(shop: Shop, number: int, task: str = "order.place", /, **kwargs: Any) -> dict[str, Any]:
    """Describe a message as a worker's request does."""
    headers = kwargs.pop("headers", {})
    given = {"args": [], "kwargs": {"order_id": str(number), **kwargs}}
    return {"task": task, "id": f"m{number}", "retries": 0, "delivery_info": {"redelivered": False}, **given, **headers}


def totals(shop: Shop, *keys: str) -> list[int | None]:
    found = [shop.order.find(key) for key in keys]
    return [order and order.total for order in found]


def test_messages_are_handled_together(shop: Shop) -> None:
    settled = handle_together([message(shop, number) for number in range(3)])
    assert settled.left == []
    assert not settled.is_slow
    assert totals(shop, "0", "1", "2") == [1, 1, 1]
    waiting = Worker(shop.app).waiting()
    assert sorted(delivered.args for delivered in waiting) == [["0"], ["1"], ["2"]]


@pytest.mark.parametrize(
    "bad",
    [{"total": -1}, {"total": "many"}, {"surplus": 1}, {"headers": {MESSAGE_ID: "\n"}}, {"headers": {"saga_address": 1}}],
    ids=["handler", "type", "surplus", "id", "address"],
)
def test_a_message_that_cannot_be_handled_is_left_alone(shop: Shop, bad: dict[str, Any]) -> None:
    settled = handle_together([message(shop, 0), message(shop, 1, **bad), message(shop, 2)])
    assert settled.left == [1]
    assert totals(shop, "0", "1", "2") == [1, None, 1]
    assert backend_of(shop.app).dead.count() == 0, "its task makes a dead letter of it"


def test_a_message_that_was_handled_is_left_to_its_task(shop: Shop) -> None:
    assert handle_together([message(shop, 1)]).left == []
    assert handle_together([message(shop, 1), message(shop, 2)]).left == [0]
    assert totals(shop, "1", "2") == [1, 1]


def test_steps_of_several_tasks_share_a_batch(shop: Shop) -> None:
    handle_together([message(shop, 1), message(shop, 2)])
    both = [message(shop, 1, "order.finish") | {"id": "m3"}, message(shop, 2) | {"id": "m4"}]
    assert handle_together(both).left == []
    assert totals(shop, "1", "2") == [None, 2]


def test_a_handler_runs_in_its_task_with_its_request(shop: Shop) -> None:
    handle_together([message(shop, 1, "order.look"), message(shop, 2, "order.look")])
    assert shop.seen == [
        ("m1", "m1", "order.look", [], {"order_id": "1"}),
        ("m2", "m2", "order.look", [], {"order_id": "2"}),
    ]
    assert not current_task


@contextmanager
def received(*wanted: str) -> Iterator[list[tuple[str, Any]]]:
    """Collect Celery's signals."""
    seen: list[tuple[str, Any]] = []
    receivers: list[Callable[..., None]] = []
    for name in wanted:

        def note(sender: Any = None, name: str = name, **about: Any) -> None:
            running = current_task.request.id if current_task else None
            seen.append((name, about.get("task_id") or running))

        receivers.append(note)
        getattr(signals, name).connect(note)
    try:
        yield seen
    finally:
        for name, receiver in zip(wanted, receivers, strict=True):
            getattr(signals, name).disconnect(receiver)


def test_signals_of_a_task_are_sent_for_each_message(shop: Shop) -> None:
    with received("task_prerun", "task_postrun", "task_success") as seen:
        handle_together([message(shop, 1), message(shop, 2), message(shop, 3, "order.finish")])
    assert sorted(seen, key=lambda each: each[1]) == [
        *(("task_prerun", "m1"), ("task_postrun", "m1"), ("task_success", "m1")),
        *(("task_prerun", "m2"), ("task_postrun", "m2"), ("task_success", "m2")),
        *(("task_prerun", "m3"), ("task_postrun", "m3"), ("task_success", "m3")),
    ]


def test_runs_are_never_nested(shop: Shop) -> None:
    """A receiver may keep what is running in one place."""
    with received("task_prerun", "task_postrun") as seen:
        handle_together([message(shop, 1), message(shop, 2)])
    assert seen == [("task_prerun", "m1"), ("task_postrun", "m1"), ("task_prerun", "m2"), ("task_postrun", "m2")]


def test_a_failed_run_is_no_success(shop: Shop) -> None:
    with received("task_prerun", "task_postrun", "task_success", "task_failure") as seen:
        handle_together([message(shop, 1, total=-1)])
    assert seen == [("task_prerun", "m1"), ("task_postrun", "m1")]


def test_signals_of_sagas_are_sent(shop: Shop) -> None:
    started: list[str] = []

    def note(sender: Any, outcome: Any, **_: Any) -> None:
        started.append(outcome.key)

    saga_signals.saga_started.connect(note)
    try:
        handle_together([message(shop, 1), message(shop, 2), message(shop, 1) | {"id": "m9"}])
    finally:
        saga_signals.saga_started.disconnect(note)
    assert started == ["1", "2"]


def test_an_error_in_the_report_on_a_message_affects_no_other(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[str] = []

    def conclude(task: Any, request: Any, *_: Any) -> None:
        if request.id == "m1":
            raise SoftTimeLimitExceeded
        reported.append(request.id)

    monkeypatch.setattr(steps, "conclude", conclude)
    assert handle_together([message(shop, number) for number in range(3)]).left == []
    assert reported == ["m0", "m2"]


def test_a_header_hides_nothing(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "celery.app.trace"):
        assert handle_together([message(shop, 1, headers={"get": 1, "shadow": "seen as"})]).left == []
    (line,) = [record.getMessage() for record in caplog.records if record.name == "celery.app.trace"]
    assert line.startswith("Task seen as[m1] succeeded in ")


def test_what_is_sent_belongs_to_the_context_of_its_handler(shop: Shop) -> None:
    """A receiver may put what it finds there into a message, such as a trace."""
    trace: ContextVar[str] = ContextVar("trace", default="none")
    seen: list[tuple[str, str, str]] = []

    def begin(task_id: str, **_: Any) -> None:
        trace.set(f"trace of {task_id}")

    def end(**_: Any) -> None:
        trace.set("none")

    def look(sender: str, body: Any, **_: Any) -> None:
        seen.append((body[0][0], trace.get(), current_task.request.id))

    wanted = {"task_prerun": begin, "task_postrun": end, "before_task_publish": look}
    for name, receiver in wanted.items():
        getattr(signals, name).connect(receiver)
    try:
        handle_together([message(shop, 1), message(shop, 2)])
    finally:
        for name, receiver in wanted.items():
            getattr(signals, name).disconnect(receiver)
    assert seen == [("1", "trace of m1", "m1"), ("2", "trace of m2", "m2")]
    assert trace.get() == "none"


def test_success_is_logged_as_by_celery(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "celery.app.trace"):
        handle_together([message(shop, 1)])
    (line,) = [record.getMessage() for record in caplog.records if record.name == "celery.app.trace"]
    assert line.startswith("Task order.place[m1] succeeded in ")


def test_a_long_result_is_cut_in_the_log_as_by_celery(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "celery.app.trace"):
        handle_together([message(shop, 1, "order.read")])
    (shown,) = [vars(record)["data"] for record in caplog.records if record.name == "celery.app.trace"]
    assert shown["return_value"] == saferepr("long " * 1_000, shop.app.tasks["order.read"].resultrepr_maxsize)
    assert len(shown["return_value"]) < 2_000


def test_a_retry_is_left_to_the_task(new_app: NewApp) -> None:
    """A retry publishes: it must not do so twice."""
    app = new_app()

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts(bind=True)
    def place(task: Any, order: Order, order_id: str, how: str) -> None:
        if how == "retry":
            raise task.retry(countdown=0)
        if how == "retry and go on":
            task.retry(countdown=0, throw=False)
        task.replace(place.s(order_id, "again"))

    app.finalize()
    for number, how in enumerate(("retry", "retry and go on", "replace")):
        assert handle_together([message(None, number, how=how)]).left == [0]
    assert Worker(app).waiting() == []


def test_everything_is_left_if_the_store_is_away(shop: Shop) -> None:
    store = interposed(shop.app)

    def fail() -> None:
        raise StoreUnavailable("store", "it is away")

    store.once_before("find", fail, fail)
    assert handle_together([message(shop, 1), message(shop, 2)]).left == [0, 1]


@pytest.mark.parametrize("error", [SoftTimeLimitExceeded(), RuntimeError("a bug")], ids=repr)
def test_an_interruption_leaves_what_is_not_committed(shop: Shop, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    calls: list[int] = []
    many = backend_of(shop.app).many

    def interrupted(operations: Any) -> Any:
        calls.append(len(operations))
        if len(calls) == 4:
            raise error
        return many(operations)

    monkeypatch.setattr(backend_of(shop.app), "many", interrupted)
    settled = handle_together([message(shop, 1), message(shop, 1) | {"id": "m2"}, message(shop, 1) | {"id": "m3"}])
    assert list(settled.left) == [1, 2]
    assert totals(shop, "1") == [1]


def test_a_slow_batch_is_cut(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waves, "BATCH_S", -1.0)
    monkeypatch.setattr(waves, "SLOW_S", 0.0)
    settled = handle_together([message(shop, 1), message(shop, 2)])
    assert (settled.left, settled.is_slow) == ([1], True)


class TestEligibility:
    """Messages that a batch cannot handle as their task would run as tasks."""

    @pytest.mark.parametrize(
        "change",
        [
            {"time_limits": (10, None)},
            {"time_limits": (None, 5)},
            {"delivery_info": {"redelivered": True}},
            {"request_dict": {"retries": 1}},
            {"_payload": ([], {}, {"callbacks": [{"task": "next"}]})},
            {"_payload": ([], {}, {"chord": {"task": "next"}})},
        ],
        ids=str,
    )
    def test_message(self, change: dict[str, Any]) -> None:
        consumer, request = Consumer(), Request(0)
        vars(request).update(change)
        StepBatches(consumer, 50).on_task_request(request)
        assert consumer.alone == [request]

    def test_message_with_the_time_limits_of_the_app(self) -> None:
        """Celery 5.7 gives them to each task, and to each message."""
        consumer, request = Consumer(), Request(0)
        request.time_limits = (60, 30)
        request.task.app.conf.update(task_time_limit=60, task_soft_time_limit=30)
        StepBatches(consumer, 50).on_task_request(request)
        assert (consumer.alone, consumer.sizes) == ([], [1])

    def test_message_whose_result_is_stored(self) -> None:
        consumer, request = Consumer(), Request(0)
        request.ignore_result = request.task.ignore_result = False
        StepBatches(consumer, 50).on_task_request(request)
        assert consumer.alone == [request]

    def test_any_other_message(self) -> None:
        consumer = Consumer()
        StepBatches(consumer, 50).on_task_request(Request(0))
        assert (consumer.alone, consumer.sizes) == ([], [1])

    class Hooked(Task):
        def before_start(self, *_: Any) -> None:
            """Do something."""

    class Called(Task):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs)

    class OwnRequest(CeleryRequest):
        pass

    @pytest.mark.parametrize(
        "options",
        [
            {"batch": 1},
            {"time_limit": 60},
            {"soft_time_limit": 60},
            {"ignore_result": False},
            {"acks_late": False},
            {"base": Hooked},
            {"base": Called},
            {"Request": OwnRequest},
        ],
        ids=str,
    )
    def test_step(self, new_app: NewApp, options: dict[str, Any]) -> None:
        app = new_app()
        consumer = Consumer()
        assert consumer_for(_step(app, **options), consumer) is consumer

    @pytest.mark.parametrize("settings", [{}, {"task_time_limit": 60, "task_soft_time_limit": 30}], ids=str)
    def test_any_other_step(self, new_app: NewApp, settings: dict[str, Any]) -> None:
        app = new_app(**settings)
        consumer = Consumer()
        assert isinstance(consumer_for(_step(app), consumer), StepBatches)

    def test_setting_turns_batches_off(self, new_app: NewApp) -> None:
        app = new_app(saga_batch=1)
        consumer = Consumer()
        assert consumer_for(_step(app), consumer) is consumer
        assert isinstance(consumer_for(_step(app, batch=7), consumer), StepBatches)


def _step(app: Celery, **options: Any) -> Any:
    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts(**options)
    def place(order: Order, order_id: str) -> None: ...

    app.finalize()
    return app.tasks["order.place"]


def test_steps_share_a_consumer_while_it_is_connected(new_app: NewApp) -> None:
    app = new_app()
    step, consumer = _step(app), Consumer()
    first = consumer_for(step, consumer)
    assert consumer_for(step, consumer) is first
    assert first.most == Settings().batch
    consumer.restart_count += 1
    assert consumer_for(step, consumer) is not first


def test_settled_is_what_a_process_returns() -> None:
    """It is pickled on its way to the main process."""
    assert Settled([1], 0.5, is_slow=True) == Settled(left=[1], seconds=0.5, is_slow=True)
