"""Conflicts: a step runs again with jitter, and finally under a lock."""

import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from secrets import token_hex

from celery_sagas.core.saga import SagaDefinition
from celery_sagas.engine.session import Attempt
from celery_sagas.errors import KeyTaken, RevisionConflict
from celery_sagas.stores.ports import SagaStore
from celery_sagas.stores.records import Lookup

#: The minimum duration of a lock whose owner dies. Milliseconds.
LOCK_MS = 30_000
#: Runs after the first lock, before the message is redelivered later.
LOCKED_RUNS = 25
_FIRST_PAUSE_S = 0.004
_LONGEST_PAUSE_S = 0.25


@dataclass
class Conflicts:
    """The conflicts that one delivery of a message has met."""

    retries: int  #: runs before the instance is locked
    seen: int = 0
    unique: int = 0
    longest_s: float = 0.0  #: of the runs so far
    began: float = field(default_factory=lambda: time.monotonic())  #: when the present run began

    @property
    def locking(self) -> bool:
        """Return whether the next run locks the instance, so that its rivals yield."""
        return self.seen > self.retries

    @property
    def attempt(self) -> Attempt:
        """The next attempt to handle the message."""
        lock_ms = max(LOCK_MS, int(2000 * self.longest_s))  # twice as long as a run, so that a slow handler does not starve
        return Attempt(self._token if self.locking else "", lock_ms, self.unique)

    @cached_property
    def _token(self) -> str:
        """The name under which the instance is locked."""
        return token_hex(16)

    def wait(self, conflict: RevisionConflict) -> None:
        """Count a conflict and pause; raise it if there were too many."""
        self.seen += 1
        self.unique += conflict.reason == "unique"
        self.longest_s = max(self.longest_s, time.monotonic() - self.began)
        if self.seen > self.retries + LOCKED_RUNS:
            raise conflict
        time.sleep(pause(self.seen, random.random()))
        self.began = time.monotonic()


def pause(seen: int, chance: float) -> float:
    """Return the seconds to wait after a number of conflicts; ``chance``, from 0 to 1, spreads rivals out."""
    return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0**seen) * (0.25 + 0.75 * chance)


def refuse_taken_keys(sagas: SagaStore, saga: SagaDefinition, instance_id: str, added: Iterable[tuple[str, str]]) -> None:
    """Refuse alternate keys that an instance would have, and that belong to another one.

    Raises:
        KeyTaken: One does.
    """
    for name, value in added:
        other = sagas.find(Lookup(saga.names, name, value)).record
        if other is not None and other.id != instance_id:
            raise KeyTaken(saga.name, name, value, other.id, other.key)
