"""Waiting outside of all tasks: in this thread, or in an event loop, whose looks run in threads that nothing holds in between."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from celery import Celery

from celery_sagas.engine.polling import Polling, finish, proceed
from celery_sagas.worker.celery_internals import as_current_app
from celery_sagas.worker.runtime import runtime_of

T = TypeVar("T")


def finished(app: Celery, begin: Callable[[], Polling[T]]) -> T:
    """Wait for what is polled, and return it."""
    return finish(begin(), runtime_of(app).pause)


async def finished_async(app: Celery, begin: Callable[[], Polling[T]]) -> T:
    """Wait for what is polled, and return it, while the event loop goes on; if that is cancelled, only a look may still run."""
    polling = await in_thread(app, begin)
    pause = runtime_of(app).pause
    while isinstance(step := await in_thread(app, partial(proceed, polling)), float):
        await (asyncio.sleep(step) if pause is None else in_thread(app, partial(pause, step)))
    return step.value


async def in_thread(app: Celery, call: Callable[[], T]) -> T:
    """Call a function in a thread, in which an app is the current one."""

    def calling() -> T:
        with as_current_app(app):
            return call()

    return await asyncio.to_thread(calling)
