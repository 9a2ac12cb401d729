"""One run of a flush: claim → function → remove, then publish; or release.

No item is removed before the function has received it, and nothing that it sends is published before the removal has stored it.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast
from uuid import uuid4

from celery_sagas.core.aggregators.batch import Batch, attach
from celery_sagas.core.aggregators.definition import AggregatorDefinition
from celery_sagas.core.aggregators.rules import Reason, Rules, allowed
from celery_sagas.core.ids import derived_id
from celery_sagas.core.names import storable
from celery_sagas.engine.aggregators.renewal import Renewal
from celery_sagas.engine.aggregators.sending import BatchMessages, SendTerms, sends_of
from celery_sagas.engine.dead_letters.dead_lettering import TEXT_CHARACTERS, dead_letter_of
from celery_sagas.engine.outbox.dispatch import Dispatcher
from celery_sagas.errors import InvalidMessage, ItemRejected, LeaseLost, StoreError, StoreUnavailable
from celery_sagas.stores.aggregates import AggregateStore
from celery_sagas.stores.items import Item, Snapshot
from celery_sagas.stores.records import DeadLetter, Sends
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
    terms: SendTerms
    dispatcher: Dispatcher  #: of the store's backend: publishes what the function sends
    time_limit_s: float | None = None  #: of the run
    begin: Callable[[], SharedTransaction] | None = None  #: begins the transaction that the function shares with the removal
    token: str = field(default_factory=lambda: uuid4().hex)
    _messages: BatchMessages = field(init=False)
    _stored: Sends | None = field(default=None, init=False)  #: what the function has sent, once it is stored
    _shared: SharedTransaction | None = field(default=None, init=False)  #: of the function, if it has one
    _called_at: float = field(default=0.0, init=False)  #: when the store was called for it: the lease on the rows began later

    def __post_init__(self) -> None:
        self._messages = BatchMessages(self.definition.name, self.token, self.terms, self.store)

    def execute(self) -> Flushed:
        """Flush a batch, if the trigger has fired.

        Raises:
            LeaseLost: Another flush has claimed the items: nothing was removed, nor sent.
            StoreError: The store is away; the claimed items become free when their lease ends.
            Exception: Raised by a task that was sent and runs inline; the items are removed.
        """
        snapshot = self.store.claim(self.rules, self.group, self.token)
        if snapshot is None:
            return Flushed(self.definition.name, self.group)
        with Renewal(self._renew, self.rules.lease_ms / 1000, self.time_limit_s, self._subject):
            if snapshot.is_more:
                self.ask(self.group)
            flushed = self._reject_exhausted(snapshot) if self._is_exhausted(snapshot) else self._run(snapshot)
        if self._stored is not None:
            at_once = [row for row in self._stored.outgoing if not row.due_at]  # a relay publishes what is due later
            self.dispatcher.dispatch(at_once, self._called_at)
        return flushed

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
        attach(batch, self._messages)
        self._shared = self.begin() if self.begin else None
        try:
            return self._run_on(batch, snapshot, items, unread, flushed)
        finally:
            self._close_shared()

    def _run_on(self, batch: Batch[Any], snapshot: Snapshot, items: list[Item], unread: list[int], flushed: Flushed) -> Flushed:
        try:
            with self._messages.running():
                result = self._call(batch)
            rejections = self._rejections(items, batch)
            if self._shared is not None:  # the errors of its commit are those of the run: the function's rows are gone
                self._remove(rejections, unread)
        except LeaseLost:
            raise
        except Exception as exc:
            return self._fail(snapshot, items, self._rejections(items, batch), unread, replace(flushed, error=exc))
        if self._shared is None:
            self._remove(rejections, unread)
        return replace(flushed, rejections=rejections, result=result)

    def _call(self, batch: Batch[Any]) -> Any:
        """Call the function."""
        given = (self._shared.handle,) if self._shared is not None and isinstance(self.definition.transaction, type) else ()
        result = self.call(batch, *given)
        self._flush_shared()
        return result

    def _flush_shared(self) -> None:
        """Have the database check what the function has written."""
        if self._shared is not None:
            self._shared.flush()

    def _close_shared(self) -> None:
        """Undo the transaction, unless it was committed."""
        if self._shared is not None:
            self._shared.close()

    def _fail(
        self, snapshot: Snapshot, items: list[Item], rejections: tuple[Rejection, ...], unread: list[int], flushed: Flushed
    ) -> Flushed:
        error = cast("Exception", flushed.error)
        verdict = self._verdict(error, items[0].attempts)
        if verdict.is_done:
            try:
                self._flush_shared()
                self._remove(rejections, unread)
            except LeaseLost:
                raise
            except Exception as exc:
                if self._shared is None:
                    raise
                return self._fail(snapshot, items, rejections, unread, replace(flushed, error=exc))
            return replace(flushed, rejections=rejections, is_settled=True)
        self._close_shared()  # it may have locked what the release changes
        if verdict.is_counted and self._was_last(snapshot):
            rejections = (self._rejection(items[0], error),)
        is_released = self._release(rejections, unread, verdict)  # also if all items were rejected: the group pauses
        return replace(flushed, rejections=rejections if is_released else (), delay_s=verdict.delay_s)

    def _verdict(self, error: Exception, attempts: int) -> FlushVerdict:
        """Return the consequences of an error; in a transaction, one of the database says nothing about the items."""
        shared = self._shared
        if shared is None:
            return self.judge(error, attempts)
        if shared.is_conflict(error):
            return FlushVerdict(is_counted=False)
        verdict, is_away = self.judge(error, attempts), isinstance(error, StoreError) or shared.loss_of(error) is not None
        return replace(verdict, is_counted=False) if is_away else verdict

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
        """Remove the items and end the lease, and store what was sent."""
        how: dict[str, Any] = {"rejected": _dead_letters(rejections), "unreadable": unread}
        if self._messages.sent:
            how["sends"] = sends_of(self._messages, self.store.new_id(self.rules, self.group), self.dispatcher)
        needs_flush = self._commit(how) if self._shared is not None else self._insist(how)
        self._stored = None if needs_flush is None else how.get("sends")
        if needs_flush:
            self.ask(self.group)

    def _commit(self, how: Mapping[str, Any]) -> bool:
        """Remove the items in the function's transaction, and commit that: once, since a second one would lack its rows."""
        assert self._shared is not None  # noqa: S101
        self._called_at = self.dispatcher.clock()
        return bool(self._shared.commit(lambda backend: backend.aggregates.remove(self.rules, self.group, self.token, **how)))

    def _insist(self, how: Mapping[str, Any]) -> bool | None:
        """Remove the items; while the store is away, retry for half of the lease.

        Returns:
            Whether another flush must be requested; ``None`` if the first attempt may have removed them, and its answer was lost.
            Then a relay publishes what was stored with it.
        """
        deadline, attempts = time.monotonic() + self.rules.lease_ms / 2000, 0
        while True:
            self._called_at = self.dispatcher.clock()
            try:
                return self.store.remove(self.rules, self.group, self.token, **how)
            except LeaseLost:
                if not attempts:
                    raise
                logger.info("%s: the first attempt to remove its items may have done so, its answer was lost", self._subject)
                return None
            except StoreUnavailable:
                attempts += 1
                if time.monotonic() + _PAUSE_S > deadline:
                    raise
            time.sleep(_PAUSE_S)

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
