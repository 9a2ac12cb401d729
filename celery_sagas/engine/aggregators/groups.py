"""The relay's work for aggregators: it flushes groups that are due, and retries unreadable items."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from celery_sagas.core.aggregators.definition import AggregatorDefinition
from celery_sagas.core.aggregators.rules import Rules
from celery_sagas.engine.sweeps import Sweep
from celery_sagas.errors import InvalidMessage, PublishError
from celery_sagas.stores.items import Addition, DueGroup, Item
from celery_sagas.stores.ports import Backend

logger = logging.getLogger("celery_sagas")

#: Groups to claim, and items to read, at once.
BATCH = 100
#: The most groups whose flushes are requested by one message, and into how many messages fewer groups are divided.
IN_MESSAGE, MESSAGES = 25, 4
#: Groups that one sweep checks after a start.
LOOKED_AT = 200
#: Seconds between two rounds through the unreadable items of all aggregators.
PAUSE_S = 60.0


@dataclass
class Groups:
    """The groups of the aggregators that are defined in this process.

    A group that was claimed is not claimed again before its lease ends: if its message is lost, or the broker is away, it is
    flushed then.
    """

    backend: Backend
    definitions: Callable[[], Iterable[AggregatorDefinition]]
    rules_of: Callable[[AggregatorDefinition], Rules]
    #: Publishes a message that flushes groups, or raises PublishError.
    ask: Callable[[AggregatorDefinition, Sequence[str]], None]
    lease_s: float
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._next_reading = self.clock()
        #: By aggregator: the last group that was checked since this process began; the aggregator's rules may be new.
        self._looked_at: dict[str, str | None] = {}
        #: By aggregator: the last unreadable item of this round, with its group.
        self._tried: dict[str, tuple[str, int]] = {}

    def sweep(self, sweep: Sweep, must_end: Callable[[], bool]) -> None:
        """Request the flushes that are due while the broker accepts them; end before the first claimed group is due again."""
        known = {definition.name: definition for definition in self.definitions()}
        end = self.clock() + self.lease_s / 2
        while known and not sweep.is_broker_away and not must_end() and self.clock() < end:
            due = self.backend.aggregates.claim_due(list(known), BATCH, int(self.lease_s * 1000))
            for name, groups in _in_messages(due):
                if not self._ask(sweep, known[name], groups):
                    return
            if len(due) < BATCH:
                break
        for definition in known.values():
            if not sweep.is_broker_away and not must_end() and self.clock() < end:
                self._look_at_some(sweep, definition)
        if known and not must_end() and self.clock() >= self._next_reading:
            self._next_reading = self.clock() + PAUSE_S
            for definition in known.values():
                self._try_again(definition)

    def _look_at_some(self, sweep: Sweep, definition: AggregatorDefinition) -> None:
        """Check some groups against the aggregator's present rules: their due times were set under older ones."""
        after = self._looked_at.get(definition.name, "")
        if after is None:
            return
        groups = [each.group for each in self.backend.buffers.groups(definition.name, LOOKED_AT, after)]
        added = (
            self.backend.aggregates.insert(self.rules_of(definition), [Addition(group, ()) for group in groups]) if groups else []
        )
        for group, each in zip(groups, added, strict=True):
            if each.needs_flush and not self._ask(sweep, definition, [group]):
                return
        self._looked_at[definition.name] = groups[-1] if len(groups) == LOOKED_AT else None

    def _ask(self, sweep: Sweep, definition: AggregatorDefinition, groups: Sequence[str]) -> bool:
        try:
            self.ask(definition, groups)
        except PublishError as exc:
            sweep.error, sweep.is_broker_away = exc.reason, True
            return False
        sweep.flushes += len(groups)
        return True

    def _try_again(self, definition: AggregatorDefinition) -> None:
        """Free the next unreadable items that this code can read: the code has changed, or other code failed to read them."""
        name = definition.name
        items = self.backend.buffers.unresolved(name, BATCH, self._tried.pop(name, None))
        groups: dict[str, list[int]] = {}
        for group, item in items:
            if _is_readable(definition, item):
                groups.setdefault(group, []).append(item.number)
        count = sum(self.backend.aggregates.resolve(self.rules_of(definition), *each) for each in groups.items())
        if count:
            logger.info("%s: %d items can be read now, and are flushed", name, count)
        if len(items) == BATCH:
            group, last = items[-1]
            self._tried[name], self._next_reading = (group, last.number), self.clock()


def _in_messages(due: Sequence[DueGroup]) -> Iterator[tuple[str, list[str]]]:
    """Yield for each message its aggregator and the groups that it flushes; several processes share a few groups."""
    names: dict[str, list[str]] = {}
    for each in due:
        names.setdefault(each.name, []).append(each.group)
    for name, groups in names.items():
        most = max(1, min(IN_MESSAGE, len(groups) // MESSAGES))
        yield from ((name, groups[first : first + most]) for first in range(0, len(groups), most))


def _is_readable(definition: AggregatorDefinition, item: Item) -> bool:
    try:
        definition.items.read(item.payload)
    except InvalidMessage:
        return False
    return True
