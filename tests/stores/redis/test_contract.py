"""The Redis backend keeps the contract of the stores: all of it on one server, what a kind of server may change on each."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from celery_sagas.stores.ports import Backend
from celery_sagas.stores.redis.backend import RedisBackend
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
from celery_sagas.testing.contract.many import ManyContract
from celery_sagas.testing.machine import MachineContract
from tests.stores.redis.conftest import EVERY_SERVER, PATIENT, on_every_server


class Redis:
    """Backends on one server."""

    @pytest.fixture
    def new_backend(self, url: str) -> NewBackend:
        return lambda prefix, clock: RedisBackend(url, prefix=prefix, clock=clock, options=PATIENT)


@on_every_server
class TestSagas(Redis, SagaStoreContract):
    """The sagas."""


@pytest.mark.parametrize("url", dict.fromkeys((*EVERY_SERVER, "fake_redis")), indirect=True)
class TestInstances(Redis, InstancesContract):
    """The pages of instances."""


@pytest.mark.parametrize("url", dict.fromkeys((*EVERY_SERVER, "fake_redis")), indirect=True)
class TestAudit(Redis, AuditContract):
    """The audit."""


@pytest.mark.parametrize("url", dict.fromkeys((*EVERY_SERVER, "fake_redis")), indirect=True)
class TestSwitches(Redis, SwitchesContract):
    """The switches."""


class TestOutbox(Redis, OutboxContract):
    """The outgoing rows."""


class TestJournal(Redis, JournalContract):
    """The journal."""


class TestDeliveries(Redis, DeliveriesContract):
    """The counts of deliveries."""


class TestDeadLetters(Redis, DeadLettersContract):
    """The dead letters."""


class TestAggregates(Redis, AggregateStoreContract):
    """The aggregators."""


class TestBuffers(Redis, BuffersContract):
    """The buffers."""


class TestBackend(Redis, BackendContract):
    """The backend."""


@pytest.mark.parametrize("url", ["fake_redis", *EVERY_SERVER[1:]], indirect=True)
class TestMany(Redis, ManyContract):
    """Operations of several messages at once, on the servers on which the rest of the backend's contract is not tested."""


@on_every_server
class TestInterleaving(Redis, InterleavingContract):
    """A rival before each round trip: whatever a script does is one command."""

    @contextmanager
    def commands(self, backend: Backend, before: Callable[[], None]) -> Iterator[None]:
        assert isinstance(backend, RedisBackend)
        observers = backend.client.observers
        observers.append(lambda _: before())
        yield
        observers.clear()


class TestMachine(Redis, MachineContract):
    """Many operations in any order."""
