"""An aggregator without Celery: a buffer in memory, and flushes whose function is the test's."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from celery_sagas.core.aggregators.batch import Batch
from celery_sagas.core.aggregators.definition import AS_JOURNAL, AggregatorDefinition, define_aggregator
from celery_sagas.core.aggregators.rules import Rules
from celery_sagas.core.delays import seconds_of
from celery_sagas.core.message import Message
from celery_sagas.core.sending import SerializedMessage
from celery_sagas.engine.aggregators.flush import Flush, Flushed, FlushVerdict
from celery_sagas.engine.aggregators.sending import SendTerms
from celery_sagas.engine.outbox.dispatch import Dispatcher
from celery_sagas.stores.aggregates import AggregateStore
from celery_sagas.stores.items import Addition, Item, NewItem
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.records import DeadLetter
from tests.engine.conftest import GRACE_S, Recorder

NAME = "shop.collect"
#: How long a lease lasts, and a flush request.
LEASE_MS = 10_000


class Reading(Message):
    """An item."""

    device: str
    celsius: int


class Boom(Exception):
    """What the function raises."""


def collect(batch: Batch[Reading]) -> None:
    """Take readings."""


def define(
    function: Callable[..., Any] = collect, *, name: str = NAME, group_by: Any = None, size: int | None = 2
) -> AggregatorDefinition:
    """Define an aggregator of readings."""
    return define_aggregator(
        function,
        name=name,
        size=size,
        within=3600,
        idle=None,
        group_by=group_by,
        dedupe_for=AS_JOURNAL,
        max_buffered=None,
        correlate_by=None,
        options={},
    )


def rules_of(definition: AggregatorDefinition, **changes: Any) -> Rules:
    """Return what an aggregator asks of its store."""
    return definition.rules(retention_ms=3_600_000, max_attempts=3, lease_ms=LEASE_MS)._replace(**changes)


def payload(id: str, celsius: object = 20) -> str:
    """Return the text of an item, of the device that is called as the item is."""
    return json.dumps({"device": id, "celsius": celsius})


def _serialize(message: object, next_id: Callable[[], str]) -> SerializedMessage:
    """Encode what is sent, which is a JSON value here: the task's name, and perhaps a text."""
    id = next_id()
    return SerializedMessage(id, id, str(message), json.dumps(message))


#: A delay is taken for a due time.
TERMS = SendTerms(_serialize, lambda after: int(seconds_of("after", after)), state_bytes=1_000)


class Interposed(AggregateStore):
    """A real store, before whose operations something else happens: a rival's call, or a failure."""

    def __init__(self, inner: AggregateStore) -> None:
        self.inner = inner
        self.calls: list[str] = []
        self.before: dict[str, list[Callable[[], None]]] = {}

    def once_before(self, operation: str, *actions: Callable[[], None]) -> None:
        """Have an action happen before the next call, another before the one after it, and so on."""
        self.before.setdefault(operation, []).extend(actions)

    def insert(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("insert", *args, **kwargs)

    def new_id(self, rules: Rules, group: str) -> str:
        return self.inner.new_id(rules, group)

    def claim(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("claim", *args, **kwargs)

    def renew(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("renew", *args, **kwargs)

    def remove(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("remove", *args, **kwargs)

    def release(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("release", *args, **kwargs)

    def resolve(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("resolve", *args, **kwargs)

    def restore(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("restore", *args, **kwargs)

    def claim_due(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("claim_due", *args, **kwargs)

    def purge(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("purge", *args, **kwargs)

    def _call(self, operation: str, *args: Any, **kwargs: Any) -> Any:
        if waiting := self.before.get(operation):
            waiting.pop(0)()
        self.calls.append(operation)
        return getattr(self.inner, operation)(*args, **kwargs)


def failing(error: Exception) -> Callable[[], None]:
    """Return what raises an error."""

    def fail() -> None:
        raise error

    return fail


class Asked(list[str]):
    """The groups whose flushes were asked for, by whoever calls it; it says that the broker is there."""

    def __call__(self, group: str) -> bool:
        """Take a group."""
        self.append(group)
        return True


@dataclass
class Collector:
    """An aggregator's buffer, and what its flushes did."""

    backend: MemoryBackend
    definition: AggregatorDefinition = field(default_factory=define)
    changes: dict[str, Any] = field(default_factory=dict)  #: of its rules
    group: str = ""

    def __post_init__(self) -> None:
        self.store = Interposed(self.backend.aggregates)
        self.asked = Asked()
        self.batches: list[Batch[Reading]] = []
        self.attempts: list[int] = []  #: those that the judge was told of
        self.work: Callable[[Batch[Reading]], Any] = lambda batch: None
        self.verdict = FlushVerdict(delay_s=5.0)
        self.publisher = Recorder()
        self.dispatcher = Dispatcher(self.backend.outbox, self.publisher, GRACE_S)

    @property
    def rules(self) -> Rules:
        """What the aggregator asks of its store."""
        return rules_of(self.definition, **self.changes)

    def add(self, *ids: str, celsius: object = 20, is_unreadable: bool = False) -> None:
        """Buffer items."""
        new = tuple(NewItem(id, payload(id, celsius), is_unreadable) for id in ids)
        self.backend.aggregates.insert(self.rules, [Addition(self.group, new)])

    def flush(self, token: str | None = None) -> Flushed:
        """Run one flush."""
        calls = (self._call, self.asked, self._judge)
        flush = Flush(self.store, self.definition, self.rules, self.group, *calls, TERMS, self.dispatcher)
        return (flush if token is None else replace(flush, token=token)).execute()

    def claim(self, token: str = "a rival") -> list[str]:
        """Claim as a rival does, or as a worker that is about to die."""
        snapshot = self.backend.aggregates.claim(self.rules, self.group, token)
        return [item.id for item in snapshot.items] if snapshot else []

    def stored(self) -> list[Item]:
        """Return what is buffered."""
        return self.backend.buffers.read(self.definition.name, self.group, 1_000)

    def states(self) -> dict[str, str]:
        """Return the state of each buffered item."""
        return {item.id: item.state for item in self.stored()}

    def failures(self) -> dict[str, int]:
        """Return how many flushes of each buffered item have failed."""
        return {item.id: item.attempts for item in self.stored()}

    def dead_letters(self) -> dict[str, DeadLetter]:
        """Return the dead letters of rejected items, by the items' ids."""
        return {dead_letter.message_id: dead_letter for dead_letter in self.backend.dead.list(1_000)}

    def rejected(self) -> dict[str, str]:
        """Return why items were rejected."""
        return {id: dead_letter.text for id, dead_letter in self.dead_letters().items()}

    @property
    def seen(self) -> list[list[str]]:
        """The devices in each batch that the function was given."""
        return [[reading.device for reading in batch] for batch in self.batches]

    def _call(self, batch: Batch[Reading]) -> Any:
        self.batches.append(batch)
        return self.work(batch)

    def _judge(self, error: Exception, attempts: int) -> FlushVerdict:
        self.attempts.append(attempts)
        return self.verdict
