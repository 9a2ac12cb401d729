"""The statistics of a relay: of one sweep, and since it began."""

import logging
from dataclasses import asdict, dataclass, field
from typing import Any

logger = logging.getLogger("celery_sagas")


@dataclass(slots=True)
class Sweep:
    """One sweep; numbers are rows of the outbox, times are seconds since the epoch."""

    began_at: float
    ended_at: float = 0.0
    sent: int = 0
    flushes: int = 0  #: requested flushes of groups of aggregators
    released: int = 0  #: claimed and released: the broker was away, or the time was over
    unconfirmed: int = 0  #: published at once and not confirmed, perhaps arrived: published again
    failed: int = 0  #: could not be published, and are retried
    dead_lettered: int = 0  #: became dead letters after too many failed attempts to publish them
    purged: int = 0  #: expired entries of the journal, and counts of deliveries
    lag_s: float = 0.0  #: how long the longest due row had been due that it has taken, and that was never tried before
    unknown: dict[str, int] = field(default_factory=dict)  #: left to other processes, by step
    error: str = ""  #: of the store or of the connection to the broker, which ended the sweep
    is_broker_away: bool = False

    @property
    def did_something(self) -> bool:
        """Return whether there is anything to report."""
        return bool(
            self.flushes
            or self.sent
            or self.released
            or self.unconfirmed
            or self.failed
            or self.dead_lettered
            or self.purged
            or self.unknown
            or self.error
        )


@dataclass(slots=True)
class Tally:
    """The totals of a relay since it began."""

    sweeps: int = 0
    sent: int = 0
    flushes: int = 0
    failed: int = 0
    dead_lettered: int = 0  #: rows of the outbox; most dead letters are made where messages are handled
    purged: int = 0
    unknown: dict[str, int] = field(default_factory=dict)  #: how often rows of a step were left to other processes
    last: Sweep | None = None
    last_error: str = ""
    last_error_at: float = 0.0
    trouble: Sweep | None = None  #: the latest sweep that ended with an error, until the store or broker works again

    def add(self, sweep: Sweep) -> None:
        """Add a sweep, and log an outage when it begins and when it ends."""
        self.sweeps += 1
        self.sent += sweep.sent
        self.flushes += sweep.flushes
        self.failed += sweep.failed
        self.dead_lettered += sweep.dead_lettered
        self.purged += sweep.purged
        self.last = sweep
        if sweep.did_something:
            logger.debug("the relay's sweep: %s", sweep)
        if sweep.error:
            self._add_error(sweep)
        elif self.trouble is not None and (sweep.sent or not self.trouble.is_broker_away):
            logger.info("the relay works again after an outage of %.0f s", sweep.ended_at - self.trouble.began_at)
            self.trouble = None

    def add_unknown(self, task: str) -> None:
        """Count a row that was left to other processes. The mapping is replaced: another thread may be reading it."""
        self.unknown = {**self.unknown, task: self.unknown.get(task, 0) + 1}

    def _add_error(self, sweep: Sweep) -> None:
        self.last_error, self.last_error_at = sweep.error, sweep.ended_at
        if self.trouble is None:
            logger.warning("the relay could not go on, and tries again: %s", sweep.error)
            self.trouble = sweep
        elif self.trouble.is_broker_away != sweep.is_broker_away:
            self.trouble.is_broker_away = sweep.is_broker_away

    def shown(self) -> dict[str, Any]:
        """Return the totals as JSON values, for operators."""
        return asdict(self)
