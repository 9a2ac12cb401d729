"""Aggregators of a test alone, and what was given to their functions."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from celery import Celery

from celery_sagas import Batch, Message, aggregator
from celery_sagas.stores.items import Counts, Item
from celery_sagas.stores.records import DeadLetter
from celery_sagas.worker.runtime import runtime_of


class Reading(Message):
    """An item."""

    device: str
    celsius: float = 20.0


class Boom(Exception):
    """What a function raises."""


@dataclass
class Collected:
    """What the function of an aggregator was given."""

    batches: list[Batch[Any]] = field(default_factory=list)
    work: Callable[[Batch[Any]], Any] = lambda batch: None

    def __call__(self, batch: Batch[Any]) -> Any:
        self.batches.append(batch)
        return self.work(batch)

    @property
    def items(self) -> list[list[Any]]:
        """The items in each batch."""
        return [list(batch) for batch in self.batches]


def collector(item: Any = Reading, **options: Any) -> tuple[Any, Collected]:
    """Define an aggregator of pairs, unless its options say otherwise; return it, and what its function is given."""
    collected = Collected()

    def collect(batch: Batch[item]) -> Any:  # type: ignore[valid-type]
        """Collect."""
        return collected(batch)

    if not {"size", "within", "idle"} & set(options):
        options["size"] = 2
    return aggregator(**{"name": "shop.collect", **options})(collect), collected


def counts(app: Celery, name: str = "shop.collect") -> Counts:
    """Return how many items there are."""
    return runtime_of(app).batches.buffers.count(name)


def ids(app: Celery, group: str = "", name: str = "shop.collect") -> list[str]:
    """Return the ids of what is buffered in a group."""
    return [item.id for item in runtime_of(app).batches.buffers.read(name, group, 1_000)]


def rejected(app: Celery) -> list[DeadLetter]:
    """Return the dead letters of rejected items."""
    return runtime_of(app).batches.dead.list(1_000)


def unresolved(app: Celery) -> list[tuple[str, Item]]:
    """Return the items that could not be read, each with its group."""
    return runtime_of(app).batches.buffers.unresolved("shop.collect", 1_000)
