"""How a step runs again after a conflict: with jitter, and in the end under a reservation."""

import random
import time
from dataclasses import dataclass, field
from functools import cached_property
from secrets import token_hex

from celery_sagas.engine.unit_of_work import Attempt
from celery_sagas.errors import RevisionConflict

#: How long a reservation lasts at least if its holder dies. Milliseconds.
RESERVATION_MS = 30_000
#: Runs after the first reservation, before the message is put off.
RESERVED_RUNS = 25
_FIRST_PAUSE_S = 0.004
_LONGEST_PAUSE_S = 0.25


@dataclass
class Conflicts:
    """The conflicts that one delivery of a message has met."""

    retries: int  #: runs before the instance is reserved
    seen: int = 0
    unique: int = 0
    longest_s: float = 0.0  #: of the runs so far
    began: float = field(default_factory=lambda: time.monotonic())  #: when the present run did

    @property
    def reserving(self) -> bool:
        """Whether the next run reserves the instance, so that its rivals yield."""
        return self.seen > self.retries

    @property
    def holder(self) -> str:
        """The name under which the instance is reserved; empty before it has to be."""
        return self._token if self.reserving else ""

    @property
    def attempt(self) -> Attempt:
        """The next attempt to handle the message."""
        return Attempt(self.holder, self.reservation_ms, self.unique)

    @cached_property
    def _token(self) -> str:
        return token_hex(16)

    @property
    def reservation_ms(self) -> int:
        """How long the instance is reserved for: twice what a run took, so that a slow handler does not starve."""
        return max(RESERVATION_MS, int(2000 * self.longest_s))

    def wait(self, conflict: RevisionConflict) -> None:
        """Count a conflict and pause; once there were too many, raise it."""
        self.seen += 1
        self.unique += conflict.reason == "unique"
        self.longest_s = max(self.longest_s, time.monotonic() - self.began)
        if self.seen > self.retries + RESERVED_RUNS:
            raise conflict
        time.sleep(pause(self.seen, random.random()))
        self.began = time.monotonic()


def pause(seen: int, chance: float) -> float:
    """Return the seconds to wait after a number of conflicts; ``chance``, from 0 to 1, spreads rivals out."""
    return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0**seen) * (0.25 + 0.75 * chance)
