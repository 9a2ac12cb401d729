"""One run of a flush: claim → function → remove, or release. Nothing is removed that the function has not seen."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast
from uuid import uuid4

from celery_sagas.core.aggregators.batch import Batch
from celery_sagas.core.aggregators.definition import AggregatorDefinition
from celery_sagas.core.aggregators.rules import Reason, Rules, allowed
from celery_sagas.core.names import storable
from celery_sagas.engine.aggregators.renewal import Renewal
from celery_sagas.errors import InvalidMessage, LeaseLost, StoreError, StoreUnavailable
from celery_sagas.stores.aggregates import AggregateStore
from celery_sagas.stores.items import Item, Keeping, Snapshot

logger = logging.getLogger("celery_sagas")

_NOTE_CHARACTERS = 2_000
#: The part of a delay for which a group pauses at least: the retry may come a little early, by the clock of another machine.
_PAUSE_OF_DELAY = 0.8
#: Seconds between two attempts to remove what was flushed, while the store is away: the function must not run again for that.
_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an error of the function means."""

    is_done: bool = False  #: the items were dealt with: remove them
    is_counted: bool = True  #: the items may be to blame
    delay_s: float = 0.0  #: after which the caller asks for the next flush


@dataclass(frozen=True, slots=True)
class Flushed:
    """What came of a flush."""

    name: str
    group: str
    reason: str = ""  #: why the gate was open; empty if it was closed
    items: int = 0  #: that the function was given
    rejected: int = 0
    unresolved: int = 0  #: that could not be read
    result: Any = None
    error: Exception | None = None  #: what the function raised
    is_settled: bool = False  #: whether nothing is to be tried again, although it raised
    delay_s: float = 0.0  #: after which it is


@dataclass(slots=True)
class Flush:
    """One run of one flush, under a lease token of its own: a message that is delivered again gets other items."""

    store: AggregateStore
    definition: AggregatorDefinition
    rules: Rules
    group: str
    call: Callable[[Batch[Any]], Any]
    ask: Callable[[str], object]  #: asks for another flush of a group
    judge: Callable[[Exception, int], Verdict]  #: what an error means, after so many attempts of the first item
    time_limit_s: float | None = None  #: of the run
    token: str = field(default_factory=lambda: uuid4().hex)

    def execute(self) -> Flushed:
        """Flush a batch, if the gate is open.

        Raises:
            LeaseLost: Another flush has the items: nothing was removed.
            StoreError: The store is away; what was claimed comes back when its lease ends.
        """
        snapshot = self.store.claim(self.rules, self.group, self.token)
        if snapshot is None:
            return Flushed(self.definition.name, self.group)
        with Renewal(self._renew, self.rules.lease_ms / 1000, self.time_limit_s, self._subject):
            if snapshot.is_more:
                self.ask(self.group)
            return self._reject_exhausted(snapshot) if self._is_exhausted(snapshot) else self._run(snapshot)

    def _run(self, snapshot: Snapshot) -> Flushed:
        items, values, unread = self._read(snapshot)
        if not items:
            self._remove(unread)
            return self._flushed(snapshot, None, unread)
        reason = cast("Reason", snapshot.reason)
        batch = Batch(
            values,
            ids=[item.id for item in items],
            name=self.definition.name,
            group=self.group,
            reason=reason,
            unresolved_count=snapshot.unresolved + len(unread),
        )
        try:
            result = self.call(batch)
        except Exception as exc:
            return self._fail(snapshot, items, batch, unread, exc)
        self._remove([*unread, *_rejections(items, batch)])
        return self._flushed(snapshot, batch, unread, result=result)

    def _fail(self, snapshot: Snapshot, items: list[Item], batch: Batch[Any], unread: list[Keeping], error: Exception) -> Flushed:
        verdict = self.judge(error, items[0].attempts)
        kept = [*unread, *_rejections(items, batch)]
        if verdict.is_done:
            self._remove(kept)
            return self._flushed(snapshot, batch, unread, error=error, is_settled=True)
        flushed = self._flushed(snapshot, batch, unread, error=error, delay_s=verdict.delay_s)
        if verdict.is_counted and self._was_last(snapshot):
            kept, flushed = [Keeping(items[0].number, "rejected", _note_of(error))], replace(flushed, rejected=1)
            logger.error("%s: the item %s fails alone, and is set aside: %r", self._subject, items[0].id, error)
        self._release(kept, verdict)  # also where nothing comes back: the group pauses
        return flushed

    def _was_last(self, snapshot: Snapshot) -> bool:
        """Whether this was the last attempt of an item, alone."""
        return len(snapshot.items) == 1 and allowed(self.rules, snapshot.items[0].attempts + 1) == 0

    def _is_exhausted(self, snapshot: Snapshot) -> bool:
        """Whether the last attempt of an item, alone, has ended its worker, so that nobody was left to set it aside."""
        return len(snapshot.items) == 1 and allowed(self.rules, snapshot.items[0].attempts) == 0

    def _reject_exhausted(self, snapshot: Snapshot) -> Flushed:
        (item,) = snapshot.items
        note = f"its flushes have failed, or ended their worker, {item.attempts} times, the last of them alone"
        self._remove([Keeping(item.number, "rejected", note)])
        logger.error("%s: the item %s is set aside: %s", self._subject, item.id, note)
        return Flushed(self.definition.name, self.group, snapshot.reason, rejected=1)

    def _read(self, snapshot: Snapshot) -> tuple[list[Item], list[Any], list[Keeping]]:
        """Return the items that can be read, what they are, and the others."""
        items, values, unread = [], [], []
        for item in snapshot.items:
            try:
                values.append(self.definition.items.read(item.payload))
                items.append(item)
            except InvalidMessage as exc:
                unread.append(Keeping(item.number, "unresolved", self.definition.items.fingerprint))
                logger.warning("%s: the item %s cannot be read, and is kept until it can be: %s", self._subject, item.id, exc)
        return items, values, unread

    def _remove(self, kept: list[Keeping]) -> None:
        """End the lease; while the store is away, try for half of its time."""
        give_up, attempts = time.monotonic() + self.rules.lease_ms / 2000, 0
        while True:
            try:
                is_open = self.store.remove(self.rules, self.group, self.token, kept)
                break
            except LeaseLost:
                if not attempts:
                    raise
                logger.info("%s: the first attempt to remove its items may have done so, its answer was lost", self._subject)
                return
            except StoreUnavailable:
                attempts += 1
                if time.monotonic() + _PAUSE_S > give_up:
                    raise
            time.sleep(_PAUSE_S)
        if is_open:
            self.ask(self.group)

    def _release(self, kept: list[Keeping], verdict: Verdict) -> None:
        try:
            pause_ms = _pause_ms(verdict.delay_s * 1000, self.rules.lease_ms)
            self.store.release(self.rules, self.group, self.token, kept, counted=verdict.is_counted, delay_ms=pause_ms)
        except StoreError as exc:  # the error of the function says more
            logger.warning("%s: its items are not released, they come back when its lease ends: %s", self._subject, exc)

    def _renew(self) -> bool:
        return self.store.renew(self.rules, self.group, self.token)

    def _flushed(self, snapshot: Snapshot, batch: Batch[Any] | None, unread: list[Keeping], **outcome: Any) -> Flushed:
        items, rejected = (len(batch), len(batch.rejected)) if batch is not None else (0, 0)
        return Flushed(self.definition.name, self.group, snapshot.reason, items, rejected, len(unread), **outcome)

    @property
    def _subject(self) -> str:
        return f"the flush of {self.definition.name}" + (f" (group {self.group!r})" if self.group else "")


def _pause_ms(delay_ms: float, lease_ms: int) -> int:
    """Return for how long a group pauses; the mark lasts for a lease more, and must last until the retry comes."""
    return int(max(delay_ms * _PAUSE_OF_DELAY, delay_ms - lease_ms / 2))


def _rejections(items: list[Item], batch: Batch[Any]) -> list[Keeping]:
    return [
        Keeping(items[position].number, "rejected", storable(note, _NOTE_CHARACTERS)) for position, note in batch.rejected.items()
    ]


def _note_of(error: Exception) -> str:
    return storable(f"it fails alone: {error!r}", _NOTE_CHARACTERS)
