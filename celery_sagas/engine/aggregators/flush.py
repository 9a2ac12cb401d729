"""One run of a flush: claim → function → remove, or release. No item is removed before the function has received it."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast
from uuid import uuid4

from celery_sagas.core.aggregators.batch import Batch
from celery_sagas.core.aggregators.definition import AggregatorDefinition
from celery_sagas.core.aggregators.rules import Reason, Rules, allowed
from celery_sagas.core.ids import derived_id
from celery_sagas.core.names import storable
from celery_sagas.engine.aggregators.renewal import Renewal
from celery_sagas.engine.dead_letters.dead_lettering import TEXT_CHARACTERS, dead_letter_of
from celery_sagas.errors import InvalidMessage, ItemRejected, LeaseLost, StoreError, StoreUnavailable
from celery_sagas.stores.aggregates import AggregateStore
from celery_sagas.stores.items import Item, Snapshot
from celery_sagas.stores.records import DeadLetter
from celery_sagas.stores.shared import SharedTransaction

logger = logging.getLogger("celery_sagas")

#: The least part of a delay for which a group pauses: by another machine's clock the retry may come a little early.
_PAUSE_OF_DELAY = 0.8
#: Seconds between attempts to remove flushed items while the store is away: the function must not run again for that.
_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class FlushVerdict:
    """The consequences of an error of the function."""

    is_done: bool = False  #: the items were handled: remove them
    is_counted: bool = True  #: the failure may be caused by the items
    delay_s: float = 0.0  #: seconds until the caller requests the next flush


class Rejection(NamedTuple):
    """An item that has become a dead letter, and its error."""

    dead_letter: DeadLetter
    error: Exception


@dataclass(frozen=True, slots=True)
class Flushed:
    """The result of a flush."""

    name: str
    group: str
    reason: str = ""  #: why the trigger fired; empty if it did not
    items: int = 0  #: passed to the function
    unresolved: int = 0  #: could not be read
    rejections: tuple[Rejection, ...] = ()
    result: Any = None
    error: Exception | None = None  #: raised by the function
    is_settled: bool = False  #: whether nothing is retried, despite the error
    delay_s: float = 0.0  #: seconds until the retry

    @property
    def rejected(self) -> int:
        """The number of rejected items."""
        return len(self.rejections)


@dataclass(slots=True)
class Flush:
    """One run of one flush, under a lease token of its own: a redelivered message claims other items."""

    store: AggregateStore
    definition: AggregatorDefinition
    rules: Rules
    group: str
    call: Callable[..., Any]  #: calls the function with a batch, and with the session of a transaction, if there is one
    ask: Callable[[str], object]  #: requests another flush of a group
    judge: Callable[[Exception, int], FlushVerdict]  #: evaluates an error, given the attempts of the first item
    time_limit_s: float | None = None  #: of the run
    begin: Callable[[], SharedTransaction] | None = None  #: begins the transaction that the function shares with the removal
    token: str = field(default_factory=lambda: uuid4().hex)

    def execute(self) -> Flushed:
        """Flush a batch, if the trigger has fired.

        Raises:
            LeaseLost: Another flush has claimed the items: nothing was removed.
            StoreError: The store is away; the claimed items become free when their lease ends.
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
        flushed = Flushed(self.definition.name, self.group, snapshot.reason, len(items), len(unread))
        if not items:
            self._remove((), unread)
            return flushed
        batch = Batch(
            values,
            ids=[item.id for item in items],
            name=self.definition.name,
            group=self.group,
            reason=cast("Reason", snapshot.reason),
            unresolved_count=snapshot.unresolved + len(unread),
        )
        shared = self.begin() if self.begin else None
        try:
            return self._run_on(batch, snapshot, items, unread, flushed, shared)
        finally:
            if shared is not None:
                shared.close()

    def _run_on(
        self,
        batch: Batch[Any],
        snapshot: Snapshot,
        items: list[Item],
        unread: list[int],
        flushed: Flushed,
        shared: SharedTransaction | None,
    ) -> Flushed:
        try:
            result = self._call(batch, shared)
            rejections = self._rejections(items, batch)
            if shared is not None:
                self._commit(shared, rejections, unread)
                return replace(flushed, rejections=rejections, result=result)
        except LeaseLost:
            raise
        except Exception as exc:
            return self._fail(snapshot, items, self._rejections(items, batch), unread, replace(flushed, error=exc), shared)
        self._remove(rejections, unread)
        return replace(flushed, rejections=rejections, result=result)

    def _call(self, batch: Batch[Any], shared: SharedTransaction | None) -> Any:
        if shared is None:
            return self.call(batch)
        result = self.call(batch, shared.handle)
        shared.flush()
        return result

    def _commit(self, shared: SharedTransaction, rejections: Sequence[Rejection], unread: Sequence[int]) -> None:
        """Remove the items in the function's transaction, and commit that: once, since a second one would be without its rows."""
        how: Any = {"rejected": _dead_letters(rejections), "unreadable": unread}
        if shared.commit(lambda backend: backend.aggregates.remove(self.rules, self.group, self.token, **how)):
            self.ask(self.group)

    def _fail(
        self,
        snapshot: Snapshot,
        items: list[Item],
        rejections: tuple[Rejection, ...],
        unread: list[int],
        flushed: Flushed,
        shared: SharedTransaction | None,
    ) -> Flushed:
        error = cast("Exception", flushed.error)
        verdict = self._verdict(error, items[0].attempts, shared)
        if verdict.is_done:
            if shared is None:
                self._remove(rejections, unread)
            else:
                self._commit(shared, rejections, unread)
            return replace(flushed, rejections=rejections, is_settled=True)
        if shared is not None:
            shared.close()  # it may have locked what the release changes
        if verdict.is_counted and self._was_last(snapshot):
            rejections = (self._rejection(items[0], error),)
        is_released = self._release(rejections, unread, verdict)  # also if all items were rejected: the group pauses
        return replace(flushed, rejections=rejections if is_released else (), delay_s=verdict.delay_s)

    def _verdict(self, error: Exception, attempts: int, shared: SharedTransaction | None) -> FlushVerdict:
        """Return the consequences of an error; one of the database says nothing about the items."""
        if shared is not None and shared.is_conflict(error):
            return FlushVerdict(is_counted=False)
        verdict = self.judge(error, attempts)
        is_about_store = shared is not None and (isinstance(error, StoreError) or shared.loss_of(error) is not None)
        return replace(verdict, is_counted=False) if is_about_store else verdict

    def _was_last(self, snapshot: Snapshot) -> bool:
        """Return whether this was the last attempt of an item, alone in its batch."""
        return len(snapshot.items) == 1 and allowed(self.rules, snapshot.items[0].attempts + 1) == 0

    def _is_exhausted(self, snapshot: Snapshot) -> bool:
        """Return whether the last attempt of an item, alone in its batch, has ended its worker, which could not reject it."""
        return len(snapshot.items) == 1 and allowed(self.rules, snapshot.items[0].attempts) == 0

    def _reject_exhausted(self, snapshot: Snapshot) -> Flushed:
        (item,) = snapshot.items
        reason = f"its flushes have failed, or ended their worker, {item.attempts} times, the last of them alone"
        rejections = (self._rejection(item, ItemRejected(self.definition.name, self.group, item.id, reason)),)
        self._remove(rejections, ())
        return Flushed(self.definition.name, self.group, snapshot.reason, rejections=rejections)

    def _rejections(self, items: list[Item], batch: Batch[Any]) -> tuple[Rejection, ...]:
        name, group = self.definition.name, self.group
        found = [(items[position], reason) for position, reason in batch.rejected.items()]
        return tuple(self._rejection(item, ItemRejected(name, group, item.id, reason)) for item, reason in found)

    def _rejection(self, item: Item, error: Exception) -> Rejection:
        """Return the dead letter of an item, with an id that is the same each time."""
        name, group = self.definition.name, self.group
        dead_letter = dead_letter_of(name, item.id, "", error, item.payload)
        if isinstance(error, ItemRejected):
            dead_letter = dead_letter._replace(text=storable(error.reason, TEXT_CHARACTERS), traceback="")
        id = derived_id(f"{item.number}/{name}/{group}", f"{item.id}/rejected")
        return Rejection(dead_letter._replace(id=id, key=group, number=item.number, buffered_at=item.at), error)

    def _read(self, snapshot: Snapshot) -> tuple[list[Item], list[Any], list[int]]:
        """Return the items that can be read, their values, and the numbers of the unreadable items."""
        items, values, unread = [], [], []
        for item in snapshot.items:
            try:
                values.append(self.definition.items.read(item.payload))
                items.append(item)
            except InvalidMessage as exc:
                unread.append(item.number)
                logger.warning("%s: the item %s cannot be read, and waits until it can be: %s", self._subject, item.id, exc)
        return items, values, unread

    def _remove(self, rejections: Sequence[Rejection], unread: Sequence[int]) -> None:
        """Remove the items and end the lease; while the store is away, retry for half of the lease."""
        deadline, attempts, dead_letters = time.monotonic() + self.rules.lease_ms / 2000, 0, _dead_letters(rejections)
        while True:
            try:
                needs_flush = self.store.remove(self.rules, self.group, self.token, rejected=dead_letters, unreadable=unread)
                break
            except LeaseLost:
                if not attempts:
                    raise
                logger.info("%s: the first attempt to remove its items may have done so, its answer was lost", self._subject)
                return
            except StoreUnavailable:
                attempts += 1
                if time.monotonic() + _PAUSE_S > deadline:
                    raise
            time.sleep(_PAUSE_S)
        if needs_flush:
            self.ask(self.group)

    def _release(self, rejections: Sequence[Rejection], unread: Sequence[int], verdict: FlushVerdict) -> bool:
        """Release the items and end the lease; return whether the store did so."""
        how: dict[str, Any] = {"rejected": _dead_letters(rejections), "unreadable": unread, "counted": verdict.is_counted}
        pause_ms = _pause_ms(verdict.delay_s * 1000, self.rules.lease_ms)
        try:
            self.store.release(self.rules, self.group, self.token, **how, delay_ms=pause_ms)
        except StoreError as exc:  # the error of the function is more informative
            logger.warning("%s: its items are not released, they come back when its lease ends: %s", self._subject, exc)
            return False
        return True

    def _renew(self) -> bool:
        return self.store.renew(self.rules, self.group, self.token)

    @property
    def _subject(self) -> str:
        return f"the flush of {self.definition.name}" + (f" (group {self.group!r})" if self.group else "")


def _pause_ms(delay_ms: float, lease_ms: int) -> int:
    """Return how long a group pauses. The flush request lasts for a lease longer, and must last until the retry comes."""
    return int(max(delay_ms * _PAUSE_OF_DELAY, delay_ms - lease_ms / 2))


def _dead_letters(rejections: Sequence[Rejection]) -> list[DeadLetter]:
    return [rejection.dead_letter for rejection in rejections]
