"""The metrics of OpenTelemetry: ``measure()`` in each process that handles messages. It needs the extra ``otel``.

A label has a name of the code: never a key, an id or what a message says.
"""

from typing import Any

from celery_sagas.errors import needs_extra
from celery_sagas.observers import observers
from celery_sagas.telemetry.flushing import flush_at_end
from celery_sagas.telemetry.signalled import count_signals, unfailing

with needs_extra("otel", "OpenTelemetry"):
    from opentelemetry import metrics

#: The name of the meter.
METER = "celery_sagas"


class OtelMetrics:
    """Counts what happens in this process."""

    def __init__(self, meter: Any) -> None:
        counter = meter.create_counter
        self._steps = meter.create_histogram("saga.step.duration", "s", "How long handling a message took.")
        self._conflicts = counter("saga.step.conflicts", "{run}", "Runs of a step that lost against another commit.")
        self._redelivered = counter("saga.messages.redelivered", "{message}", "Messages published again, to be handled later.")
        self._dead_letters = counter("saga.dead_letters", "{message}", "New dead letters.")
        self._published = counter("saga.outbox.published", "{message}", "Committed messages, confirmed by the broker or failed.")
        self._flushed = counter("saga.aggregator.flushed", "{batch}", "Flushed batches of aggregators.")
        self._flushed_items = counter("saga.aggregator.flushed.items", "{item}", "Items in flushed batches.")
        self._lag = meter.create_histogram("saga.relay.lag", "s", "How long the longest due message had been due in each sweep.")

    @unfailing
    def handled(self, saga: str, step: str, outcome: str, seconds: float) -> None:
        self._steps.record(seconds, {"saga": saga, "step": step, "outcome": outcome})

    @unfailing
    def conflicted(self, saga: str, step: str) -> None:
        self._conflicts.add(1, {"saga": saga, "step": step})

    @unfailing
    def redelivered(self, task: str, reason: str) -> None:
        self._redelivered.add(1, {"task": task, "reason": reason})

    @unfailing
    def published(self, confirmed: int, failed: int) -> None:
        if confirmed:
            self._published.add(confirmed, {"result": "confirmed"})
        if failed:
            self._published.add(failed, {"result": "failed"})

    @unfailing
    def lagged(self, backend: str, seconds: float) -> None:
        self._lag.record(seconds, {"backend": backend})

    def dead_lettered(self, task: str) -> None:
        self._dead_letters.add(1, {"task": task})

    def flushed(self, aggregator: str, items: int) -> None:
        self._flushed.add(1, {"aggregator": aggregator})
        self._flushed_items.add(items, {"aggregator": aggregator})


def measure(provider: metrics.MeterProvider | None = None) -> None:
    """Have what happens in this process measured from now on; a repeated call changes nothing.

    Args:
        provider: Has the meter; ``None``: that of the process, also one that is set later, as in ``worker_process_init``.
    """
    if not any(isinstance(each, OtelMetrics) for each in observers):
        measured = OtelMetrics(metrics.get_meter(METER, meter_provider=provider))
        observers.append(measured)
        count_signals(measured)
        flush_at_end(lambda: provider or metrics.get_meter_provider(), "celery_sagas.flush_metrics")
