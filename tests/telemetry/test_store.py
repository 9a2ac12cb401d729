"""The gauges of what is stored."""

import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
from celery import Celery
from prometheus_client import CollectorRegistry, generate_latest

from celery_sagas import Batch, Saga, aggregator
from celery_sagas.stores.records import DeadLetter, Outgoing
from celery_sagas.telemetry.prometheus_store import GAUGES, StoreCollector
from celery_sagas.testing.samples import by_key, entry, found, send
from celery_sagas.worker.runtime import Runtime, runtime_of
from tests.apps import NewApp
from tests.integration.scraping import Sums, read


@pytest.fixture
def shop(app: Celery) -> Celery:
    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str) -> None: ...

    @aggregator(size=100)
    def meters(batch: Batch[int]) -> None: ...

    place("a")
    app.tasks[meters.name](1)
    return app


def scraped(collector: StoreCollector) -> Sums:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return read(generate_latest(registry).decode())


def samples_of(runtime: Runtime, name: str) -> dict[str, float]:
    """Return the values of a gauge, by task or backend; none is there twice."""
    samples = [sample for family in StoreCollector(runtime).collect() for sample in family.samples if sample.name == name]
    assert len({tuple(sample.labels.items()) for sample in samples}) == len(samples)
    return {sample.labels.get("task") or sample.labels["backend"]: sample.value for sample in samples}


def test_everything_is_counted(shop: Celery) -> None:
    """What has no samples is there, too."""
    runtime = runtime_of(shop)
    for number in range(3):
        runtime.backend.dead.add(DeadLetter(str(number), "order.place", "m", "order", "a", f"Error{number % 2}", "", "", "{}"))
    sums = scraped(StoreCollector(runtime))

    assert sums("celery_sagas_up") == sums("celery_sagas_instances", saga="order") == 1
    assert sums("celery_sagas_instances_paused") == sums("celery_sagas_instances_late") == 0
    assert sums("celery_sagas_dead_letters", error="Error0") == 2
    assert sums("celery_sagas_dead_letters") == 3
    assert sums("celery_sagas_aggregator_items", state="readable") == sums("celery_sagas_aggregator_groups") == 1
    assert {family.name for family in StoreCollector(runtime).collect()} == set(GAUGES)


def test_late_messages_are_read_once_for_all_sagas(shop: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    class Parcel(Saga, correlate_by="number"):
        number: str

    @Parcel.starts
    def pack(parcel: Parcel, number: str) -> None: ...

    shop.tasks["parcel.pack"]("b")
    shop.tasks["order.place"]("c")
    backend, reads = runtime_of(shop).backend, list[int]()
    for saga, step, key in (("order", "place", "a"), ("order", "place", "c"), ("parcel", "pack", "b")):
        line = entry(found(backend, by_key(key, (saga,))), step=f"{saga}.{step}", saga=saga)
        rows = [Outgoing(f"{key} {n}", "scheduled", f"id of {key} {n}", f"{saga}.remind", "{}", 1) for n in range(2)]
        send(backend, *rows, line=line)
    tried = backend.outbox.tried
    monkeypatch.setattr(backend.outbox, "tried", lambda *args: reads.append(1) or tried(*args))
    sums = scraped(StoreCollector(runtime_of(shop)))
    assert (sums("celery_sagas_instances_late", saga="order"), sums("celery_sagas_instances_late", saga="parcel")) == (2, 1)
    assert len(reads) == 1
    monkeypatch.setattr(import_module("celery_sagas.telemetry.prometheus_store"), "_MOST", 1)
    assert scraped(StoreCollector(runtime_of(shop)))("celery_sagas_instances_late", saga="order") == 1


def test_names_that_are_shown_alike_are_one_series(shop: Celery) -> None:
    """Some tools refuse all metrics if two are the same. A task that the app does not have may be named anything."""
    runtime = runtime_of(shop)
    for number, task in enumerate(["x" * 200 + "1", "x" * 200 + "2", "other"]):
        runtime.backend.dead.add(DeadLetter(str(number), task, "m", "order", "a", "", "", "", "{}"))
    assert samples_of(runtime, "celery_sagas_dead_letters") == {"x" * 200: 2, "other": 1}


def test_backends_of_one_url_are_shown_together(new_app: NewApp, tmp_path: Path) -> None:
    """They have tables of their own. The URL is up if all of them are."""
    url = f"sqlite:///{tmp_path / 'shop.sqlite3'}"
    app = new_app(saga_backends={"other": {"backend": url, "options": {"table_prefix": "other_"}}})
    app.conf.saga_backend = url

    class Order(Saga, correlate_by="order_id", backend="other"):
        order_id: str

    runtime = runtime_of(app)
    runtime.prepare(processes=1)
    for number, backend in enumerate(runtime.backends):
        backend.dead.add(DeadLetter(str(number), "place", "m", "order", "a", "", "", "", "{}"))
    assert samples_of(runtime, "celery_sagas_dead_letters") == {"place": 2, "other": 0}
    assert samples_of(runtime, "celery_sagas_up") == {url: 1}


def test_scrapes_share_what_was_read(shop: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are at once."""
    runtime, reads = runtime_of(shop), list[int]()
    tally = runtime.backend.outbox.tally
    monkeypatch.setattr(runtime.backend.outbox, "tally", lambda at_most: reads.append(at_most) or tally(at_most))
    collector = StoreCollector(runtime)
    threads = [threading.Thread(target=lambda: list(collector.collect())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reads) == 2  # with the counts


@pytest.mark.parametrize("hang", [lambda: threading.Event().wait(60), lambda: 1 / 0], ids=["hangs", "fails"])
def test_backend_that_is_away_holds_up_nobody(
    shop: Celery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, hang: Callable[[], object]
) -> None:
    """Whatever it does. It is read once, however often it is asked for, and said once."""
    runtime, calls = runtime_of(shop), list[None]()
    monkeypatch.setattr(runtime.backend.outbox, "time", lambda: calls.append(None) or hang())
    collector = StoreCollector(runtime, wait_s=0.05)
    for _ in range(3):
        sums = scraped(collector)
    assert sums("celery_sagas_up") == sums("celery_sagas_instances") == 0
    assert len(calls) <= 2
    assert len([record for record in caplog.records if "its gauges are left out" in record.message]) == 1
