"""What Celery puts into a message, and whom it notifies: a message that this library makes of its parts is the same."""

import json
from base64 import b64decode
from collections.abc import Callable, Iterator
from copy import deepcopy
from datetime import UTC, datetime
from functools import partial
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import pytest
from celery import Celery, signals
from celery.app.task import Context
from celery.canvas import Signature
from celery.utils.saferepr import saferepr
from hypothesis import example, given
from hypothesis import strategies as st
from kombu import Connection, Exchange, Queue
from kombu.exceptions import OperationalError
from kombu.serialization import register, unregister

from celery_sagas import Saga
from celery_sagas.worker.celery_internals import RunningTask
from celery_sagas.worker.headers import PUBLICATION
from celery_sagas.worker.publishing import signatures
from celery_sagas.worker.publishing.signatures import publish
from tests.apps import NewApp
from tests.servers import unique

#: The same moment in each run, except in what is counted from now.
LATER = datetime(2100, 1, 1, tzinfo=UTC)
LINKED = {"task": "plain", "args": (), "kwargs": {}, "options": {}, "subtask_type": None, "immutable": False}
#: The queue to which a function routes messages.
ROUTED = unique("routed")
#: Parts of a message, and of an event, that are others each time, or that count from now.
CHANGING = frozenset({"delivery_tag", "expiration", "timestamp", "clock", "pid", PUBLICATION})

#: Options of a message that is made of its parts.
PLAIN: dict[str, dict[str, Any]] = {
    "none": {},
    "priority": {"priority": 5},
    "no priority": {"priority": None},
    "queue": {"queue": "other"},
    "exchange": {"exchange": "exchange", "routing_key": "key"},
    "exchange and type": {"exchange": "exchange", "routing_key": "key", "exchange_type": "direct"},
    "routing key": {"routing_key": "key"},
    "delivery mode": {"delivery_mode": 1},
    "serializer": {"serializer": "upside-down"},
    "compression": {"compression": "zlib"},
    "result": {"ignore_result": False},
    "no result": {"ignore_result": True},
    "time limits": {"time_limit": 20, "soft_time_limit": 10},
    "headers": {"headers": {"tenant": "t", "saga_cause": "c", "task": "named otherwise"}},
    "parents": {"root_id": "root", "parent_id": "parent"},
    "root": {"root_id": "root"},
    "shadow": {"shadow": "named otherwise"},
    "reply to": {"reply_to": "somebody"},
    "not mandatory": {"mandatory": False},
    "retries": {"retry": False, "retry_policy": {"max_retries": 7}},
    "timeouts": {"timeout": 3, "confirm_timeout": 3},
}
#: Options that Celery's own functions must read.
OTHERS: dict[str, dict[str, Any]] = {
    "countdown": {"countdown": 600},
    "eta": {"eta": LATER},
    "expires": {"expires": 600},
    "expires then": {"expires": LATER},
    "stamps": {"stamped_headers": ["tenant"], "tenant": "t"},
    "link": {"link": [LINKED]},
    "link_error": {"link_error": [LINKED]},
    "chain": {"chain": [LINKED]},
    "group": {"group_id": "group", "group_index": 3},
    "chord": {"chord": LINKED},
    "declared": {"declare": []},
    "property": {"message_id": "m"},
    "nesting": {"replaced_task_nesting": 2},
    "no id": {"task_id": None},
}


def route(name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **_: Any) -> dict[str, Any]:
    """Route messages by what they say, and by their tasks."""
    return {"queue": ROUTED, "priority": len(args) + len(kwargs) + (0 if task is None else 3)}


#: What an app may set.
SETTINGS: dict[str, dict[str, Any]] = {
    "route by name": {"task_routes": {"plain": {"queue": "other", "priority": 3}}},
    "route by pattern": {"task_routes": {"*": "other"}},
    "route by function": {"task_routes": (route,)},
    "default priority": {"task_default_priority": 4},
    "transient": {"task_default_delivery_mode": "transient"},
    "compression": {"task_compression": "zlib"},
    "serializer": {"task_serializer": "upside-down"},
    "time limits": {"task_time_limit": 30, "task_soft_time_limit": 20},
    "events": {"task_send_sent_event": True},
    "retries": {"task_publish_retry": False, "task_publish_retry_policy": {"max_retries": 9}},
    "topic": {"task_queues": [Queue("other", Exchange("exchange", type="topic", delivery_mode=1), routing_key="key")]},
    "old protocol": {"task_protocol": 1},
    "most priority": {"task_queue_max_priority": 9},
    "priority of parents": {"task_inherit_parent_priority": True},
    "no results": {"task_ignore_result": True},
}
ARGUMENTS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "none": ((), {}),
    "positional": ((1, "it's", None), {}),
    "by name": ((), {"a": 1.5, "b": True, "c": "é"}),
    "nested": (([1, {"a": [2, [3]]}],), {"b": {}}),
    "long": (("x" * 3_000,), {"b": "y" * 1_020}),
    "many": (tuple(range(300)), {}),
}


@pytest.fixture(params=["memory", *(pytest.param(name, marks=pytest.mark.server) for name in ("redis", "rabbitmq"))])
def broker(request: pytest.FixtureRequest) -> str:
    """The URL of a broker, by each kind of transport."""
    return "memory://" if request.param == "memory" else str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def names() -> dict[str, str]:
    """The names of queues, exchanges and keys of this test alone."""
    return {name: unique(name) for name in ("default", "other", "exchange", "key")}


@pytest.fixture(autouse=True)
def serializer() -> Iterator[None]:
    """A serializer of the app's own."""
    register("upside-down", lambda data: json.dumps(data)[::-1], lambda text: json.loads(text[::-1]), "application/x-down")
    yield
    unregister("upside-down")


@pytest.fixture
def make(new_app: NewApp, broker: str, names: dict[str, str]) -> Iterator[Callable[..., Celery]]:
    """Make an app with the tasks ``plain``, ``declared`` and ``typed``, and a saga."""

    def make_app(**settings: Any) -> Celery:
        app = new_app(broker_url=broker, **named(settings, names))
        app.conf.task_default_queue = names["default"]

        @app.task(name="plain")
        def plain(*args: Any, **kwargs: Any) -> None: ...

        @app.task(name="declared", compression="zlib", ignore_result=True, time_limit=9, typing=False)
        def declared() -> None: ...

        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str, note: Any = None) -> None: ...

        app.finalize()
        app.tasks["declared"].priority = 7  # in the decorator it is deprecated
        return app

    yield make_app
    if broker.startswith("memory"):
        return
    with Connection(broker) as connection, connection.channel() as channel:
        for queue in (names["default"], names["other"], ROUTED):
            channel.queue_delete(queue)
        if not broker.startswith("redis"):
            for exchange in (names["default"], names["exchange"], names["other"], ROUTED):
                channel.exchange_delete(exchange)


def named(value: Any, names: dict[str, str]) -> Any:
    """Return a value with names of the test's own in it."""
    if isinstance(value, dict):
        return {key: named(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [named(each, names) for each in value]
    if isinstance(value, Queue):
        exchange = Exchange(names[value.exchange.name], type=value.exchange.type, delivery_mode=value.exchange.delivery_mode)
        return Queue(names[value.name], exchange, routing_key=names[value.routing_key])
    return names.get(value, value) if isinstance(value, str) else value


class Published:
    """All that leaves a process when a message is published, and all that is called meanwhile."""

    def __init__(self, app: Celery, publishing: Callable[[Any], None]) -> None:
        self.calls: list[Any] = []
        backend: Any = app.backend
        receivers = {name: partial(self._note, name) for name in ("before_task_publish", "after_task_publish", "task_sent")}
        for name, receiver in receivers.items():
            getattr(signals, name).connect(receiver, weak=False)
        with app.connection_for_write() as connection, pytest.MonkeyPatch.context() as patch:
            producer: Any = app.amqp.Producer(connection)
            patch.setattr(producer.channel, "basic_publish", partial(self._write, producer.channel.basic_publish))
            patch.setattr(producer, "maybe_declare", partial(self._declare, producer.maybe_declare))
            patch.setattr(backend, "on_task_call", lambda _, id: self.calls.append(("on_task_call", id)))
            try:
                publishing(producer)
            finally:
                for name, receiver in receivers.items():
                    getattr(signals, name).disconnect(receiver)

    def _note(self, name: str, signal: Any = None, **told: Any) -> None:
        self.calls.append((name, plain_of(deepcopy(told))))

    def _write(self, write: Callable[..., Any], message: Any, **options: Any) -> None:
        write(message, **options)
        if isinstance(message, dict):
            body, parts = b64decode(message["body"]), message
        else:
            body, parts = message.body, {"properties": message.properties}
        self.calls.append(("message", event_of(body), plain_of({**parts, "body": None}), options))

    def _declare(self, declare: Callable[..., Any], entity: Any, **options: Any) -> None:
        self.calls.append(("declared", repr(entity), options))
        declare(entity, **options)


def event_of(body: bytes | str) -> Any:
    """Return the body of a message, that of an event (``task-sent``) without what is another each time."""
    try:
        read = json.loads(body)
    except ValueError:
        return body
    return plain_of(read) if isinstance(read, dict) else body


def plain_of(value: Any) -> Any:
    """Return a value that compares by what it holds, without what is another each time."""
    if isinstance(value, dict):
        kept = {key: plain_of(each) for key, each in value.items() if key not in CHANGING}
        return kept | {key: bool(value[key]) for key in ("eta", "expires") if key in value}
    if isinstance(value, list | tuple):
        return type(value)(map(plain_of, value)) if type(value) in (list, tuple) else list(map(plain_of, value))
    return repr(value) if isinstance(value, Queue | Exchange) else value


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


def published_alike(app: Celery, sent: Signature[Any], **options: Any) -> list[Any]:
    """Publish a signature in both ways, and compare all that happens; return it."""
    sent.options.setdefault("task_id", str(uuid4()))
    before = deepcopy(dict(sent))
    celerys = Published(app, lambda producer: sent.clone().apply_async(producer=producer, **options)).calls
    ours = Published(app, lambda producer: publish(app, sent, producer, **options)).calls
    if not sent.options["task_id"]:
        celerys, ours = [[call[0] for call in calls] for calls in (celerys, ours)]
    assert ours == celerys
    assert dict(sent) == before
    return celerys


def test_what_is_compared(make: Callable[..., Celery]) -> None:
    """All of a message, and all that Celery calls."""
    app = make(task_send_sent_event=True)
    calls = published_alike(app, app.signature("plain", args=[1], task_id="m1"))

    names = [call[0] for call in calls]
    assert names[:6] == ["on_task_call", "before_task_publish", "declared", "message", "after_task_publish", "task_sent"]
    assert names[-1] == "message"
    assert calls[-1][1]["type"] == "task-sent"
    _, body, parts, options = calls[3]
    properties = parts["properties"]
    headers = parts.get("headers") or properties["application_headers"]
    assert (headers["id"], headers["task"], headers["argsrepr"]) == ("m1", "plain", "(1,)")
    assert properties["correlation_id"] == "m1"
    assert body
    assert options["routing_key"] == app.conf.task_default_queue


@pytest.mark.parametrize("options", PLAIN.values(), ids=PLAIN)
def test_options(make: Callable[..., Celery], names: dict[str, str], made_of_parts: list[str], options: dict[str, Any]) -> None:
    app = make()
    published_alike(app, app.signature("plain", args=[1], task_id="m1", **named(options, names)))

    assert made_of_parts == ["m1"]


@pytest.mark.parametrize("options", OTHERS.values(), ids=OTHERS)
def test_options_that_celery_reads(make: Callable[..., Celery], made_of_parts: list[str], options: dict[str, Any]) -> None:
    app = make()
    published_alike(app, app.signature("plain", args=[1], **{"task_id": "m1", **deepcopy(options)}))

    assert made_of_parts == []


def test_chain(make: Callable[..., Celery], made_of_parts: list[str]) -> None:
    app = make()
    chain: Any = app.signature("plain", task_id="m1") | app.signature("plain", task_id="m2")
    chain.options["task_id"] = "m3"
    producers: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(chain), "apply_async", lambda _, producer, **options: producers.append((producer, options)))
        publish(app, chain, "producer", retry=False)

    assert producers == [("producer", {"retry": False})]
    assert made_of_parts == []


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_settings(make: Callable[..., Celery], made_of_parts: list[str], settings: dict[str, Any]) -> None:
    app = make(**settings)
    for options in ({}, {"priority": 2}):
        published_alike(app, app.signature("plain", args=[1], task_id="m1", **options))

    assert made_of_parts == ["m1", "m1"]


@pytest.mark.parametrize(("args", "kwargs"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments(make: Callable[..., Celery], made_of_parts: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    app = make()
    published_alike(app, app.signature("plain", args=args, kwargs=kwargs, task_id="m1"))
    published_alike(app, app.signature("plain", args=list(args), kwargs=kwargs, task_id="m1"))

    assert made_of_parts == ["m1", "m1"]


@pytest.mark.parametrize("task", ["declared", "celery_sagas.publish", "order.place"])
@pytest.mark.parametrize("options", [{}, {"priority": 1, "ignore_result": False, "time_limit": 4, "headers": {"a": 1}}], ids=str)
def test_tasks(make: Callable[..., Celery], made_of_parts: list[str], task: str, options: dict[str, Any]) -> None:
    app = make()
    app.tasks["celery_sagas.publish"].typing = False
    kwargs = {"order_id": "42", "note": {"is": [1]}} if task == "order.place" else {}
    published_alike(app, app.signature(task, kwargs=kwargs, task_id="m1", **deepcopy(options)))

    assert made_of_parts == ["m1"]


@pytest.mark.parametrize(
    "options",
    [{"retry": True, "retry_policy": {"max_retries": 1}, "confirm_timeout": 5, "mandatory": False}, {"retry": False}],
    ids=str,
)
def test_options_at_the_call(make: Callable[..., Celery], made_of_parts: list[str], options: dict[str, Any]) -> None:
    app = make()
    published_alike(app, app.signature("plain", task_id="m1", retry=True, mandatory=True), **options)

    assert made_of_parts == ["m1"]


@pytest.mark.parametrize(
    ("parents", "is_made_of_parts"),
    [
        ({"root_id": "root", "parent_id": "parent"}, True),
        ({"root_id": "root"}, False),
        ({"parent_id": "parent"}, False),
        ({}, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("settings", [{}, {"task_inherit_parent_priority": True}], ids=str)
def test_within_a_task(
    make: Callable[..., Celery],
    made_of_parts: list[str],
    parents: dict[str, str],
    is_made_of_parts: bool,
    settings: dict[str, Any],
) -> None:
    """The running task's children are noted."""
    app = make(**settings)
    running: Any = app.tasks["declared"]
    request = Context(id="p1", root_id="r1", delivery_info={"priority": 8}, children=[], called_directly=False)
    with RunningTask(running, request):
        published_alike(app, app.signature("plain", task_id="m1", ignore_result=True, **parents))

    celerys, ours = request.children
    assert (type(ours), ours.id, ours.ignored) == (type(celerys), celerys.id, celerys.ignored)
    assert made_of_parts == (["m1"] if is_made_of_parts else [])


def test_receivers_may_change_a_message(make: Callable[..., Celery], made_of_parts: list[str]) -> None:
    """As tracers do."""
    app = make()

    def trace(headers: dict[str, Any], properties: dict[str, Any], **_: Any) -> None:
        headers["traceparent"], properties["priority"] = "00-1", 6

    signals.before_task_publish.connect(trace)
    try:
        calls = published_alike(app, app.signature("plain", task_id="m1"))
    finally:
        signals.before_task_publish.disconnect(trace)

    assert "00-1" in str([call for call in calls if call[0] == "message"])
    assert made_of_parts == ["m1"]


def test_errors_of_a_connection(make: Callable[..., Celery], made_of_parts: list[str]) -> None:
    """They are kombu's, with that of the driver as their cause."""
    app = make(task_publish_retry=False)
    sent, raised = app.signature("plain", task_id="m1"), list[Exception]()
    for publishing in (lambda producer: sent.apply_async(producer=producer), lambda producer: publish(app, sent, producer)):
        with app.connection_for_write() as connection:
            producer: Any = app.amqp.Producer(connection)
            producer.channel.basic_publish = Mock(side_effect=connection.recoverable_connection_errors[0])
            with pytest.raises(OperationalError) as error:
                publishing(producer)
            raised.append(error.value)

    assert [type(error.__cause__) for error in raised] == [connection.recoverable_connection_errors[0]] * 2
    assert made_of_parts == ["m1"]


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.lists(st.integers(), max_size=2)
)


@example(["it's"], 60)
@example(["a\\b"], 60)
@example({"a\n": "b"}, 60)
@given(st.one_of(st.lists(LEAVES), st.lists(LEAVES).map(tuple), st.dictionaries(st.text(max_size=5), LEAVES)), st.integers(1, 60))
def test_arguments_are_shown_as_celery_shows_them(arguments: Any, most: int) -> None:
    shown = signatures._shown(arguments, most)

    assert shown in (None, saferepr(arguments or type(arguments)(), most)) or (not arguments and shown in ("()", "{}"))


@pytest.mark.parametrize("arguments", [(1, "a", None), ["é", 1.5, True], {"a": "b", "c": 2}], ids=repr)
def test_short_and_flat_arguments_are_shown_without_celery(arguments: Any) -> None:
    assert signatures._shown(arguments, 1024) == saferepr(arguments, 1024) == repr(arguments)
