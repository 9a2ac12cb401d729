"""The worker's bootstep: the backend is made ready, or refused, before anything is consumed."""

from typing import Any

from celery import bootsteps, signals

from celery_sagas.core.registry import registry
from celery_sagas.worker.runtime import close_runtime, runtime_of, tell_default_backend


class PrepareBackend(bootsteps.StartStopStep):
    """Creates missing tables and refuses an unsafe backend. The worker's consumer starts after all other steps."""

    requires = ("celery.worker.components:Pool",)

    def create(self, worker: Any) -> None:
        """Say where sagas are kept by default, before the pool's processes are made: each of them would say it again."""
        if registry.sagas:
            tell_default_backend(worker.app)

    def start(self, worker: Any) -> None:
        """Prepare the backend; an error ends the worker. Connections are not kept for the pool's processes to inherit."""
        if not registry.sagas:
            return
        for step in registry.steps.values():
            step.resolve()  # those that were defined after the app was finalised have not been looked at yet
        processes = _processes(worker)
        try:
            runtime_of(worker.app).prepare(processes=processes)
        finally:
            if processes > 1:
                close_runtime(worker.app)


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
