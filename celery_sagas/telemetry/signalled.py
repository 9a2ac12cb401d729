"""What counters have in common: the signals that they count, and that their errors are nobody's."""

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from celery.exceptions import SoftTimeLimitExceeded

from celery_sagas.signals import batch_flushed, step_failed

logger = logging.getLogger("celery_sagas")

SelfT = TypeVar("SelfT")
P = ParamSpec("P")

#: The task of a dead letter that no task of this app has: its name came with a message, and may be anything.
UNKNOWN: Final = "unknown"


def unfailing(method: Callable[Concatenate[SelfT, P], object]) -> Callable[Concatenate[SelfT, P], None]:
    """Have a method of an observer log its first error, and raise none: the message that it counts is committed already."""
    logged: list[str] = []

    @wraps(method)
    def guarded(self: SelfT, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except SoftTimeLimitExceeded:  # of the running task
            raise
        except Exception:
            if not logged:
                logged.append(method.__name__)
                logger.exception("metrics are incomplete from now on: the folder of their files may be gone, or its disk full")

    return guarded


class Counting(Protocol):
    """Counts what signals say."""

    def dead_lettered(self, task: str) -> object:
        """Count a new dead letter of a task, or of an aggregator."""

    def flushed(self, aggregator: str, items: int) -> object:
        """Count a flushed batch."""


def count_signals(metrics: Counting) -> None:
    """Have the signals of this process counted from now on."""

    def dead_lettered(sender: Any = None, dead_letter: Any = None, **_: object) -> None:
        metrics.dead_lettered(UNKNOWN if isinstance(sender, str) else dead_letter.task)

    def flushed(flushed: Any = None, sender: Any = None, **_: object) -> None:
        metrics.flushed(sender.saga_aggregator.name, flushed.items)

    step_failed.connect(dead_lettered, weak=False, dispatch_uid=f"celery_sagas.{type(metrics).__qualname__}")
    batch_flushed.connect(flushed, weak=False, dispatch_uid=f"celery_sagas.{type(metrics).__qualname__}")
