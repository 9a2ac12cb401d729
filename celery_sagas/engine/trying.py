"""Trials: a message runs through the unit of work on what is stored, and what it would commit is kept, not written."""

from dataclasses import dataclass
from typing import Any

from celery_sagas.core.saga import SagaDefinition
from celery_sagas.engine.commit import WorkTerms
from celery_sagas.engine.conflicts import refuse_taken_keys
from celery_sagas.engine.handling import Driver
from celery_sagas.engine.outcomes import Outcome
from celery_sagas.engine.session import Attempt, Delivery
from celery_sagas.engine.unit_of_work import handle_once
from celery_sagas.errors import MisuseError
from celery_sagas.stores.operations import Begin, Commit, Find, Insert, Operation, Update
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import Found, Record


@dataclass(frozen=True, slots=True)
class Trial:
    """What would come of a message."""

    outcome: Outcome
    record: Record | None  #: the instance, as it was found
    commit: Commit | None  #: what would be written; ``None``: nothing


def run_trial(backend: Backend, delivery: Delivery, terms: WorkTerms) -> Trial:
    """Run a message on what is stored: it reads, takes no lock, and writes nothing.

    Raises:
        MisuseError: Its step shares a transaction, and would run.
        StoreError: The store is away, or what is stored cannot be read.
        SagaError: With which the message would fail.
        Exception: Raised by the handler.
    """
    driver = _TrialDriver(backend, delivery.step.saga)
    handled = driver.drive(handle_once(delivery, terms, Attempt()))
    return Trial(handled.outcome, driver.record, driver.commit)


class _TrialDriver(Driver):
    """Performs the operations that read. A first attempt asks for no lock, and what is no redelivery is not counted."""

    def __init__(self, backend: Backend, saga: SagaDefinition) -> None:
        super().__init__(backend)
        self.saga = saga
        self.record: Record | None = None
        self.commit: Commit | None = None

    def perform(self, operation: Operation) -> Any:
        """Perform an operation, unless it is a commit."""
        if isinstance(operation, Begin):
            problem = "its handler writes rows in a transaction, whose locks would keep workers waiting"
            raise MisuseError(f"a step with transaction= is not tried: {problem}", "Try it in a test, on a database of its own")
        if isinstance(operation, Commit):
            self._keep(operation)
            return None
        if isinstance(operation, Find):
            return self._unlocked(operation.perform(self.backend))
        return operation.perform(self.backend)

    def _keep(self, commit: Commit) -> None:
        self.commit = commit
        if isinstance(commit, Insert):
            refuse_taken_keys(self.backend.sagas, self.saga, commit.new.id, commit.new.keys)
        elif isinstance(commit, Update):
            refuse_taken_keys(self.backend.sagas, self.saga, commit.record.id, commit.change.added_keys)

    def _unlocked(self, found: Found) -> Found:
        """Return what was found, without the lock for which a message would wait."""
        if found.record is None:
            return found
        self.record = found.record._replace(locked_by="")
        return found._replace(record=self.record)
