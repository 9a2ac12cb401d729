"""Work with a deadline, for a worker's main process, which nobody else may hold up."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from celery_sagas.forks import WORK

T = TypeVar("T")


def within(seconds: float, work: Callable[[], T]) -> T:
    """Do work in a thread of its own, between the forks of this process, and wait for it.

    Returns:
        What it returns.

    Raises:
        TimeoutError: It took longer; it goes on, and nobody learns what becomes of it.
        Exception: What it raises.
    """
    done: Future[T] = Future()

    def run() -> None:
        try:
            with WORK:
                result = work()
            done.set_result(result)
        except Exception as exc:
            done.set_exception(exc)

    threading.Thread(target=run, daemon=True, name="celery-sagas-deadline").start()
    return done.result(seconds)
