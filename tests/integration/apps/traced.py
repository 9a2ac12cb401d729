"""Orders whose steps are traced as the page on telemetry says, in a pool of processes."""

import os
from datetime import timedelta

from celery import shared_task, signals
from deployed import make_app
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from celery_sagas import Failure, Saga
from celery_sagas.telemetry.tracing import SagaInstrumentor

app = make_app()


@signals.worker_process_init.connect
def trace_process(**_: object) -> None:
    provider = TracerProvider(resource=Resource.create({"service.name": "orders", "service.instance.id": str(os.getpid())}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    SagaInstrumentor().instrument()
    if os.environ.get("CELERY_SAGAS_TEST_CELERYS"):
        CeleryInstrumentor().instrument()


@shared_task(name="charge")
def charge(order_id: str) -> str:
    return f"paid {order_id}"


class Order(Saga, correlate_by="order_id"):
    order_id: str
    seen: list[str] = []


@Order.starts
def begin(order: Order, order_id: str) -> None:
    order.seen.append("begun")


@Order.starts
def place(order: Order, order_id: str) -> None:
    order.send(charge.s(order_id), then=charged, otherwise=unpaid)


@Order.handles
def charged(order: Order, receipt: str) -> None:
    order.schedule(remind, after=timedelta(milliseconds=50))


@Order.handles
def unpaid(order: Order, failure: Failure) -> None:
    order.seen.append("unpaid")


@Order.handles
def remind(order: Order) -> None:
    order.seen.append("reminded")


@Order.handles
def ship(order: Order, order_id: str) -> None:
    order.seen.append("shipped")
