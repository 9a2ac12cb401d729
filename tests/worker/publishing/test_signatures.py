"""Which messages are made of their parts, and which Celery's ``apply_async`` publishes, with all that anybody has added to it."""

import functools
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
from celery import Celery, Task
from celery.canvas import Signature

from celery_sagas import Batch, Saga, aggregator
from celery_sagas.errors import PublishError
from celery_sagas.worker.publishing import open_publisher, signatures
from celery_sagas.worker.publishing.publisher import ConfirmedPublisher
from celery_sagas.worker.serialization import serialized
from tests.apps import NewApp, Worker


@dataclass
class Row:
    """A row of the outbox."""

    payload: str
    id: str = "row"
    message_id: str = "m1"
    task: str = "plain"


@pytest.fixture
def made_of_parts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the messages that are made of their parts."""
    made: list[str] = []
    publish_plain = signatures._publish_plain

    def note(app: Any, task: Any, sent: Any, *args: Any) -> bool:
        made.append(sent.options["task_id"])
        return publish_plain(app, task, sent, *args)

    monkeypatch.setattr(signatures, "_publish_plain", note)
    return made


@pytest.fixture
def publisher(app: Celery) -> Iterator[ConfirmedPublisher]:
    with closing(open_publisher(app)) as made:
        assert isinstance(made, ConfirmedPublisher)
        yield made


def plain_task(app: Celery, **options: Any) -> Any:
    """Register a task."""

    def plain(*args: Any, **kwargs: Any) -> None: ...

    app.task(plain, name="plain", **options)
    app.finalize()
    return app.tasks["plain"]


class Traced:
    """What a tool that traces tasks puts into the place of a function: it has the name and the module of the other."""

    def __init__(self, function: Any) -> None:
        self.calls = 0

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return function(*args, **kwargs)

        self.wrapper = wrapper


def test_rows_of_plain_tasks_and_steps(app: Celery, publisher: ConfirmedPublisher, made_of_parts: list[str]) -> None:
    """Whether they are published alone or with others."""
    plain_task(app)

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str) -> None: ...

    ids = iter(["m1", "m2"])
    for sent in (app.signature("plain", args=[1]), place.s("42")):
        publisher.publish(Row(serialized(app, sent, lambda: next(ids), 10_000).payload))

    assert made_of_parts == ["m1", "m2"]
    first, second = Worker(app).waiting()
    assert (first.id, first.task, list(first.args)) == ("m1", "plain", [1])
    assert (second.id, second.headers["saga_step"], list(second.args)) == ("m2", True, ["42"])


def test_items_of_aggregators(app: Celery, publisher: ConfirmedPublisher, made_of_parts: list[str]) -> None:
    @aggregator(size=2, within=60)
    def collect(batch: Batch[int]) -> None: ...

    app.finalize()
    publisher.publish_signature(collect.s(1).set(task_id="m1"))

    assert made_of_parts == []
    assert Worker(app).waiting()[0].headers["saga_aggregator"] == collect.name


def test_apply_async_of_a_tasks_class(app: Celery, publisher: ConfirmedPublisher, made_of_parts: list[str]) -> None:
    class Tenant(Task):  # type: ignore[type-arg]
        abstract = True

        def apply_async(self, *args: Any, **options: Any) -> Any:
            options["headers"] = {**(options.get("headers") or {}), "tenant": "t"}
            return super().apply_async(*args, **options)

    plain_task(app, base=Tenant)
    publisher.publish_signature(app.signature("plain", task_id="m1"))

    assert Worker(app).waiting()[0].headers["tenant"] == "t"
    assert made_of_parts == []


def test_apply_async_of_the_class_of_all_tasks(new_app: NewApp, made_of_parts: list[str]) -> None:
    """Steps have it, too."""

    class Tenant(Task):  # type: ignore[type-arg]
        def apply_async(self, *args: Any, **options: Any) -> Any:
            options["headers"] = {**(options.get("headers") or {}), "tenant": "t"}
            return super().apply_async(*args, **options)

    app = new_app(task_cls=Tenant)

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str) -> None: ...

    app.finalize()
    with closing(open_publisher(app)) as publisher:
        publisher.publish_signature(place.s("42").set(task_id="m1"))

    assert Worker(app).waiting()[0].headers["tenant"] == "t"
    assert made_of_parts == []


@pytest.mark.parametrize(
    ("owner", "name"), [(Task, "apply_async"), (Celery, "send_task"), (Signature, "apply_async")], ids=lambda value: str(value)
)
def test_tracer_may_come_and_go(
    app: Celery, publisher: ConfirmedPublisher, made_of_parts: list[str], monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    """It wraps a function of Celery's while messages are published, and calls it."""
    plain_task(app)
    traced = Traced(getattr(owner, name))
    publisher.publish_signature(app.signature("plain", task_id="m1"))
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, traced.wrapper)
        publisher.publish_signature(app.signature("plain", task_id="m2"))
    publisher.publish_signature(app.signature("plain", task_id="m3"))

    assert traced.calls == 1
    assert made_of_parts == ["m1", "m3"]
    assert [message.id for message in Worker(app).waiting()] == ["m1", "m2", "m3"]


@pytest.mark.parametrize("of_app", [False, True], ids=["of the task", "of the app"])
def test_function_of_one_task_or_app(
    app: Celery, publisher: ConfirmedPublisher, made_of_parts: list[str], monkeypatch: pytest.MonkeyPatch, of_app: bool
) -> None:
    """As a test puts it there."""
    task = plain_task(app)
    owner, name = (app, "send_task") if of_app else (task, "apply_async")
    traced = Traced(getattr(owner, name))
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, traced.wrapper)
        publisher.publish_signature(app.signature("plain", task_id="m1"))

    assert traced.calls == 1
    assert made_of_parts == []


def test_task_that_shows_another_name(app: Celery, publisher: ConfirmedPublisher, made_of_parts: list[str]) -> None:
    plain_task(app, shadow_name=lambda task, args, kwargs, options: f"plain {args[0]}")
    publisher.publish_signature(app.signature("plain", args=[1], task_id="m1"))

    assert Worker(app).waiting()[0].headers["shadow"] == "plain 1"
    assert made_of_parts == []


def test_form_of_an_app_that_encodes_messages_itself(
    app: Celery, publisher: ConfirmedPublisher, made_of_parts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_task(app)
    amqp: Any = app.amqp
    traced = Traced(amqp.as_task_v2)
    monkeypatch.setitem(amqp.task_protocols, 2, traced.wrapper)
    publisher.publish_signature(app.signature("plain", task_id="m1"))

    assert traced.calls == 1
    assert made_of_parts == []


def test_task_that_expires(app: Celery, publisher: ConfirmedPublisher, made_of_parts: list[str]) -> None:
    """The time counts from now."""
    plain_task(app, expires=600)
    publisher.publish_signature(app.signature("plain", task_id="m1"))

    assert Worker(app).waiting()[0].headers["expires"]
    assert made_of_parts == []


def test_task_that_is_not_registered(app: Celery, publisher: ConfirmedPublisher, made_of_parts: list[str]) -> None:
    publisher.publish_signature(app.signature("of another service", task_id="m1"))

    assert Worker(app).waiting()[0].task == "of another service"
    assert made_of_parts == []


def test_task_of_another_app(new_app: NewApp, made_of_parts: list[str]) -> None:
    """Its own app routes it."""
    other, app = new_app(), new_app()
    sent = plain_task(other).s().set(task_id="m1")
    with closing(open_publisher(app)) as publisher:
        publisher.publish_signature(sent)

    assert Worker(other).waiting()[0].id == "m1"
    assert made_of_parts == []


def refused(app: Celery, publisher: ConfirmedPublisher, **options: Any) -> BaseException | None:
    with pytest.raises(PublishError) as raised:
        publisher.publish_signature(app.signature("plain", task_id="m1", **options))
    assert not raised.value.connection
    return raised.value.__cause__


def test_arguments_that_a_task_does_not_take(app: Celery, publisher: ConfirmedPublisher) -> None:
    """Unless it takes them unseen, as Celery has it."""

    @app.task(name="plain")
    def plain(a: int) -> None: ...

    app.finalize()
    assert isinstance(refused(app, publisher, args=[1, 2]), TypeError)
    app.tasks["plain"].typing = False
    publisher.publish_signature(app.signature("plain", args=[1, 2], task_id="m1"))

    assert Worker(app).waiting()[0].args == [1, 2]


def test_soft_time_limit_above_the_hard_one(app: Celery, publisher: ConfirmedPublisher, made_of_parts: list[str]) -> None:
    plain_task(app, time_limit=1, soft_time_limit=2)

    assert isinstance(refused(app, publisher), ValueError)
    assert made_of_parts == []


def test_app_that_becomes_eager(app: Celery, publisher: ConfirmedPublisher, made_of_parts: list[str]) -> None:
    """The task runs, as any."""
    plain_task(app)
    app.conf.task_always_eager = True
    publisher.publish_signature(app.signature("plain", task_id="m1"))

    assert Worker(app).waiting() == []
    assert made_of_parts == []
