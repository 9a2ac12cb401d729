"""Every test here gets apps of its own, and what is traced in them."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer, get_current_span

from celery_sagas.telemetry.tracing import SagaInstrumentor
from tests.apps import app, at_one_time, definitions, eager, new_app, worker

__all__ = ["app", "at_one_time", "celerys", "definitions", "eager", "new_app", "spans", "worker"]


@dataclass
class Spans:
    """The spans that have ended."""

    provider: TracerProvider
    exporter: InMemorySpanExporter

    @property
    def tracer(self) -> Tracer:
        """Makes spans of whoever calls."""
        return self.provider.get_tracer("test")

    def all(self) -> list[ReadableSpan]:
        """Return them, in the order in which they have begun."""
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def names(self) -> list[str]:
        """Return their names."""
        return [span.name for span in self.all()]

    def named(self, name: str) -> list[ReadableSpan]:
        """Return those of a name."""
        return [span for span in self.all() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        """Return the only one of a name."""
        (span,) = self.named(name)
        return span


@pytest.fixture
def spans() -> Iterator[Spans]:
    """What is traced, by nobody but this library."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter := InMemorySpanExporter()))
    SagaInstrumentor().instrument(tracer_provider=provider)
    yield Spans(provider, exporter)
    SagaInstrumentor().uninstrument()
    assert not get_current_span().get_span_context().is_valid, "a span was left behind"


@pytest.fixture
def celerys(spans: Spans) -> Iterator[None]:
    """OpenTelemetry's own tool for Celery, which makes a span of each message that is published, and of each task."""
    CeleryInstrumentor().instrument(tracer_provider=spans.provider)
    yield
    CeleryInstrumentor().uninstrument()
