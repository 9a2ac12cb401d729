"""The spans of steps: where they are, what they say, and what is stored and sent of them."""

import json
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery, shared_task
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode, use_span

from celery_sagas import Failure, Saga
from celery_sagas.errors import RevisionConflict, StoreUnavailable
from celery_sagas.stores.records import ID, Lookup
from celery_sagas.telemetry.contexts import MOST_CHARACTERS, stored_context
from celery_sagas.telemetry.tracing import SagaInstrumentor
from celery_sagas.worker.batches.steps import handle_together
from celery_sagas.worker.process.relay import open_relay
from celery_sagas.worker.runtime import runtime_of
from tests.apps import NewApp, Worker, as_tasks, backend_of, interposed
from tests.telemetry.conftest import Spans
from tests.waiting import wait_until

#: How long its operations took.
DURATIONS = ("saga.find.duration", "saga.commit.duration")
#: By how much two clocks of a machine may differ within a step.
CLOCKS_S = 0.001


@pytest.fixture
def order(app: Celery) -> Any:
    """A saga that asks, is answered, and has a timeout."""

    @shared_task(name="charge")
    def charge(order_id: str) -> str:
        return f"paid {order_id}"

    class Order(Saga, correlate_by="order_id"):
        order_id: str
        seen: list[str] = []

    @Order.starts
    def place(order: Order, order_id: str) -> None:
        order.send(charge.s(order_id), then=charged, otherwise=unpaid)
        order.schedule(remind, after=timedelta(milliseconds=200))

    @Order.handles
    def charged(order: Order, receipt: str) -> None:
        order.seen.append(receipt)

    @Order.handles
    def unpaid(order: Order, failure: Failure) -> None:
        order.seen.append("failure")

    @Order.handles
    def remind(order: Order) -> None:
        order.seen.append("reminded")

    @Order.handles
    def ship(order: Order, order_id: str) -> None:
        order.seen.append("shipped")

    @Order.handles
    def fail(order: Order, order_id: str) -> None:
        raise ValueError("of the card 4000")

    return Order


def name_of(span: ReadableSpan, spans: Spans) -> str | None:
    """Return the name of a span's parent."""
    return parent.name if span.parent and (parent := of_id(span.parent.span_id, spans)) else None


def of_id(id: int, spans: Spans) -> ReadableSpan | None:
    return next((each for each in spans.all() if each.context.span_id == id), None)


def durations_of(span: ReadableSpan) -> dict[str, Any]:
    return {name: value for name, value in (span.attributes or {}).items() if name in DURATIONS}


def linked(span: ReadableSpan, spans: Spans) -> list[str]:
    """Return the names of the spans to which a span links."""
    return sorted(found.name for link in span.links if (found := of_id(link.context.span_id, spans)))


class TestSpan:
    """A span of a message, whose task nobody else traces."""

    def test_message_has_a_span(self, app: Celery, order: Any, worker: Worker, spans: Spans) -> None:
        app.tasks["order.place"].delay(order_id="7")
        worker.one()

        span = spans.one("process order.place")
        assert span.kind is SpanKind.CONSUMER
        assert span.parent is None
        assert span.status.status_code is StatusCode.UNSET
        (instance,) = order.all()
        assert {name: value for name, value in (span.attributes or {}).items() if name not in DURATIONS} == {
            "messaging.system": "memory",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.message.id": worker.done[0].id,
            "messaging.message.conversation_id": instance.saga.id,
            "saga.name": "order",
            "saga.step": "order.place",
            "saga.instance.id": instance.saga.id,
            "saga.instance.version": 1,
            "saga.outcome": "started",
        }
        assert len(spans.all()) == 1

    def test_its_operations_took_a_part_of_its_time(self, app: Celery, order: Any, worker: Worker, spans: Spans) -> None:
        app.tasks["order.place"].delay(order_id="7")
        worker.one()
        span = spans.one("process order.place")
        durations = durations_of(span)
        assert list(durations) == list(DURATIONS)
        assert all(seconds > 0 for seconds in durations.values())
        assert span.start_time is not None
        assert span.end_time is not None
        assert sum(durations.values()) <= (span.end_time - span.start_time) / 1e9 + CLOCKS_S

    def test_it_belongs_to_who_has_published(self, app: Celery, order: Any, worker: Worker, spans: Spans) -> None:
        with spans.tracer.start_as_current_span("web request"):
            app.tasks["order.place"].delay(order_id="7")
        worker.one()
        assert name_of(spans.one("process order.place"), spans) == "web request"

    def test_direct_call(self, app: Celery, order: Any, spans: Spans) -> None:
        with spans.tracer.start_as_current_span("script"):
            app.tasks["order.place"](order_id="7")
        span = spans.one("process order.place")
        assert (span.kind, name_of(span, spans), linked(span, spans)) == (SpanKind.INTERNAL, "script", [])
        assert (span.attributes or {})["messaging.message.id"]

    def test_handler_runs_in_it(self, app: Celery, worker: Worker, spans: Spans) -> None:
        class Item(Saga, correlate_by="name"):
            name: str

        @Item.starts
        def begin(item: Item, name: str) -> None:
            with spans.tracer.start_as_current_span("of the handler"):
                pass

        begin.delay(name="a")
        worker.one()
        assert name_of(spans.one("of the handler"), spans) == "process item.begin"

    def test_key_only_if_asked_for(self, app: Celery, order: Any, worker: Worker, spans: Spans) -> None:
        app.conf.saga_trace_keys = True
        app.tasks["order.place"].delay(order_id="7")
        worker.one()
        assert (spans.one("process order.place").attributes or {})["saga.key"] == "7"

    def test_message_that_changes_nothing(self, app: Celery, order: Any, worker: Worker, spans: Spans) -> None:
        app.tasks["order.place"].delay(order_id="7")
        delivered, *_ = worker.run()
        worker.deliver_again(delivered)
        outcomes = [(span.attributes or {})["saga.outcome"] for span in spans.named("process order.place")]
        assert outcomes[0] == "started"
        assert set(outcomes[1:]) == {"duplicate"}

    def test_system_is_that_of_the_convention(self, new_app: NewApp, spans: Spans) -> None:
        systems = {"amqp://": "rabbitmq", "redis://": "redis", "memory://": "memory"}
        tool = __import__("celery_sagas.worker.tracing", fromlist=["tracer"]).tracer
        for broker, system in systems.items():
            app = new_app()
            app.conf.broker_url = broker
            assert tool._system_of(app) == system


def described(name: str, number: int) -> dict[str, Any]:
    """Return a message as a process of the pool gets it with others."""
    about: dict[str, Any] = {"delivery_info": {}, "properties": {}, "hostname": "here", "saga_step": True}
    return {"task": name, "id": f"m{number}", "args": [], "kwargs": {"order_id": str(number)}, **about}


class TestBatch:
    """Messages that are handled together."""

    def test_each_has_a_span(self, app: Celery, order: Any, spans: Spans) -> None:
        settled = handle_together([described("order.place", number) for number in range(3)])
        assert settled.left == []
        found = spans.named("process order.place")
        assert [(span.attributes or {})["messaging.message.id"] for span in found] == ["m0", "m1", "m2"]
        assert len({(span.attributes or {})["saga.instance.id"] for span in found}) == 3
        for name in DURATIONS:
            assert len({durations_of(span)[name] for span in found}) == 1, "they are performed at once"

    def test_one_that_fails_is_left(self, app: Celery, order: Any, spans: Spans) -> None:
        handle_together([described("order.place", 1)])
        settled = handle_together([described("order.fail", 1), described("order.place", 2)])
        assert settled.left == [0]
        failed = spans.one("process order.fail")
        assert (failed.attributes or {})["error.type"] == "ValueError"
        assert len(spans.named("process order.place")) == 2

    def test_one_that_cannot_be_begun_has_none(self, app: Celery, order: Any, spans: Spans) -> None:
        settled = handle_together([{**described("order.place", 1), "kwargs": {"wrong": 1}}])
        assert (settled.left, spans.names()) == ([0], [])

    def test_nothing_of_one_is_in_another(self, app: Celery, order: Any, spans: Spans, celerys: None) -> None:
        handle_together([described("order.place", number) for number in range(3)])
        for span in spans.named("apply_async/charge"):
            step = of_id(span.parent.span_id, spans) if span.parent else None
            assert step is not None
            assert (step.name, step.context.trace_id) == ("process order.place", span.context.trace_id)
        assert len({span.context.trace_id for span in spans.named("apply_async/charge")}) == 3


class TestFailure:
    def test_error_is_named_and_not_shown(self, app: Celery, order: Any, worker: Worker, spans: Spans) -> None:
        app.tasks["order.place"].delay(order_id="7")
        app.tasks["order.fail"].delay(order_id="7")
        worker.one()
        worker.one()
        span = spans.named("process order.fail")[-1]
        assert span.status.status_code is StatusCode.ERROR
        assert (span.attributes or {})["error.type"] == "ValueError"
        assert "of the card" not in span.to_json()

    def test_malformed_message(self, app: Celery, order: Any, worker: Worker, spans: Spans) -> None:
        app.send_task("order.place", kwargs={"wrong": 1})
        worker.one()
        span = spans.one("process order.place")
        assert (span.attributes or {})["error.type"] == "celery_sagas.errors.InvalidMessage"
        assert durations_of(span) == {}
        assert span.kind is SpanKind.CONSUMER

    @as_tasks
    def test_message_that_is_put_off(self, app: Celery, order: Any, worker: Worker, spans: Spans) -> None:
        def fails() -> None:
            raise StoreUnavailable("memory", "away")

        interposed(app).once_before("find", fails)
        app.tasks["order.place"].delay(order_id="7")
        worker.one()
        span = spans.one("process order.place")
        assert span.status.status_code is StatusCode.UNSET
        ((name, attributes),) = [(event.name, dict(event.attributes or {})) for event in span.events]
        assert (name, attributes) == ("saga.put_off", {"error.type": "celery_sagas.errors.StoreUnavailable"})
        worker.one()
        assert [(each.attributes or {}).get("saga.outcome") for each in spans.named("process order.place")] == [None, "started"]

    def test_conflicts_are_counted(self, app: Celery, order: Any, worker: Worker, spans: Spans) -> None:
        app.tasks["order.place"].delay(order_id="7")
        worker.run()

        def conflicts() -> None:
            raise RevisionConflict("order", "7", "version")

        interposed(app).once_before("update", conflicts, conflicts)
        app.tasks["order.ship"].delay(order_id="7")
        worker.run()
        span = spans.named("process order.ship")[-1]
        assert (span.attributes or {})["saga.conflicts"] == 2
        assert [(event.name, dict(event.attributes or {})) for event in span.events] == [
            ("saga.conflict", {"saga.reason": "version"})
        ] * 2
        assert span.status.status_code is StatusCode.UNSET


class TestInstance:
    """The messages of one instance."""

    def test_steps_link_to_the_start(self, app: Celery, order: Any, worker: Worker, spans: Spans) -> None:
        app.tasks["order.place"].delay(order_id="7")
        worker.one()
        with spans.tracer.start_as_current_span("another request"):
            app.tasks["order.ship"].delay(order_id="7")
        worker.run()
        span, start = spans.one("process order.ship"), spans.one("process order.place")
        assert (name_of(span, spans), linked(span, spans)) == ("another request", ["process order.place"])
        assert span.context.trace_id != start.context.trace_id
        assert (span.attributes or {})["saga.instance.id"] == (start.attributes or {})["saga.instance.id"]

    def test_steps_are_below_the_start(self, app: Celery, order: Any, worker: Worker, spans: Spans) -> None:
        app.conf.saga_trace = "parent"
        app.tasks["order.place"].delay(order_id="7")
        worker.one()
        with spans.tracer.start_as_current_span("another request"):
            app.tasks["order.ship"].delay(order_id="7")
        worker.run()
        span = spans.one("process order.ship")
        assert (name_of(span, spans), linked(span, spans)) == ("process order.place", ["another request"])

    def test_answer_hangs_below_the_step_that_has_asked(self, app: Celery, order: Any, worker: Worker, spans: Spans) -> None:
        """Through a plain task of which nobody makes a span."""
        app.tasks["order.place"].delay(order_id="7")
        worker.run()
        assert name_of(spans.one("process order.charged"), spans) == "process order.place"

    def test_context_is_stored(self, app: Celery, order: Any, worker: Worker, spans: Spans) -> None:
        app.tasks["order.place"].delay(order_id="7")
        worker.one()
        app.tasks["order.ship"].delay(order_id="7")
        worker.run()
        assert pending_of(app, order)["trace"] == stored_context(spans.one("process order.place").context)

    def test_nothing_is_stored_of_a_span_that_is_not_recorded(self, app: Celery, order: Any, worker: Worker) -> None:
        SagaInstrumentor().instrument(tracer_provider=TracerProvider(ALWAYS_OFF, shutdown_on_exit=False))
        try:
            app.tasks["order.place"].delay(order_id="7")
            worker.one()
            assert "trace" not in pending_of(app, order)
        finally:
            SagaInstrumentor().uninstrument()

    def test_nothing_is_stored_without_a_provider(self, app: Celery, order: Any, worker: Worker) -> None:
        SagaInstrumentor().instrument()
        try:
            app.tasks["order.place"].delay(order_id="7")
            worker.one()
            assert "trace" not in pending_of(app, order)
            assert worker.waiting()[0].headers.get("traceparent") is None
        finally:
            SagaInstrumentor().uninstrument()

    def test_long_state_of_a_trace_is_left_out(self, app: Celery, order: Any, worker: Worker, spans: Spans) -> None:
        states = trace.TraceState([(f"v{number}", "x" * 200) for number in range(3)])
        remote = trace.SpanContext(1, 2, True, trace.TraceFlags(1), states)
        with use_span(trace.NonRecordingSpan(remote)):
            app.tasks["order.place"].delay(order_id="7")
        worker.one()
        assert len(pending_of(app, order)["trace"]) <= MOST_CHARACTERS

    def test_series_belong_to_no_trace(self, app: Celery, worker: Worker, spans: Spans) -> None:
        """It may last for years: each occurrence is a trace of its own, which links to the start."""

        class Item(Saga, correlate_by="name"):
            name: str

        @Item.starts
        def begin(item: Item, name: str) -> None:
            item.schedule(tick, after=0.001, every=timedelta(days=1))

        @Item.handles
        def tick(item: Item) -> None: ...

        begin.delay(name="a")
        worker.one()
        (row,) = wait_until(lambda: backend_of(app).outbox.claim_due("x", 10, 1_000), "the first occurrence")
        assert "traceparent" not in row.payload


def pending_of(app: Celery, order: Any) -> dict[str, Any]:
    (instance,) = order.all()
    record = backend_of(app).sagas.find(Lookup(("order",), ID, instance.saga.id)).record
    assert record is not None
    pending: dict[str, Any] = json.loads(record.pending)
    return pending


class TestWithCelerysSpans:
    """Beside OpenTelemetry's own tool for Celery."""

    def test_span_is_below_that_of_the_task(self, app: Celery, order: Any, worker: Worker, spans: Spans, celerys: None) -> None:
        app.tasks["order.place"].delay(order_id="7")
        worker.one()
        span = spans.one("process order.place")
        assert (span.kind, name_of(span, spans)) == (SpanKind.INTERNAL, "run/order.place")
        assert name_of(spans.one("run/order.place"), spans) == "apply_async/order.place"

    def test_published_messages_hang_below_the_step(
        self, app: Celery, order: Any, worker: Worker, spans: Spans, celerys: None
    ) -> None:
        app.tasks["order.place"].delay(order_id="7")
        worker.run()
        assert name_of(spans.one("apply_async/charge"), spans) == "process order.place"
        assert name_of(spans.one("run/charge"), spans) == "apply_async/charge"
        span = spans.one("process order.charged")
        assert name_of(span, spans) == "run/order.charged"
        assert linked(span, spans) == ["apply_async/order.charged", "process order.place"]

    def test_steps_are_below_the_start(self, app: Celery, order: Any, worker: Worker, spans: Spans, celerys: None) -> None:
        app.conf.saga_trace = "parent"
        app.tasks["order.place"].delay(order_id="7")
        worker.run()
        span = spans.one("process order.charged")
        assert name_of(span, spans) == "process order.place"
        assert linked(span, spans) == ["apply_async/order.charged", "run/order.charged"]

    def test_what_the_relay_publishes_hangs_below_the_step(
        self, app: Celery, order: Any, worker: Worker, spans: Spans, celerys: None
    ) -> None:
        app.tasks["order.place"].delay(order_id="7")
        worker.one()
        relay = open_relay(runtime_of(app))
        wait_until(lambda: relay.sweep().sent, "the timeout")
        worker.run()
        assert name_of(spans.one("apply_async/order.remind"), spans) == "process order.place"
        assert name_of(spans.one("process order.remind"), spans) == "run/order.remind"

    def test_unknown_task(self, app: Celery, worker: Worker, spans: Spans, celerys: None) -> None:
        """Its span ends, and what is published after it is not below it."""

        class Item(Saga, correlate_by="name"):
            name: str

        @shared_task(name="known")
        def known() -> None: ...

        @Item.starts
        def begin(item: Item, name: str) -> None:
            item.send(app.signature("unknown", queue="elsewhere"))
            item.send(known.si())

        begin.delay(name="a")
        worker.one()
        for name in ("unknown", "known"):
            assert name_of(spans.one(f"apply_async/{name}"), spans) == "process item.begin"

    def test_ignored_message_is_below_that_of_the_task(
        self, app: Celery, order: Any, worker: Worker, spans: Spans, celerys: None
    ) -> None:
        app.tasks["order.place"].delay(order_id="7")
        delivered, *_ = worker.run()
        worker.deliver_again(delivered)
        assert all(name_of(span, spans) == "run/order.place" for span in spans.named("process order.place"))

    def test_what_follows_the_handler_belongs_to_the_step(self, app: Celery, worker: Worker, spans: Spans, celerys: None) -> None:
        """Such as an answer, which is made when the handler has ended."""

        class Child(Saga, correlate_by="name"):
            name: str

        @Child.starts
        def begin(child: Child, name: str) -> str:
            child.reply("begun")
            return name

        class Parent(Saga, correlate_by="name"):
            name: str

        @Parent.starts
        def ask(parent: Parent, name: str) -> None:
            parent.send(begin.s(name=name), then=told, otherwise=untold)

        @Parent.handles
        def told(parent: Parent, answer: str) -> None: ...

        @Parent.handles
        def untold(parent: Parent, failure: Failure) -> None: ...

        ask.delay(name="a")
        worker.run()
        assert name_of(spans.one("apply_async/parent.told"), spans) == "process child.begin"


class TestContext:
    """The context of what is sent."""

    def test_baggage_goes_with_it(self, app: Celery, order: Any, worker: Worker, spans: Spans) -> None:
        token = context.attach(baggage.set_baggage("tenant", "t1"))
        app.tasks["order.place"].delay(order_id="7")
        context.detach(token)
        worker.one()
        assert {each.headers.get("baggage") for each in worker.waiting()} == {"tenant=t1"}

    def test_headers_that_are_too_long_are_left_out(self, app: Celery, order: Any, worker: Worker, spans: Spans) -> None:
        token = context.attach(baggage.set_baggage("tenant", "t" * 9_000))
        app.tasks["order.place"].delay(order_id="7")
        context.detach(token)
        assert "baggage" not in worker.waiting()[0].headers

    def test_message_with_a_context_of_its_own(self, app: Celery, order: Any, worker: Worker, spans: Spans) -> None:
        """Nothing of another trace is added to it."""
        own = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
        other = trace.SpanContext(1, 2, True, trace.TraceFlags(1), trace.TraceState([("vendor", "a")]))
        with use_span(trace.NonRecordingSpan(other)):
            app.tasks["order.place"].apply_async(kwargs={"order_id": "7"}, headers={"traceparent": own})
        headers = worker.waiting()[0].headers
        assert (headers["traceparent"], headers.get("tracestate")) == (own, None)

    @pytest.mark.parametrize("value", ["", "x", 7, ["00-1"], "00-" + "f" * 32])
    def test_header_that_is_no_context(self, app: Celery, order: Any, worker: Worker, spans: Spans, value: Any) -> None:
        app.tasks["order.place"].apply_async(kwargs={"order_id": "7"}, headers={"traceparent": value})
        assert worker.one().fate == "acked"
        assert spans.one("process order.place").parent is None

    def test_eager_mode(self, eager: Celery, spans: Spans) -> None:
        class Item(Saga, correlate_by="name"):
            name: str

        @Item.starts
        def begin(item: Item, name: str) -> None:
            item.send(go_on.s(name=name))

        @Item.handles
        def go_on(item: Item, name: str) -> None: ...

        begin.delay(name="a")
        assert name_of(spans.one("process item.go_on"), spans) == "process item.begin"


def test_uninstrumented_process_traces_nothing(app: Celery, order: Any, worker: Worker, spans: Spans) -> None:
    SagaInstrumentor().uninstrument()
    app.tasks["order.place"].delay(order_id="7")
    worker.one()
    assert spans.all() == []


def test_command_finds_the_instrumentor() -> None:
    """As ``opentelemetry-instrument`` loads it."""
    script = """
from opentelemetry.instrumentation.auto_instrumentation._load import _load_instrumentors
from opentelemetry.instrumentation.distro import DefaultDistro
_load_instrumentors(DefaultDistro())
from celery_sagas.worker import tracing
print(type(tracing.tracer).__name__)
"""
    output = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert output.strip().endswith("OpenTelemetryTracer")
