"""The contract of all ports in one class: what the test of a backend subclasses."""

import pytest

from celery_sagas.testing.contract.aggregates import AggregateStoreContract
from celery_sagas.testing.contract.audit import AuditContract
from celery_sagas.testing.contract.backend import BackendContract
from celery_sagas.testing.contract.buffers import BuffersContract
from celery_sagas.testing.contract.dead_letters import DeadLettersContract
from celery_sagas.testing.contract.deliveries import DeliveriesContract
from celery_sagas.testing.contract.fixtures import NewBackend
from celery_sagas.testing.contract.instances import InstancesContract
from celery_sagas.testing.contract.interleaving import InterleavingContract
from celery_sagas.testing.contract.journal import JournalContract
from celery_sagas.testing.contract.outbox import OutboxContract
from celery_sagas.testing.contract.sagas import SagaStoreContract
from celery_sagas.testing.contract.switches import SwitchesContract


class WholeContract:
    """The requirements on every backend, one class for each port: override the fixture ``new_backend``.

    What aggregators need is skipped on a backend without them. To change a class, override it by a subclass of the same name.
    """

    class Part:
        """A class of tests within another: it has the backend of the class around it."""

        @pytest.fixture
        def new_backend(self, new_backend: NewBackend) -> NewBackend:
            """Open a backend as the class around this one does."""
            return new_backend

    @pytest.fixture
    def new_backend(self) -> NewBackend:
        """Open a backend as another process would."""
        raise NotImplementedError("Override the fixture new_backend: it returns a function that opens the backend under test")

    class TestSagas(Part, SagaStoreContract):
        """``SagaStore``."""

    class TestOutbox(Part, OutboxContract):
        """``Outbox``."""

    class TestJournal(Part, JournalContract):
        """``Journal``."""

    class TestDeliveries(Part, DeliveriesContract):
        """``Deliveries``."""

    class TestDeadLetters(Part, DeadLettersContract):
        """``DeadLetters``."""

    class TestAggregates(Part, AggregateStoreContract):
        """``AggregateStore``."""

    class TestBuffers(Part, BuffersContract):
        """``Buffers``."""

    class TestInstances(Part, InstancesContract):
        """``Instances``."""

    class TestAudit(Part, AuditContract):
        """``Audit``."""

    class TestSwitches(Part, SwitchesContract):
        """``Switches``."""

    class TestBackend(Part, BackendContract):
        """``Backend``."""

    class TestInterleaving(Part, InterleavingContract):
        """Atomicity, of operations that are one command each: otherwise override ``commands``."""
