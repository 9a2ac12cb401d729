"""The SQL backend keeps the contract of the stores, on each database."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from celery_sagas.stores.ports import Backend
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.testing import (
    AggregateStoreContract,
    AuditContract,
    BackendContract,
    BuffersContract,
    DeadLettersContract,
    DeliveriesContract,
    InstancesContract,
    InterleavingContract,
    JournalContract,
    NewBackend,
    OutboxContract,
    SagaStoreContract,
    SwitchesContract,
)
from celery_sagas.testing.contract.fixtures import OpenBackend
from celery_sagas.testing.machine import MachineContract
from tests.stores.sql.conftest import PATIENT
from tests.stores.sql.watching import OpenConnections

#: Make a rival give way where it meets a lock: it runs in the thread of the operation that holds it.
_IMPATIENT: dict[str, dict[str, Any]] = {
    "sqlite": {"busy_timeout": 0},
    "postgresql": {"connect_args": {"options": "-c lock_timeout=10ms"}},
    "mysql": {"connect_args": {"init_command": "SET SESSION innodb_lock_wait_timeout = 0"}},
}


class Sql:
    """Backends on one database."""

    @pytest.fixture
    def new_backend(self, url: str) -> NewBackend:
        return lambda prefix, clock: SqlBackend(url, prefix=prefix, clock=clock, options=PATIENT)

    @pytest.fixture
    def backend(self, open_backend: OpenBackend, prefix: str) -> Backend:
        """The backend under test, whose tables are there."""
        return open_backend(prefix)

    @pytest.fixture(autouse=True)
    def every_connection_is_checked_in(self, backend: Backend) -> Iterator[None]:
        assert isinstance(backend, SqlBackend)
        opened = OpenConnections(backend)
        yield
        assert opened.count == backend.database.connections.idle


class TestSagas(Sql, SagaStoreContract):
    """The sagas."""


class TestOutbox(Sql, OutboxContract):
    """The outgoing rows."""


class TestJournal(Sql, JournalContract):
    """The journal."""


class TestDeliveries(Sql, DeliveriesContract):
    """The counts of deliveries."""


class TestDeadLetters(Sql, DeadLettersContract):
    """The dead letters."""


class TestAggregates(Sql, AggregateStoreContract):
    """The aggregators."""


class TestBuffers(Sql, BuffersContract):
    """The buffers."""


class TestBackend(Sql, BackendContract):
    """The backend."""


class TestInstances(Sql, InstancesContract):
    """The pages of instances."""


class TestAudit(Sql, AuditContract):
    """The audit."""


class TestSwitches(Sql, SwitchesContract):
    """The switches."""


class TestInterleaving(Sql, InterleavingContract):
    """A rival before each statement, BEGIN and COMMIT included."""

    keeps_locks = True

    @pytest.fixture
    def new_rival(self, url: str) -> NewBackend:
        return lambda prefix, clock: SqlBackend(
            url, prefix=prefix, clock=clock, options=_IMPATIENT[url.partition(":")[0].partition("+")[0]]
        )

    @contextmanager
    def commands(self, backend: Backend, before: Callable[[], None]) -> Iterator[None]:
        assert isinstance(backend, SqlBackend)
        observers = backend.database.observers
        observers.append(lambda _: before())
        yield
        observers.clear()


class TestMachine(Sql, MachineContract):
    """Many operations in any order."""
