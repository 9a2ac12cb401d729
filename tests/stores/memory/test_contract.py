"""The memory backend keeps the contract of the stores."""

import uuid

import pytest

from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.testing import (
    BackendContract,
    DeadLettersContract,
    InterleavingContract,
    JournalContract,
    NewBackend,
    OutboxContract,
    SagaStoreContract,
)
from celery_sagas.testing.machine import MachineContract


class Memory:
    """Backends on one shared name, which stand for the processes of a database."""

    @pytest.fixture
    def new_backend(self) -> NewBackend:
        url = f"memory://{uuid.uuid4()}"
        return lambda prefix, clock: MemoryBackend(url, prefix=prefix, clock=clock)


class TestSagas(Memory, SagaStoreContract):
    """The sagas."""


class TestOutbox(Memory, OutboxContract):
    """The outgoing rows."""


class TestJournal(Memory, JournalContract):
    """The journal."""


class TestDeadLetters(Memory, DeadLettersContract):
    """The dead letters."""


class TestBackend(Memory, BackendContract):
    """The backend."""


class TestInterleaving(Memory, InterleavingContract):
    """Every operation is one command: a rival comes before it or after it."""


class TestMachine(Memory, MachineContract):
    """Many operations in any order."""
