"""The gauges of what is stored, for Prometheus: read when they are asked for, and kept for a while."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Final, NamedTuple

from celery_sagas.connections import BRIEF
from celery_sagas.core.pending import PAUSED
from celery_sagas.core.registry import registry
from celery_sagas.errors import needs_extra
from celery_sagas.operate.choosing import count_late
from celery_sagas.operate.explain import LATE_MS
from celery_sagas.operate.groups import grouped
from celery_sagas.stores.instances import MOST
from celery_sagas.stores.ports import Backend
from celery_sagas.worker.runtime import Runtime

with needs_extra("prometheus", "prometheus_client"):
    from prometheus_client.core import GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector

logger = logging.getLogger("celery_sagas")

#: Seconds for which what was read is shown.
_READ_S: Final = 15.0
_COUNTED_S: Final = 60.0
#: A count that takes long is made less often: it takes at most this part of the time.
_OF_TIME: Final = 1 / 20
#: Seconds that a scrape waits for all stores; Prometheus waits for ten.
_WAIT_S: Final = 5.0
#: Where counts stop that cost what they count.
_MOST: Final = 10_000
#: How many dead letters are looked at for their tasks and errors: the newest ones.
_LETTERS: Final = 500
#: How many groups of them are shown.
_GROUPS: Final = 50
#: How many characters of a name are shown.
_CHARACTERS: Final = 200
#: What is shown of the others.
_OTHER: Final = "other"

#: What gauges are called, what they say, and their labels.
GAUGES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "celery_sagas_up": ("Whether the backend answers: 1, or 0.", ("backend",)),
    "celery_sagas_instances": ("Live instances.", ("saga",)),
    "celery_sagas_instances_late": (
        "Live instances for which a timeout, or the deadline of a request, is overdue: 10000 at most.",
        ("saga",),
    ),
    "celery_sagas_instances_paused": ("Live instances that an operator has paused: 10000 at most.", ("saga",)),
    "celery_sagas_outbox_rows": (
        "Committed messages in the outbox: due, 10000 at most, or later, which includes those that a process is publishing.",
        ("backend", "state"),
    ),
    "celery_sagas_outbox_oldest_due_seconds": ("How long the longest due message has been due.", ("backend",)),
    "celery_sagas_dead_letters": (
        "Dead letters, by the tasks and errors of the newest 500; those that are not among them, and not in the 50 largest "
        "groups, are of the task other.",
        ("backend", "task", "error"),
    ),
    "celery_sagas_journal_oldest_seconds": ("The age of the oldest entry of the journal.", ("backend",)),
    "celery_sagas_aggregator_items": ("Buffered items of aggregators: readable or unreadable.", ("aggregator", "state")),
    "celery_sagas_aggregator_groups": ("Groups of aggregators that have buffered items.", ("aggregator",)),
}


class Sample(NamedTuple):
    """A value of a gauge."""

    name: str
    labels: tuple[str, ...]
    value: float


class StoreCollector(Collector):
    """Collects the gauges of what an app has stored, for any registry of prometheus_client.

    A backend that is away, or does not answer in time, has ``celery_sagas_up`` 0, and no other gauge. No scrape raises an error,
    or waits for more than a few seconds; any number of them cost the stores no more than one.

    Args:
        runtime: The resources of the app, which stay open for as long as there are scrapes.
        wait_s: How long a scrape waits for all backends. Seconds.
    """

    def __init__(self, runtime: Runtime, wait_s: float = _WAIT_S) -> None:
        self._wait_s = wait_s
        self._backends = list(runtime.backends)
        self._read = [_Kept(each.url, partial(_of_outbox, each), _READ_S) for each in self._backends]
        self._counted = [_Kept(each.url, partial(_of_counts, runtime, each), _COUNTED_S) for each in self._backends]

    def describe(self) -> list[Metric]:
        """Return the gauges, without reading anything."""
        return [GaugeMetricFamily(name, text, labels=labels) for name, (text, labels) in GAUGES.items()]

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges."""
        families = {name: GaugeMetricFamily(name, text, labels=labels) for name, (text, labels) in GAUGES.items()}
        for (name, labels), value in _merged(self._samples()).items():
            families[name].add_metric(labels, value)
        yield from families.values()

    def _samples(self) -> Iterator[Sample]:
        until = time.monotonic() + self._wait_s
        for each in (*self._read, *self._counted):
            each.begin()
        up: dict[str, bool] = {}
        for backend, read, counted in zip(self._backends, self._read, self._counted, strict=True):
            found = read.result(until)
            up[backend.url] = up.get(backend.url, True) and found is not None
            if found is not None:
                yield from found
                yield from counted.result(until) or counted.last
        yield from (Sample("celery_sagas_up", (url,), float(is_up)) for url, is_up in up.items())


class _Kept:
    """What was read of a backend, and is read again when it is old: in a thread of its own, which may hang.

    Args:
        url: Of the backend, as it may be shown.
        read: Reads it.
        lasts_s: For how long it is kept. Seconds.
    """

    def __init__(self, url: str, read: Callable[[], list[Sample]], lasts_s: float) -> None:
        self._url = url
        self._read = read
        self._lasts_s = lasts_s
        self._lock = threading.Lock()
        self._reading: Future[list[Sample]] | None = None
        self._old_at = 0.0
        self._is_failing = False
        self.last: list[Sample] = []  #: what was read last, until the backend is away

    def begin(self) -> None:
        """Begin to read if it is old; what is being read is not read twice."""
        with self._lock:
            if self._reading is not None and (not self._reading.done() or time.monotonic() < self._old_at):
                return
            self._reading = Future()
            threading.Thread(target=self._run, args=(self._reading,), name=f"{BRIEF}gauges", daemon=True).start()

    def result(self, until: float) -> list[Sample] | None:
        """Return what was read; ``None`` if it cannot be read, or is not read by a time of ``time.monotonic``."""
        reading = self._reading
        try:
            return reading.result(max(0.0, until - time.monotonic())) if reading else None
        except Exception as exc:  # of any store; a registry would answer with none of the metrics
            self._log(exc)
            return None

    def _run(self, reading: "Future[list[Sample]]") -> None:
        began = time.monotonic()
        try:
            found = self._read()
        except Exception as exc:
            self.last, self._old_at = [], time.monotonic() + self._lasts_s
            reading.set_exception(exc)
        else:
            took_s = time.monotonic() - began
            self.last, self._old_at, self._is_failing = found, time.monotonic() + max(self._lasts_s, took_s / _OF_TIME), False
            reading.set_result(found)

    def _log(self, error: Exception) -> None:
        if not self._is_failing:  # once for each outage
            reason = "it has not answered in time" if isinstance(error, TimeoutError) else error
            logger.warning("%s: its gauges are left out: %s", self._url, reason)
        self._is_failing = True


def _merged(samples: Iterable[Sample]) -> dict[tuple[str, tuple[str, ...]], float]:
    """Return the values by names and labels: as two backends may have one URL, and tools refuse two samples alike."""
    values: dict[tuple[str, tuple[str, ...]], float] = {}
    for name, labels, value in samples:
        other = values.get((name, labels), 0.0)
        values[name, labels] = max(other, value) if name.endswith("_seconds") else other + value
    return values


def _of_outbox(backend: Backend) -> list[Sample]:
    """Read what alarms are about."""
    tally, now, oldest_at = backend.outbox.tally(_MOST), backend.outbox.time(), backend.journal.oldest_at()
    oldest_s = (now - tally.oldest_due_at) / 1000 if tally.oldest_due_at else 0.0
    return [
        Sample("celery_sagas_outbox_rows", (backend.url, "due"), tally.due),
        Sample("celery_sagas_outbox_oldest_due_seconds", (backend.url,), max(0.0, oldest_s)),
        Sample("celery_sagas_journal_oldest_seconds", (backend.url,), max(0.0, (now - oldest_at) / 1000) if oldest_at else 0.0),
    ]


def _of_counts(runtime: Runtime, backend: Backend) -> list[Sample]:
    """Count what costs what it counts."""
    due, rows = backend.outbox.tally(_MOST).due, backend.outbox.count()
    later = Sample("celery_sagas_outbox_rows", (backend.url, "later"), max(0, rows - due))
    items = _of_items(backend) if backend is runtime.batches and backend.has_aggregators else ()
    return [later, *_of_instances(runtime, backend), *_of_dead_letters(backend), *items]


def _of_instances(runtime: Runtime, backend: Backend) -> Iterator[Sample]:
    sagas = runtime.backends.sagas_in(backend)
    counts = backend.sagas.count([name for saga in sagas for name in saga.names]) if sagas else {}
    late = count_late(backend, sagas, backend.outbox.time() - LATE_MS, _MOST)
    for saga in sagas:
        yield Sample("celery_sagas_instances", (saga.name,), sum(counts.get(name, 0) for name in saga.names))
        yield Sample("celery_sagas_instances_late", (saga.name,), late[saga.name])
        if backend.has_instances:
            paused = sum(backend.instances.count(name, _MOST, PAUSED) for name in saga.names)
            yield Sample("celery_sagas_instances_paused", (saga.name,), min(paused, _MOST))


def _of_dead_letters(backend: Backend) -> Iterator[Sample]:
    count, newest = backend.dead.count(), backend.dead.list(min(_LETTERS, MOST))
    groups = grouped(newest)[:_GROUPS]
    for group in groups:
        yield Sample("celery_sagas_dead_letters", (backend.url, _shown(group.task), _shown(group.error)), group.dead_letters)
    rest = max(0, count - sum(group.dead_letters for group in groups))
    yield Sample("celery_sagas_dead_letters", (backend.url, _OTHER, ""), rest)


def _of_items(backend: Backend) -> Iterator[Sample]:
    for name in sorted({*registry.aggregators, *backend.buffers.names()}):
        counts = backend.buffers.count(name)
        yield Sample("celery_sagas_aggregator_items", (_shown(name), "readable"), counts.resolved)
        yield Sample("celery_sagas_aggregator_items", (_shown(name), "unreadable"), counts.unresolved)
        yield Sample("celery_sagas_aggregator_groups", (_shown(name),), counts.groups)


def _shown(text: str) -> str:
    """Return stored text as a label, which some print: without controls, and not too long."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text[:_CHARACTERS])
