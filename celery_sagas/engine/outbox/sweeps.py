"""What a relay has done: in one sweep, and since it began."""

import logging
from dataclasses import asdict, dataclass, field
from typing import Any

logger = logging.getLogger("celery_sagas")


@dataclass(slots=True)
class Sweep:
    """One look at what is due; numbers are rows of the outbox, times are seconds since the epoch."""

    began_at: float
    ended_at: float = 0.0
    sent: int = 0
    flushes: int = 0  #: of groups of aggregators, that were asked for
    released: int = 0  #: claimed and released: the broker was away, or the time was over
    unconfirmed: int = 0  #: published at once and not confirmed, perhaps arrived: published again
    failed: int = 0  #: could not be published, and are tried again
    dead_lettered: int = 0  #: could not be published so often that they became dead letters
    purged: int = 0  #: entries of the journal, and counts of deliveries, that were kept for long enough
    unknown: dict[str, int] = field(default_factory=dict)  #: left to others, by step
    error: str = ""  #: of the store or of the connection to the broker, which ended the sweep
    is_broker_away: bool = False

    @property
    def did_something(self) -> bool:
        """Whether there is anything to tell."""
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
    """What a relay has done so far."""

    sweeps: int = 0
    sent: int = 0
    flushes: int = 0
    failed: int = 0
    dead_lettered: int = 0  #: rows of the outbox; most dead letters are kept by those who handle messages
    purged: int = 0
    unknown: dict[str, int] = field(default_factory=dict)  #: how often rows of a step were left to others
    last: Sweep | None = None
    last_error: str = ""
    last_error_at: float = 0.0
    trouble: Sweep | None = None  #: the latest that was ended by an error, until what it met with works again

    def add(self, sweep: Sweep) -> None:
        """Add a sweep, and tell of an outage when it begins and when it ends."""
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
        """Count a row that was left to others. The mapping is replaced: another thread may be reading it."""
        self.unknown = {**self.unknown, task: self.unknown.get(task, 0) + 1}

    def _add_error(self, sweep: Sweep) -> None:
        self.last_error, self.last_error_at = sweep.error, sweep.ended_at
        if self.trouble is None:
            logger.warning("the relay could not go on, and tries again: %s", sweep.error)
            self.trouble = sweep
        elif self.trouble.is_broker_away != sweep.is_broker_away:
            self.trouble.is_broker_away = sweep.is_broker_away

    def shown(self) -> dict[str, Any]:
        """Return it in values of JSON, for operators."""
        return asdict(self)
