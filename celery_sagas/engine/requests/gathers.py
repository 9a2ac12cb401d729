"""The relay's work for gathers: it ends those that were left unfinished, and clears away outcomes that came too late."""

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from celery_sagas.core.saga import SagaDefinition
from celery_sagas.engine.requests.gathering import Collecting, Gather, Gathering, GatherState, buffer_of, owner_of
from celery_sagas.engine.sweeps import Sweep
from celery_sagas.errors import LeaseLost, NewerState, PublishError, Retry, StoreError, Unconfirmed
from celery_sagas.stores.items import DueGroup

logger = logging.getLogger("celery_sagas")

#: Gathers to claim at once.
BATCH = 100


@dataclass
class Gathers:
    """The gathers of the sagas that are defined in this process.

    A gather is due when it is complete, and was not sent within a lease, or its step has not handled it yet; or when no outcome
    has come for as long as the journal is kept.
    """

    gathering: Gathering
    sagas: Callable[[], Iterable[SagaDefinition]]
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._next_look = self.clock()

    def sweep(self, sweep: Sweep, must_end: Callable[[], bool]) -> None:
        """Check the gathers that are due, a few times in each lease: none is due earlier.

        Raises:
            StoreError: The store is away.
        """
        known = {buffer_of(name): (saga, name) for saga in self.sagas() for name in saga.names}
        lease_s = self.gathering.lease_ms / 1000
        if not known or sweep.is_broker_away or self.clock() < self._next_look:
            return
        self._next_look, end = self.clock() + lease_s / 4, self.clock() + lease_s / 2
        while not must_end() and self.clock() < end:
            due = self.gathering.answers.aggregates.claim_due(list(known), BATCH, self.gathering.lease_ms)
            for group in due:
                if must_end() or not self._look(sweep, *known[group.name], group):
                    return
            if len(due) < BATCH:
                return

    def _look(self, sweep: Sweep, saga: SagaDefinition, name: str, group: DueGroup) -> bool:
        """Check a gather; return whether it makes sense to continue with the next."""
        found = Collecting(Gather(saga, name, "", group.group), 1, 1)
        try:
            for item in self.gathering.answers.buffers.read(group.name, group.group, 1):
                found = owner_of(found.gather, item)
                self._end(found)
        except LeaseLost:
            logger.debug("the gather %s of %s was ended by somebody else meanwhile", group.group, saga.name)
        except (PublishError, StoreError) as exc:
            if not _is_its_own(exc):
                if isinstance(exc, StoreError):
                    raise
                sweep.error, sweep.is_broker_away = exc.reason, True
                return False
            logger.warning("the gather %s of %s cannot be ended, and is tried again: %s", group.group, saga.name, exc)
            with suppress(LeaseLost):
                self.gathering.publish_again_later(found.gather, found.fewest)
        return True

    def _end(self, found: Collecting) -> None:
        gather, verdict = found.gather, self.gathering.conclude(found.gather)
        if verdict is GatherState.SENT:
            logger.info("%s gets again what came of the gather %s", gather.saga.name, gather.request)
            self.gathering.publish_again_later(gather, found.fewest)
        elif verdict is GatherState.WAITING:
            self.gathering.await_more(gather, found.members)


def _is_its_own(error: PublishError | StoreError) -> bool:
    """Return whether an error is, or may be, about one gather: if it is about the broker or store, the next one meets it too."""
    if isinstance(error, PublishError):
        return isinstance(error, Unconfirmed) or not error.connection
    return error.retry is Retry.NEVER or isinstance(error, NewerState)
