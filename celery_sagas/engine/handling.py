"""Handling a message: a backend performs its unit of work until the commit; then the outgoing messages are published."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from celery_sagas.core.requests.requests import Request
from celery_sagas.engine.commit import WorkTerms
from celery_sagas.engine.conflicts import Conflicts
from celery_sagas.engine.outbox.dispatch import Dispatcher
from celery_sagas.engine.outcomes import Outcome
from celery_sagas.engine.session import Delivery
from celery_sagas.engine.tracing import traced
from celery_sagas.engine.unit_of_work import Handled, Steps, handle_once
from celery_sagas.errors import AlreadyHandled, RevisionConflict, StoreError
from celery_sagas.observers import RAISED, observers
from celery_sagas.stores.operations import Begin, Commit, CountDelivery, Delete, Lock, Operation, Update
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.shared import SharedTransaction

logger = logging.getLogger("celery_sagas")


#: Called with the outcome of a message, the requests that it has cancelled, and the ids of other tasks that need not begin any
#: more, once that is committed; raises nothing.
Revoke = Callable[[Outcome, Sequence[Request], Sequence[str]], None]


@dataclass(frozen=True, slots=True)
class Services:
    """The services that handle every message, open in this process."""

    backend: Backend
    dispatcher: Dispatcher
    terms: WorkTerms
    conflict_retries: int  #: attempts after conflicts before the instance is locked
    revoke: Revoke  #: has workers not begin the tasks of requests


def handle(services: Services, delivery: Delivery) -> Outcome:
    """Handle a message; its effect is committed when this function returns.

    Raises:
        SagaError: Nothing was written; its ``retry`` says when the message may run again.
        Exception: Raised by the handler; nothing was written.
    """
    return _observed(services, delivery) if observers else _handle(services, delivery)


def _observed(services: Services, delivery: Delivery) -> Outcome:
    """Handle a message, and tell observers of its outcome."""
    began, outcome, step = time.monotonic(), RAISED, delivery.step
    try:
        handled = _handle(services, delivery)
        outcome = handled.kind.value
        return handled
    finally:
        for observer in observers:
            observer.handled(step.saga.name, step.name, outcome, time.monotonic() - began)


def _handle(services: Services, delivery: Delivery) -> Outcome:
    conflicts, driver = Conflicts(services.conflict_retries), Driver(services.backend)
    while True:
        try:
            handled = driver.drive(traced(handle_once(delivery, services.terms, conflicts.attempt), delivery.trace))
            break
        except RevisionConflict as conflict:
            logger.debug("%s: %s", delivery.step.name, conflict)
            for observer in observers:
                observer.conflicted(delivery.step.saga.name, delivery.step.name)
            conflicts.wait(conflict)
        except AlreadyHandled as already:
            logger.debug("%s: %s", delivery.step.name, already)  # the next find sees it
    if handled.handled_before:
        services.dispatcher.dispatch_unsent(handled.handled_before)
    else:
        at_once = [row for row in handled.outgoing if not row.due_at]  # a relay publishes what is due later
        services.dispatcher.dispatch(at_once, driver.called_at)
    if handled.cancelled or handled.unbegun:
        services.revoke(handled.outcome, handled.cancelled, handled.unbegun)
    return handled.outcome


@dataclass(slots=True)
class Driver:
    """Performs the operations of units of work one by one, for one delivery of a message."""

    backend: Backend
    called_at: float = 0.0  #: when the store was called last: the lease on the rows of a commit began later
    _locked: Lock | None = None  #: held by the present attempt
    _shared: SharedTransaction | None = None  #: in which the present attempt commits
    _count: int | None = None  #: the deliveries so far: this one is counted once, however many attempts it has

    def drive(self, work: Steps[Handled], operation: Operation | None = None) -> Handled:
        """Perform the operations of a unit of work until it ends: from the first one on, or from that for which it waits."""
        error: Exception | None = None
        try:
            operation = operation or next(work)
            while True:
                try:
                    answer, error = self.perform(operation), None
                except Exception as exc:  # also a time limit: the unit of work undoes what it has begun
                    error = exc
                operation = work.send(answer) if error is None else work.throw(error)
        except StopIteration as end:
            handled: Handled = end.value
            return handled
        finally:
            work.close()
            self._close_shared()
            self._release()

    def perform(self, operation: Operation) -> Any:
        """Perform one operation; return its answer."""
        if isinstance(operation, CountDelivery) and self._count is not None:
            return self._count
        self.called_at = time.monotonic()
        shared = self._shared if isinstance(operation, Commit) else None
        answer: Any = operation.perform(self.backend) if shared is None else shared.commit(operation.perform)
        if isinstance(operation, CountDelivery):
            self._count = answer
        elif isinstance(operation, Begin):
            self._shared = answer
        elif isinstance(operation, Lock) and answer:
            self._locked = operation
        elif isinstance(operation, Update | Delete):  # it ends the lock
            self._locked = None
        return answer

    def _close_shared(self) -> None:
        """Undo the attempt's transaction, if it has one and has not committed."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.close()

    def _release(self) -> None:
        """Release the lock, if the attempt holds one and has not committed."""
        locked, self._locked = self._locked, None
        if locked is None:
            return
        try:
            locked._replace(for_ms=0).perform(self.backend)
        except StoreError as exc:
            record, longest_ms = locked.record, locked.for_ms
            logger.warning("%s %r stays locked for at most %d ms: %s", record.saga, record.key, longest_ms, exc)
