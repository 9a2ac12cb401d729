"""The trigger of a buffer: when a group is flushed, and how many of its items a flush takes. Nothing here changes anything."""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

#: The largest batch, and the largest one of an aggregator that names no size.
LARGEST_SIZE: Final = 10_000
DEFAULT_LIMIT: Final = 1_000

#: Why a group is flushed: it has enough items; the oldest has waited for long enough; none has come for long enough; it was
#: requested; items have come back from a flush that failed or died, can be read now, or were rejected and put back.
Reason = Literal["size", "age", "idle", "requested", "again"]


class Rules(NamedTuple):
    """The rules by which a store buffers an aggregator's items. Times are milliseconds; 0 means that the rule is not set."""

    name: str  #: of the aggregator
    size: int = 0  #: items that fire the trigger, and the most in one batch
    within_ms: int = 0  #: for how long the oldest item waits at most
    idle_ms: int = 0  #: for how long after the last item the rest waits
    max_buffered: int = 0  #: items in one group, whatever their state
    remember_ms: int = 0  #: for how long the ids of removed items are known
    max_attempts: int = 10  #: failed flushes of an item before its batches become smaller
    lease_ms: int = 60_000  #: how long a flush may keep its items, and how long a requested flush may take to begin

    @property
    def limit(self) -> int:
        """The most items in one batch."""
        return self.size or DEFAULT_LIMIT


class Waiting(NamedTuple):
    """The state of a group that its trigger depends on. Times are milliseconds since the epoch."""

    free: int = 0  #: items that can be read and are under no lease
    oldest: int = 0  #: the number of the first of them
    oldest_at: int = 0  #: when that was inserted
    last_at: int = 0  #: when an item was inserted last
    fired_to: int = 0  #: the trigger has fired while the first number is at most this
    fired_why: str = ""


def reason_of(rules: Rules, waiting: Waiting, now: int) -> str:
    """Return why the trigger has fired, or an empty text; unresolved and leased items do not count."""
    if not waiting.free:
        return ""
    if rules.size and waiting.free >= rules.size:
        return "size"
    if waiting.oldest <= waiting.fired_to:
        return waiting.fired_why
    if rules.within_ms and waiting.oldest_at + rules.within_ms <= now:
        return "age"
    if rules.idle_ms and waiting.last_at + rules.idle_ms <= now:
        return "idle"
    return ""


def due_at(rules: Rules, waiting: Waiting, now: int, flush_requested_until: int, lease_ends: Sequence[int]) -> int | None:
    """Return when the group must be checked again, or ``None`` if only the next item can fire the trigger.

    Args:
        rules: Of the aggregator.
        waiting: The group.
        now: The store's time.
        flush_requested_until: When the requested flush counts as lost; 0 if none is requested.
        lease_ends: When the leases on its items end.
    """
    if flush_requested_until > now:
        return flush_requested_until
    times = list(lease_ends)
    if reason_of(rules, waiting, now):
        times.append(now)
    elif waiting.free and rules.within_ms:
        times.append(waiting.oldest_at + rules.within_ms)
    if waiting.free and rules.idle_ms:
        times.append(waiting.last_at + rules.idle_ms)
    return min(times, default=None)


def allowed(rules: Rules, attempts: int) -> int:
    """Return the largest batch that may hold an item whose flushes have failed this many times.

    After ``max_attempts`` each failure halves the batch, down to a single item. 0: the item has failed alone, its last attempt,
    and is rejected.
    """
    return rules.limit >> max(attempts - rules.max_attempts + 1, 0)


def taken(rules: Rules, attempts: Sequence[int]) -> int:
    """Return how many of the first items a flush takes, given how often the flushes of each have failed: at least one."""
    count, most = 0, rules.limit
    for each in attempts:
        most = min(most, allowed(rules, each))
        if count and count >= most:
            break
        count += 1
    return count
