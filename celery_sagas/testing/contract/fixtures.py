"""The fixtures of every test of a store."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import TypeAlias

import pytest

from celery_sagas.stores.ports import Backend
from celery_sagas.testing.clock import Clock

#: Opens a backend, given its prefix and its clock; two that are opened with one prefix see the same data.
NewBackend: TypeAlias = Callable[[str, Clock], Backend]
#: Opens a backend, given its prefix, that is closed when the test ends.
OpenBackend: TypeAlias = Callable[[str], Backend]


class StoreFixtures:
    """The fixtures of the contract; a backend's test overrides ``new_backend``."""

    @pytest.fixture
    def new_backend(self) -> NewBackend:
        """Open a backend as another process would."""
        raise NotImplementedError("Override the fixture new_backend: it returns a function that opens the backend under test")

    @pytest.fixture
    def clock(self) -> Clock:
        """The clock of every backend in this test."""
        return Clock()

    @pytest.fixture
    def prefix(self) -> str:
        """A prefix that no other test uses."""
        return f"test-{uuid.uuid4().hex}"

    @pytest.fixture
    def open_backend(self, new_backend: NewBackend, clock: Clock) -> Iterator[OpenBackend]:
        """Open backends that are closed when the test ends."""
        with ExitStack() as opened:
            yield lambda prefix: opened.enter_context(closing(new_backend(prefix, clock)))

    @pytest.fixture
    def backend(self, open_backend: OpenBackend, prefix: str) -> Backend:
        """The backend under test."""
        backend = open_backend(prefix)
        backend.prepare(create_schema=True, processes=1)
        return backend

    @pytest.fixture
    def switches(self, backend: Backend) -> None:
        """Skip the test if the backend has no switches."""
        if not backend.has_switches:
            pytest.skip("this backend has no switches")

    @pytest.fixture
    def aggregators(self, backend: Backend) -> None:
        """Skip the test if the backend has no aggregators."""
        if not backend.has_aggregators:
            pytest.skip("this backend has no aggregators")
