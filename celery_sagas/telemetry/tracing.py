"""Tracing with OpenTelemetry: the spans of steps, and the context of what they send."""

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery, Task, signals

from celery_sagas.errors import needs_extra
from celery_sagas.telemetry.flushing import flush_at_end
from celery_sagas.worker.celery_internals import running_requests
from celery_sagas.worker.headers import texts_of
from celery_sagas.worker.runtime import runtime_of
from celery_sagas.worker.tracing import trace_with

with needs_extra("otel", "OpenTelemetry"):
    from opentelemetry import context as contexts
    from opentelemetry import propagate, trace

    from celery_sagas.telemetry.spans import MessageSpan, Origin

#: What OpenTelemetry calls brokers, by kombu's names; others are called as kombu calls them.
_SYSTEMS = {"amqp": "rabbitmq", "sqs": "aws_sqs", "gcpubsub": "gcp_pubsub"}
#: The most characters of the headers of a message.
_MOST_CHARACTERS = 8_192
#: The receiver that has a process that ends export its spans.
_FLUSH = "celery_sagas.flush_spans"


class SagaInstrumentor:
    """Traces the steps of this process: ``SagaInstrumentor().instrument()``, or the command ``opentelemetry-instrument``.

    It needs no other tool. Spans of ``CeleryInstrumentor``, if that is there, are above its own.
    """

    def instrument(self, *, tracer_provider: trace.TracerProvider | None = None, **_: object) -> None:
        """Trace messages from now on.

        Args:
            tracer_provider: Makes the spans; OpenTelemetry's global one if left out, also if that is set later.
            **_: What the command gives to each instrumentor.
        """
        trace_with(OpenTelemetryTracer(tracer_provider))
        flush_at_end(lambda: tracer_provider or trace.get_tracer_provider(), _FLUSH)

    def uninstrument(self, **_: object) -> None:
        """Trace no more messages."""
        trace_with(None)
        signals.worker_process_shutdown.disconnect(dispatch_uid=_FLUSH)


class OpenTelemetryTracer:
    """What traces the messages of this process."""

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("celery_sagas", tracer_provider=provider)
        self._systems: WeakKeyDictionary[Celery, str] = WeakKeyDictionary()
        self._constant: WeakKeyDictionary[Task[..., Any], Mapping[str, str]] = WeakKeyDictionary()  #: attributes

    def message(self, task: Any, request: Any, message_id: str, *, is_batched: bool = False) -> MessageSpan:
        """Return the span of a message, which begins later."""
        if (constant := self._constant.get(task)) is None:
            constant = self._constant[task] = self._constant_of(task)
        attributes = {**constant, "messaging.message.id": message_id}
        is_called = bool(request.called_directly)
        sent = contexts.get_current() if is_called else _context_of(texts_of(request, _fields()))
        waits = is_batched and bool(signals.task_prerun.receivers)
        about = (runtime_of(task.app).settings, sent, is_called, waits, is_batched)
        return MessageSpan(self._tracer, Origin(f"process {task.saga_step.name}", attributes, *about))

    def _constant_of(self, task: Any) -> Mapping[str, str]:
        """Return the attributes that all messages of a step have."""
        return {
            "messaging.system": self._system_of(task.app),
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "saga.name": task.saga_step.saga.name,
            "saga.step": task.saga_step.name,
        }

    def _system_of(self, app: Celery) -> str:
        system = self._systems.get(app)
        if system is None:
            driver = str(app.connection_for_write().transport.driver_type)
            system = self._systems[app] = _SYSTEMS.get(driver, driver)
        return system

    def headers(self) -> Mapping[str, str]:
        """Return the headers of what is done here; in a task that nobody traces those of its message."""
        headers: dict[str, str] = {}
        if not trace.get_current_span().get_span_context().is_valid and (request := next(running_requests(), None)):
            headers = texts_of(request, _fields())
        propagate.inject(headers)
        return headers if sum(map(len, headers.values())) <= _MOST_CHARACTERS else {}

    def is_in(self, headers: Mapping[str, Any]) -> bool:
        """Return whether headers have the context of a span; baggage alone is none."""
        return any(name in headers for name in _fields() if name != "baggage")

    @contextmanager
    def publishing(self, headers: Mapping[str, Any] | None) -> Iterator[None]:
        """Publish a message in the context of its headers, and leave no span behind, as a tool does for an unknown task."""
        own = {name: headers[name] for name in _fields() if name in headers} if headers else {}
        token = contexts.attach(propagate.extract(own) if own else contexts.get_current())
        try:
            yield
        finally:
            contexts.detach(token)

    def forget(self, headers: MutableMapping[str, Any]) -> None:
        """Remove the headers of a context."""
        for name in _fields():
            headers.pop(name, None)


def _context_of(headers: dict[str, str]) -> contexts.Context:
    """Return the context that headers of a message have."""
    return propagate.extract(headers, contexts.Context()) if headers else contexts.Context()


def _fields() -> set[str]:
    return propagate.get_global_textmap().fields
