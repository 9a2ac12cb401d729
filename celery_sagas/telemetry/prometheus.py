"""The counters of a worker's processes, for Prometheus: import it once prometheus_client knows whether there are several.

A label has a name of the code: never a key, an id or what a message says.
"""

from functools import cache
from typing import Any, Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app

from celery_sagas.forks import WORK
from celery_sagas.observers import observers
from celery_sagas.telemetry.multiprocess import Folder
from celery_sagas.telemetry.serving import Application
from celery_sagas.telemetry.signalled import count_signals, unfailing

#: Seconds: a step without waiting takes less than a millisecond on Redis, and one that calls a service up to a minute.
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

STEPS: Final = Histogram(
    "celery_sagas_step_duration_seconds",
    "How long handling a message took, from looking for its instance to publishing; in a batch, its share of it.",
    ["saga", "step", "outcome"],
    buckets=_BUCKETS,
)
CONFLICTS: Final = Counter("celery_sagas_conflicts", "Runs of a step that lost against another commit.", ["saga", "step"])
REDELIVERED: Final = Counter(
    "celery_sagas_redelivered",
    "Messages that were published again, to be handled later, by the class of the error.",
    ["task", "reason"],
)
DEAD_LETTERS: Final = Counter("celery_sagas_dead_letters", "New dead letters, by task or aggregator.", ["task"])
PUBLISHED: Final = Counter(
    "celery_sagas_published",
    "Committed messages that the broker has confirmed; failed: attempts after which one stays in the outbox.",
    ["result"],
)
FLUSHED: Final = Counter("celery_sagas_flushed", "Flushed batches of aggregators.", ["aggregator"])
FLUSHED_ITEMS: Final = Counter("celery_sagas_flushed_items", "Items in flushed batches of aggregators.", ["aggregator"])
LAG: Final = Gauge(
    "celery_sagas_relay_lag_seconds",
    "How long the longest due message had been due when the relay's last sweep took it.",
    ["backend"],
    multiprocess_mode="livemostrecent",
)

_CONFIRMED, _FAILED = PUBLISHED.labels("confirmed"), PUBLISHED.labels("failed")


class PrometheusMetrics:
    """Counts what happens in this process."""

    @unfailing
    def handled(self, saga: str, step: str, outcome: str, seconds: float) -> None:
        _duration(saga, step, outcome).observe(seconds)

    @unfailing
    def conflicted(self, saga: str, step: str) -> None:
        CONFLICTS.labels(saga, step).inc()

    @unfailing
    def redelivered(self, task: str, reason: str) -> None:
        REDELIVERED.labels(task, reason).inc()

    @unfailing
    def published(self, confirmed: int, failed: int) -> None:
        with WORK:  # also in threads of a main process: a lock of prometheus_client must not be held when that forks
            _CONFIRMED.inc(confirmed)
            _FAILED.inc(failed)

    @unfailing
    def lagged(self, backend: str, seconds: float) -> None:
        with WORK:
            LAG.labels(backend).set(seconds)

    def dead_lettered(self, task: str) -> None:
        DEAD_LETTERS.labels(task).inc()

    def flushed(self, aggregator: str, items: int) -> None:
        FLUSHED.labels(aggregator).inc()
        FLUSHED_ITEMS.labels(aggregator).inc(items)


@cache
def _duration(saga: str, step: str, outcome: str) -> Any:
    """Return the histogram of some labels, which prometheus_client looks up under a lock."""
    return STEPS.labels(saga, step, outcome)


def count() -> None:
    """Count what happens in this process, and in those that it forks, from now on."""
    if not any(isinstance(each, PrometheusMetrics) for each in observers):
        metrics = PrometheusMetrics()
        observers.append(metrics)
        count_signals(metrics)


class _Merged:
    """The metrics of several processes."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def collect(self) -> Any:
        """Return them."""
        return self._folder.collect()


def exposed(folder: Folder | None) -> Application:
    """Return what answers requests for the metrics of a worker: of this process, or of those that count in a folder."""
    registry = REGISTRY
    if folder is not None:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Merged(folder))
    answer: Application = make_wsgi_app(registry)
    return answer
