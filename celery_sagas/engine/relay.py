"""The relay: publishes due messages that other processes have left in the outbox, and removes expired rows."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from uuid import uuid4

from celery_sagas.clock import time_s, utc_time
from celery_sagas.core.names import storable
from celery_sagas.core.registry import registry
from celery_sagas.engine.aggregators.groups import Groups
from celery_sagas.engine.dead_letters.dead_lettering import add_dead_letter, dead_letter_of
from celery_sagas.engine.outbox.dispatch import ERROR_CHARACTERS
from celery_sagas.engine.outbox.kept import Next, is_kept, next_of
from celery_sagas.engine.outbox.publishing import Publisher, probing
from celery_sagas.engine.requests.gathers import Gathers
from celery_sagas.engine.sweeps import Sweep, Tally
from celery_sagas.errors import PublishError, StoreError
from celery_sagas.observers import observers
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import BOUND_KINDS, KEPT_KINDS, LOOK_MS, SERIES, DeadLetter, OutboxRow

logger = logging.getLogger("celery_sagas")

#: Rows to claim, and confirm, at once.
BATCH = 500
#: Seconds between two checks for expired rows, if the last one left none.
PURGE_PAUSE_S = 60.0
#: Expired rows to remove at once, and how often in one sweep.
PURGED_AT_ONCE, PURGES = 1_000, 10
#: Kinds of rows that are for a step of this library, and useless to a worker that does not know it.
_OWN_KINDS = frozenset(BOUND_KINDS)
#: Seconds until the retry of a row that could not be published: doubled with each attempt, up to a bound.
_FIRST_RETRY_S, _LAST_RETRY_S = 2.0, 600.0
#: The maximum number of seconds until a row of an unknown step is claimed again.
_LAST_LOOK_S = LOOK_MS / 1000
#: Before that, the part of the interval, and of the row's overdue time, that passes: the row is hidden from others meanwhile.
_OF_INTERVAL, _OF_OVERDUE = 0.1, 0.05


@dataclass(frozen=True, slots=True)
class Terms:
    """The settings of a relay."""

    interval_s: float  #: between two sweeps
    lease_s: float  #: the duration of the lease on the rows that it claims
    max_attempts: int  #: to publish a row, before it becomes a dead letter
    retention_s: float  #: how long the journal is kept
    keep_s: float = 0.0  #: how long the published rows of timeouts and deadlines stay, until they are published again
    audit_s: float = 90 * 86_400.0  #: how long it is remembered what operators have done


def _no_series(row: OutboxRow, now: int) -> OutboxRow:
    raise ValueError("this relay has no series")


@dataclass
class Relay:
    """Claims due rows, publishes them, and removes those that the broker has confirmed.

    The row of a series is not removed: it gets the next occurrence, whatever becomes of the one that was published. Any number of
    relays share the work. If a relay has published rows and neither removed nor changed them, because it died or the store
    went away, they are published again, under the same message id.
    """

    backend: Backend
    publisher: Publisher
    knows: Callable[[str], bool]  #: whether a task of this name is registered in this process
    terms: Terms
    publishing: Callable[[], AbstractContextManager[None]] = nullcontext  #: brackets each call that publishes
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time_s
    is_stopping: Callable[[], bool] = lambda: False
    tally: Tally = field(default_factory=Tally)  #: its totals, for others to read
    #: Returns the row of a series with its first occurrence after now, in milliseconds since the epoch; or raises ``ValueError``.
    next_occurrence: Callable[[OutboxRow, int], OutboxRow] = _no_series
    groups: Groups | None = None  #: of aggregators, in this backend
    gathers: Gathers | None = None
    #: Notifies the requester of a row that becomes a dead letter, or raises ``PublishError``.
    notify_requester: Callable[[DeadLetter, PublishError], None] = lambda dead_letter, error: None
    #: Notifies operators of a new dead letter.
    announce: Callable[[DeadLetter, PublishError], None] = lambda dead_letter, error: None

    def __post_init__(self) -> None:
        forget = self.groups.backend.aggregates.purge if self.groups else None
        self._housekeeping = Housekeeping(self.backend, self.terms, self.clock, forget)

    def sweep(self) -> Sweep:
        """Publish due rows, and remove expired ones; end soon when asked to stop.

        An error of the store, or of the connection to the broker, ends the sweep; neither counts against any row.
        """
        sweep = Sweep(self.wall_clock())
        try:
            self._publish_due(sweep)
        except StoreError as exc:
            sweep.error = str(exc)
        try:
            if self.groups is not None and not sweep.error:
                self.groups.sweep(sweep, self.is_stopping)
            if self.gathers is not None and not sweep.error:
                self.gathers.sweep(sweep, self.is_stopping)
            if not self.is_stopping() and not sweep.error:
                sweep.purged = self._housekeeping.clean()
        except StoreError as exc:
            sweep.error = sweep.error or str(exc)
        sweep.ended_at = self.wall_clock()
        self.tally.add(sweep)
        for observer in observers:
            observer.published(sweep.sent, sweep.failed + sweep.dead_lettered)
            observer.lagged(self.backend.url, sweep.lag_s)
        return sweep

    def _publish_due(self, sweep: Sweep) -> None:
        token, half_lease_s = uuid4().hex, self.terms.lease_s / 2
        end = self.clock() + half_lease_s  # of the sweep: it has more to do than publishing
        while not self.is_stopping() and (began := self.clock()) < end:
            rows = self.backend.outbox.claim_due(token, BATCH, int(self.terms.lease_s * 1000))
            _Batch(self, sweep, token, began + half_lease_s).publish(rows)
            if len(rows) < BATCH or sweep.error or sweep.unconfirmed:
                break


@dataclass
class _Batch:
    """Rows that were claimed at once."""

    relay: Relay
    sweep: Sweep
    token: str
    until: float  #: two processes must not publish the rows when the lease has ended

    def __post_init__(self) -> None:
        self.outbox = self.relay.backend.outbox
        self.published: list[str] = []
        self.series: dict[str, OutboxRow] = {}  #: by id
        self.kept: Set[str] = frozenset()  #: the ids of those that stay when they were published
        self.unconfirmed: Set[str] = frozenset()  #: of those that were published at once

    def publish(self, rows: Sequence[OutboxRow]) -> None:
        """Publish rows; release those that remain."""
        self.series = {row.id: row for row in rows if row.kind == SERIES}
        self.kept = {row.id for row in rows if row.kind in KEPT_KINDS}
        known = self._pass_over_unwanted(self._pass_over_unknown(rows))
        self._note_lag(known)
        try:
            left = self._publish_known(known)
        finally:  # in any case: rows that are not removed are sent again
            if self.published:
                self._end(self.published)
                self.sweep.sent += len(self.published)
        self._release([row.id for row in left if row.id not in self.unconfirmed])

    def _note_lag(self, rows: Sequence[OutboxRow]) -> None:
        """Note how late the sweep is. Of a row that was due at once it is unknown when; one that was tried waits since then."""
        due = [row.due_at for row in rows if row.due_at and not row.tried_at]
        if due:
            self.sweep.lag_s = max(self.sweep.lag_s, self.relay.wall_clock() - min(due) / 1000)

    def _publish_known(self, rows: Sequence[OutboxRow]) -> Sequence[OutboxRow]:
        """Publish rows, at once and then one after the other; return the remaining ones."""
        if not rows or self._is_broker_still_away():
            return rows
        rows = self._publish_at_once(rows)
        for number, row in enumerate(rows):
            if self._must_end() or not self._publish(row):
                return rows[number:]
        return ()

    def _is_broker_still_away(self) -> bool:
        """Probe the broker if it was away: a message written while it accepts none may arrive once it does."""
        trouble = self.relay.tally.trouble
        if trouble is None or not trouble.is_broker_away:
            return False
        try:
            with self.relay.publishing():
                self.relay.publisher.probe()
        except PublishError as exc:
            self._note_away(exc)
        return self.sweep.is_broker_away

    def _publish_at_once(self, rows: Sequence[OutboxRow]) -> Sequence[OutboxRow]:
        """Publish the rows that have not failed before; return those to publish one by one.

        A row that is neither confirmed nor refused may have arrived. It is published again in this sweep. If the sweep ends
        before that, the row keeps its lease, so that not every sweep sends it.
        """
        together = [row for row in rows if not row.attempts]  # one that has failed may end the connection of the others
        if len(together) < 2 or self._must_end():
            return rows
        try:
            with self.relay.publishing():
                receipt = self.relay.publisher.publish_many(together)
        except PublishError as exc:
            self._note_away(exc)
            return rows
        self.published += receipt.confirmed
        self.unconfirmed = receipt.unconfirmed
        self.sweep.unconfirmed += len(receipt.unconfirmed)
        return [row for row in rows if row.id not in receipt.confirmed]

    def _must_end(self) -> bool:
        return self.relay.is_stopping() or self.sweep.is_broker_away or self.relay.clock() > self.until

    def _publish(self, row: OutboxRow) -> bool:
        """Publish a row; return whether the broker accepts messages."""
        try:
            with self.relay.publishing(), probing(self.relay.publisher):
                self.relay.publisher.publish(row)
        except PublishError as exc:
            if exc.connection:
                self._note_away(exc)
                return False
            self._fail(row, exc)
        else:
            self.published.append(row.id)
        return True

    def _note_away(self, error: PublishError) -> None:
        self.sweep.error, self.sweep.is_broker_away = self.sweep.error or error.reason, True

    def _end(self, ids: Sequence[str]) -> None:
        """Remove rows, keep those of timeouts and deadlines, and let series go on with their next occurrence."""
        if ended := [id for id in ids if id not in self.series and id not in self.kept]:
            self.outbox.confirm(self.token, ended)
        if kept := [id for id in ids if id in self.kept]:
            self.outbox.confirm(self.token, kept, int(self.relay.terms.keep_s * 1000))
        if series := [self.series[id] for id in ids if id in self.series]:
            now = self.outbox.time()  # not that of this process: a series would stop for as long as its clock is ahead
            self.outbox.reschedule(self.token, [self.relay.next_occurrence(row, now) for row in series])

    def _release(self, ids: Sequence[str]) -> None:
        """End the lease on rows."""
        if ids:
            self.outbox.release(self.token, ids)
            self.sweep.released += len(ids)

    def _fail(self, row: OutboxRow, error: PublishError) -> None:
        """Schedule the retry of a row that cannot be published, or dead-letter it."""
        if row.attempts + 1 >= self.relay.terms.max_attempts:
            self._dead_letter(row, error)
            return
        delay_s = min(_FIRST_RETRY_S * 2**row.attempts, _LAST_RETRY_S)
        self.outbox.fail(self.token, row.id, storable(error.reason, ERROR_CHARACTERS), int(delay_s * 1000))
        self.sweep.failed += 1
        logger.warning("%s %s could not be published (attempt %d) and is tried again: %s", *_named(row, error))

    def _dead_letter(self, row: OutboxRow, error: PublishError) -> None:
        """Dead-letter a row after its requester is notified; if the broker does not accept the notification, the row waits."""
        dead_letter = _dead_letter_of(row, error)
        try:
            with self.relay.publishing(), probing(self.relay.publisher):
                self.relay.notify_requester(dead_letter, error)
        except PublishError as exc:
            if exc.connection:
                self._release_for_later(row, exc)
                return
        add_dead_letter(self.relay.backend, dead_letter)
        task, message_id, attempts, reason = _named(row, error)
        logger.error(
            "%s %s failed %d times and is kept as the dead letter %s: %s", task, message_id, attempts, dead_letter.id, reason
        )
        with self.relay.publishing():  # a signal has a lock, too, which must not be held when a process is forked
            self.relay.announce(dead_letter, error)
        if row.kind == SERIES:
            self._end([row.id])
        else:
            self.outbox.confirm(self.token, [row.id])
        self.sweep.dead_lettered += 1

    def _release_for_later(self, row: OutboxRow, error: PublishError) -> None:
        logger.warning("%s %s waits (attempt %d), since nobody can be notified that it is not published: %s", *_named(row, error))
        self._note_away(error)
        self.outbox.release(self.token, [row.id], int(_LAST_RETRY_S * 1000))
        self.sweep.released += 1

    def _pass_over_unknown(self, rows: Sequence[OutboxRow]) -> list[OutboxRow]:
        """Leave the rows of unknown steps, and series that cannot be read here, to other processes; return the rest."""
        known: list[OutboxRow] = []
        unknown: dict[float, list[str]] = {}
        for row in rows:
            if row.kind == SERIES and self._is_unreadable(row):
                unknown.setdefault(_LAST_LOOK_S, []).append(row.id)
            elif row.kind not in _OWN_KINDS or self.relay.knows(row.task):
                known.append(row)
            else:
                unknown.setdefault(self._next_look_s(row, is_one_of_many=len(rows) >= BATCH), []).append(row.id)
                self._log_unknown(row.task)
        for delay_s, ids in unknown.items():
            self.outbox.release(self.token, ids, int(delay_s * 1000))
        return known

    def _pass_over_unwanted(self, rows: Sequence[OutboxRow]) -> list[OutboxRow]:
        """Keep or remove the rows that were published before and are not to be published again; return the rest."""
        ids: dict[Next, list[str]] = {each: [] for each in Next}
        for row in filter(is_kept, rows):
            ids[next_of(self.relay.backend, row)].append(row.id)
        if ids[Next.REMOVED]:
            self.outbox.confirm(self.token, ids[Next.REMOVED])
        if ids[Next.KEPT]:
            self._end(ids[Next.KEPT])
        if lost := [row for row in rows if row.id in ids[Next.PUBLISHED]]:
            logger.warning(
                "%d timeouts or deadlines were published and not handled, and are published again; the first is %s of the "
                "instance %s, published at %s",
                *(len(lost), lost[0].task, lost[0].instance_id, utc_time(lost[0].tried_at).isoformat(timespec="seconds")),
            )
        unwanted = {*ids[Next.REMOVED], *ids[Next.KEPT]}
        return [row for row in rows if row.id not in unwanted]

    def _is_unreadable(self, row: OutboxRow) -> bool:
        try:
            self.relay.next_occurrence(row, row.due_at)
        except ValueError as exc:
            logger.error("the series %s of %s is left to another worker: %s", row.id, row.task, exc)  # noqa: TRY400 - no bug here
            return True
        return False

    def _log_unknown(self, task: str) -> None:
        if task not in self.relay.tally.unknown:
            logger.warning("%s is due, and is no step of this worker: it is left to a worker that knows it", task)
        self.sweep.unknown[task] = self.sweep.unknown.get(task, 0) + 1
        self.relay.tally.add_unknown(task)

    def _next_look_s(self, row: OutboxRow, *, is_one_of_many: bool) -> float:
        """Return how long to leave a row: the longer it has been due, the less likely is a worker soon that knows its step.

        The delay doubles, so that many rows share few delays. For a row that was due at once, the overdue time is unknown. One of
        many must not be claimed again in the same sweep.
        """
        delay_s = self.relay.terms.interval_s * (1 if is_one_of_many else _OF_INTERVAL)
        if not row.due_at:
            return delay_s
        longest_s = min((self.relay.wall_clock() - row.due_at / 1000) * _OF_OVERDUE, _LAST_LOOK_S)
        while delay_s < longest_s:
            delay_s *= 2
        return min(delay_s, _LAST_LOOK_S)


@dataclass
class Housekeeping:
    """Removes old entries of the journal and of the audit, old counts of deliveries, and expired ids of items.

    It checks once a minute. The rows that exceed one sweep are removed by the following sweeps.
    """

    backend: Backend
    terms: Terms
    clock: Callable[[], float]
    forget: Callable[[int], int] | None = None  #: removes ids of items, at most so many

    def __post_init__(self) -> None:
        self._next = self.clock() + PURGE_PAUSE_S

    def clean(self) -> int:
        """Remove old rows if it is time to; return how many were removed."""
        if self.clock() < self._next:
            return 0
        self._next = self.clock() + PURGE_PAUSE_S  # also if the store is away: waiting messages are more urgent
        counts = [_purge(purge) for purge in self._purges()]
        if PURGED_AT_ONCE * PURGES in counts:  # there may be more
            self._next = self.clock()
        return sum(counts)

    def _purges(self) -> Iterator[Callable[[int], int]]:
        """Yield the functions that remove at most so many rows of one kind."""
        age_ms = int(self.terms.retention_s * 1000)
        yield partial(self.backend.journal.purge, age_ms)
        yield partial(self.backend.deliveries.purge, age_ms)
        if self.backend.has_audit:
            yield partial(self.backend.audit.purge, int(self.terms.audit_s * 1000))
        if self.forget is not None:
            yield self.forget


def _purge(purge: Callable[[int], int]) -> int:
    """Remove rows of one kind, a few at a time; return how many were removed."""
    removed = 0
    for _ in range(PURGES):
        count = purge(PURGED_AT_ONCE)
        removed += count
        if count < PURGED_AT_ONCE:
            break
    return removed


def _dead_letter_of(row: OutboxRow, error: PublishError) -> DeadLetter:
    """Return the dead letter of a row: that of its message, which has only one, wherever it fails."""
    step = registry.steps.get(row.step)
    dead_letter = dead_letter_of(row.task, row.message_id, step.saga.name if step else "", error.__cause__ or error, row.payload)
    return dead_letter._replace(text=storable(error.reason, ERROR_CHARACTERS))


def _named(row: OutboxRow, error: PublishError) -> tuple[str, str, int, str]:
    return row.task, row.message_id, row.attempts + 1, error.reason
