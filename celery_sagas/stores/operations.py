"""Operations: the calls of a unit of work on its backend, each as a value that a driver performs, alone or with others."""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from celery_sagas.stores.ports import Backend, shared_of
from celery_sagas.stores.records import Change, Effects, Entry, Found, Handling, Lookup, NewRecord, Record
from celery_sagas.stores.shared import SharedTransaction


class Find(NamedTuple):
    """``SagaStore.find``; the answer is a ``Found``."""

    lookup: Lookup
    handling: Handling | None = None

    def perform(self, backend: Backend) -> Found:
        """Perform it."""
        return backend.sagas.find(*self)


class Lock(NamedTuple):
    """``SagaStore.lock``; the answer is whether the lock owner has the instance now."""

    record: Record
    lock_owner: str
    for_ms: int

    def perform(self, backend: Backend) -> bool:
        """Perform it."""
        return backend.sagas.lock(*self)


class CountDelivery(NamedTuple):
    """``Deliveries.count``; the answer is how often the message was delivered again."""

    step: str
    message_id: str

    def perform(self, backend: Backend) -> int:
        """Perform it."""
        return backend.deliveries.count(*self)


class OutcomeOf(NamedTuple):
    """``Journal.outcome_of``; the answer is an ``Entry`` or ``None``."""

    names: Sequence[str]
    key: str

    def perform(self, backend: Backend) -> Entry | None:
        """Perform it."""
        return backend.journal.outcome_of(*self)


class Begin(NamedTuple):
    """``SharedTransactions.open``; the answer is a ``SharedTransaction``, in which the commit that follows is performed."""

    kind: object

    def perform(self, backend: Backend) -> SharedTransaction:
        """Perform it."""
        return shared_of(backend).open(self.kind)


class Insert(NamedTuple):
    """``SagaStore.insert``."""

    new: NewRecord
    effects: Effects

    def perform(self, backend: Backend) -> None:
        """Perform it."""
        backend.sagas.insert(*self)


class Update(NamedTuple):
    """``SagaStore.update``."""

    record: Record
    change: Change
    effects: Effects

    def perform(self, backend: Backend) -> None:
        """Perform it."""
        backend.sagas.update(*self)


class Delete(NamedTuple):
    """``SagaStore.delete``."""

    record: Record
    effects: Effects

    def perform(self, backend: Backend) -> None:
        """Perform it."""
        backend.sagas.delete(*self)


class Write(NamedTuple):
    """``SagaStore.record``: a commit without an instance."""

    effects: Effects

    def perform(self, backend: Backend) -> None:
        """Perform it."""
        backend.sagas.record(*self)


#: The operations that write: each commits all of its effects, or none.
Commit: TypeAlias = Insert | Update | Delete | Write
Operation: TypeAlias = Find | Lock | CountDelivery | OutcomeOf | Begin | Commit
