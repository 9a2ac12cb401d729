"""What a process of the pool exports when it ends."""

from collections.abc import Callable, Iterator
from threading import Event

import pytest
from celery import signals

from celery_sagas.observers import observers
from celery_sagas.signals import batch_flushed, step_failed
from celery_sagas.telemetry.metrics import measure
from celery_sagas.telemetry.tracing import SagaInstrumentor
from tests.waiting import DEADLINE_S


class Provider:
    """A provider of an SDK whose exporter does something."""

    def __init__(self, export: Callable[[], object]) -> None:
        self._export = export
        self.exports: list[object] = []

    def get_tracer(self, *_: object, **__: object) -> None: ...

    def get_meter(self, *_: object, **__: object) -> "Provider":
        return self

    def create_counter(self, *_: object) -> None: ...

    create_histogram = create_counter

    def force_flush(self, milliseconds: int) -> None:
        self.exports.append(self._export())


@pytest.fixture(autouse=True)
def receivers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Those of this test alone."""
    for signal in (signals.worker_process_shutdown, step_failed, batch_flushed):
        monkeypatch.setattr(signal, "receivers", [])
        monkeypatch.setattr(signal, "sender_receivers_cache", {}, raising=False)
    before, observers[:] = list(observers), []
    yield
    observers[:] = before
    SagaInstrumentor().uninstrument()


def trace(provider: Provider) -> None:
    SagaInstrumentor().instrument(tracer_provider=provider)  # type: ignore[arg-type]


@pytest.mark.parametrize("use", [trace, measure])
def test_process_exports_what_it_has(use: Callable[[Provider], None]) -> None:
    provider = Provider(lambda: "exported")
    use(provider)
    signals.worker_process_shutdown.send(sender=None, pid=1, exitcode=0)
    assert provider.exports == ["exported"]


def test_collector_that_hangs_holds_up_no_process() -> None:
    """The SDK does not keep to the time that it is given."""
    released = Event()
    provider = Provider(lambda: released.wait(DEADLINE_S))
    trace(provider)
    signals.worker_process_shutdown.send(sender=None, pid=1, exitcode=0)
    assert provider.exports == []
    released.set()


def test_export_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    provider = Provider(lambda: 1 / 0)
    measure(provider)  # type: ignore[arg-type]
    signals.worker_process_shutdown.send(sender=None, pid=1, exitcode=0)
    assert [record.message for record in caplog.records] == [
        "the last spans or metrics of this process could not be exported: division by zero"
    ]
