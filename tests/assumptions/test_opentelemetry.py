"""What OpenTelemetry's tool for Celery does with the spans of what is published, and that this library leaves none behind."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from celery import Celery, signals
from kombu.exceptions import OperationalError
from opentelemetry import context
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import get_current_span

from celery_sagas.telemetry.tracing import SagaInstrumentor
from celery_sagas.worker.publishing.signatures import publish


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter := InMemorySpanExporter()))
    CeleryInstrumentor().instrument(tracer_provider=provider)
    SagaInstrumentor().instrument(tracer_provider=provider)
    before = context.get_current()
    yield exporter
    context.attach(before)
    SagaInstrumentor().uninstrument()
    CeleryInstrumentor().uninstrument()


def is_any_current() -> bool:
    return get_current_span().get_span_context().is_valid


def signature(app: Celery, name: str) -> Any:
    return app.signature(name, task_id="t", root_id="t", parent_id="t")


class Away:
    """A producer whose broker is away."""

    @property
    def connection(self) -> "Away":
        return self

    def _reraise_as_library_errors(self) -> AbstractContextManager[None]:
        return nullcontext()

    def publish(self, *_: Any, **__: Any) -> None:
        """Fail."""
        raise OperationalError("away")


def test_span_of_an_unknown_task_is_not_ended_after_it_was_published(app: Celery, exporter: InMemorySpanExporter) -> None:
    """It ends before that, when nobody refers to it any more: if a debugger, say, keeps a frame, it stays the current one."""
    ended: list[int] = []

    def look(**_: object) -> None:
        ended.append(len(exporter.get_finished_spans()))

    signals.after_task_publish.connect(look)
    app.send_task("unknown", queue="elsewhere")
    assert ended == [1]


def test_span_of_a_message_that_cannot_be_published_stays_the_current_one(app: Celery, exporter: InMemorySpanExporter) -> None:
    @app.task(name="known")
    def known() -> None: ...

    with pytest.raises(OperationalError):
        known.apply_async(producer=Away(), retry=False)
    assert is_any_current()


@pytest.mark.parametrize("name", ["known", "unknown"])
def test_none_is_left_behind_by_what_this_library_publishes(app: Celery, exporter: InMemorySpanExporter, name: str) -> None:
    @app.task(name="known")
    def known() -> None: ...

    with pytest.raises(OperationalError):
        publish(app, signature(app, name), Away(), retry=False)
    assert not is_any_current()
    with app.producer_pool.acquire() as producer:
        publish(app, signature(app, name).set(queue="elsewhere"), producer)
    assert not is_any_current()
