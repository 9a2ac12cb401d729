"""Work with a deadline, for a worker's main process, which must not be blocked."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from celery_sagas.forks import WORK

T = TypeVar("T")


def within(seconds: float, work: Callable[[], T]) -> T:
    """Do work in a thread of its own, between the forks of this process, and wait for it.

    Returns:
        The result of the work.

    Raises:
        TimeoutError: It took longer; it continues, and its result is lost.
        Exception: Raised by the work.
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
