"""The timed counters, whose spans are made, and nobody gets them."""

from celery import signals
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from timed_counters import app as app

from celery_sagas.telemetry.tracing import SagaInstrumentor


@signals.worker_process_init.connect
def trace_process(**_: object) -> None:
    """Trace this process of the pool, as the documentation shows it."""
    trace.set_tracer_provider(TracerProvider())
    SagaInstrumentor().instrument()
