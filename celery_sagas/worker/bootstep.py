"""The worker's bootstep: the backend is made ready, or refused, before anything is consumed."""

import logging
from typing import Any

from celery import bootsteps, signals

from celery_sagas.core.registry import registry
from celery_sagas.errors import UnsafeBackend
from celery_sagas.settings import read_settings
from celery_sagas.worker.runtime import open_app_backend

logger = logging.getLogger("celery_sagas")


class PrepareBackend(bootsteps.StartStopStep):
    """Creates missing tables and refuses an unsafe backend. The worker's consumer starts after all other steps."""

    requires = ("celery.worker.components:Pool",)

    def start(self, worker: Any) -> None:
        """Prepare the backend; an error ends the worker."""
        if registry.sagas:
            prepare(worker.app, processes=_processes(worker))


def prepare(app: Any, *, processes: int) -> None:
    """Make an app's backend ready over connections that are closed again.

    Raises:
        ConfigurationError: A setting is wrong, or the backend cannot keep the promise.
        StoreUnavailable: It cannot be reached.
    """
    settings = read_settings(app.conf)
    backend = open_app_backend(app, settings)
    try:
        for warning in backend.prepare(create_schema=settings.create_schema, processes=processes):
            logger.warning("%s: %s", backend.url, warning)
    except UnsafeBackend as exc:
        if settings.unsafe_backend == "refuse":
            raise
        logger.warning("%s: %s", backend.url, exc)
    finally:
        backend.close()


def _processes(worker: Any) -> int:
    """Return how many processes run tasks: more than one if the pool has processes of its own, whatever their number."""
    pool = f"{worker.pool_cls.__module__}.{worker.pool_cls.__qualname__}"
    return max(2, worker.concurrency) if "prefork" in pool else 1


def add_bootstep(sender: Any = None, **_: object) -> None:
    """Add the bootstep to a worker that begins: all task modules are loaded by now, and its blueprint is not built yet."""
    sender.app.steps["worker"].add(PrepareBackend)


def connect() -> None:
    """Connect the receiver; again changes nothing."""
    signals.worker_init.connect(add_bootstep, dispatch_uid="celery_sagas.bootstep")
