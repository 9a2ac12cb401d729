"""What metrics learn from this library's own signals: dead letters, and flushed batches."""

from typing import Any, Final, Protocol

from celery_sagas.signals import batch_flushed, step_failed

#: The task of a dead letter that no task of this app has: its name came with a message, and may be anything.
UNKNOWN: Final = "unknown"


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
