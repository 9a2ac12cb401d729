"""The doctor: it looks at the configuration and at the live system, and says what is wrong, what follows, and what to do.

Rules decide about facts, and are free of I/O; ``reading`` and ``asking`` read the facts, and change nothing.
"""

from collections.abc import Iterator
from dataclasses import replace

from celery import Celery

from celery_sagas.operate.doctor import configuration, stores, workers
from celery_sagas.operate.doctor.asking import read_workers
from celery_sagas.operate.doctor.facts import Broker, Finding, Workers, apply
from celery_sagas.operate.doctor.reading import open_app, read_broker, read_configuration, read_store
from celery_sagas.settings import Settings
from celery_sagas.stores.health import Level
from celery_sagas.worker.backends import Backends

__all__ = ["Finding", "Level", "ask_workers", "diagnose"]


def diagnose(app: Celery, *, is_live: bool = True) -> Iterator[Finding]:
    """Yield what there is to say about an app, also where all is well.

    Args:
        app: Its modules are imported.
        is_live: Whether its broker, its workers and its backends are asked, too.
    """
    opened = open_app(app)
    try:
        yield from apply(configuration.RULES, read_configuration(app, opened))
        if is_live and opened.settings is not None and opened.backends is not None:
            yield from _live(app, opened.settings, opened.backends)
    finally:
        if opened.backends is not None:
            opened.backends.close()


def _live(app: Celery, settings: Settings, backends: Backends) -> Iterator[Finding]:
    known = dict[str, int]()
    if not app.conf.task_always_eager:
        broker, asked = ask_workers(app, settings)
        yield from apply(workers.BROKER, broker, broker.url)
        if asked is not None:
            yield from _of_workers(asked)
            known = {name: max(_known(asked, name)) for name in asked.here.schema_versions}
    for backend in backends:
        store = read_store(backend, settings, backends.sagas_in(backend), known)
        yield from apply(stores.REACHED, store, store.url)
        if store.is_read:
            yield from apply(stores.STORED, store, store.url)


def ask_workers(app: Celery, settings: Settings) -> tuple[Broker, Workers | None]:
    """Ask the broker, and over it the workers, if it answers; else it has an error."""
    broker = read_broker(app)
    if broker.error:
        return broker, None
    try:
        return broker, read_workers(app, settings)
    except Exception as exc:  # of any transport: the broker has just gone away
        return replace(broker, error=f"it has stopped answering: {type(exc).__name__}"), None


def _of_workers(asked: Workers) -> Iterator[Finding]:
    yield from apply(workers.ASKED, asked)
    if asked.workers:
        yield from apply(workers.ANSWERED, asked)


def _known(asked: Workers, saga: str) -> list[int]:
    codes = [asked.here, *(worker.code for worker in asked.workers)]
    return [code.schema_versions[saga] for code in codes if saga in code.schema_versions]
