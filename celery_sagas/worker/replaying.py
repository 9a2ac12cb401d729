"""Replay in a process of an app: nothing is published, and nothing but the history is read."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from celery import Celery

from celery_sagas.core.history import History
from celery_sagas.engine.replay import Replayed, replay
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.worker.celery_internals import as_current_app
from celery_sagas.worker.deliveries import caller_without_worker
from celery_sagas.worker.isolation import drop, local, publishing_to
from celery_sagas.worker.runtime import Runtime, runtime_of, runtimes_opened_by


@contextmanager
def replaying(app: Celery) -> Iterator[Callable[[History], Replayed]]:
    """Yield a function that replays a history with the app's steps.

    Meanwhile whatever this process publishes is dropped, and its apps have an empty backend in memory, so that a handler that
    looks up another instance finds none.
    """
    with ExitStack() as stack:
        stack.enter_context(publishing_to(drop))
        stack.enter_context(local(app))
        stack.enter_context(runtimes_opened_by(_open))
        stack.enter_context(as_current_app(app))
        runtime = runtime_of(app)
        stack.callback(runtime.close)
        yield lambda history: replay(history, runtime.services.terms, partial(caller_without_worker, app))


def _open(app: Celery) -> Runtime:
    return Runtime(app, MemoryBackend("memory://", prefix=""))
