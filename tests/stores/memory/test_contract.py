"""The memory backend keeps the contract of the stores."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from hypothesis import settings

from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.memory.sagas import MemorySagaStore
from celery_sagas.stores.ports import Backend
from celery_sagas.testing import NewBackend, WholeContract
from celery_sagas.testing.machine import BOUNDED, MachineContract


class TestMemory(WholeContract):
    """Backends on one shared name, which stand for the processes of a database."""

    @pytest.fixture
    def new_backend(self) -> NewBackend:
        url = f"memory://{uuid.uuid4()}"
        return lambda prefix, clock: MemoryBackend(url, prefix=prefix, clock=clock)

    class TestInterleaving(WholeContract.TestInterleaving):
        """A rival before each taking of the lock: whatever is done under it is one command."""

        @contextmanager
        def commands(self, backend: Backend, before: Callable[[], None]) -> Iterator[None]:
            assert isinstance(backend.sagas, MemorySagaStore)
            state = backend.sagas._state
            lock = state.lock
            state.lock = Watched(lock, before)
            yield
            state.lock = lock

    class TestMachine(WholeContract.Part, MachineContract):
        """Many operations in any order; here they cost little."""

        bounds = settings(BOUNDED, max_examples=40)


class Watched:
    """A lock that says when it is about to be taken."""

    def __init__(self, lock: AbstractContextManager[bool], before: Callable[[], None]) -> None:
        self._lock = lock
        self._before = before

    def __enter__(self) -> None:
        self._before()
        self._lock.__enter__()

    def __exit__(self, *error: object) -> None:
        self._lock.__exit__(None, None, None)
