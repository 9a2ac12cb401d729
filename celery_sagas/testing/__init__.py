"""Tools for tests of sagas (``SagaHarness``, ``collected``), and the published contract of the stores.

A backend's test is a class with one fixture. pytest runs the classes of ``WholeContract`` within it, one for each port, and shows
them by name: ``TestShelf::TestSagas::test_stale_version_conflicts``.

    class TestShelf(WholeContract):
        @pytest.fixture
        def new_backend(self) -> NewBackend:
            return lambda prefix, clock: ShelfBackend("shelf://contract", prefix=prefix, options={}, clock=clock)

A store whose operations are several commands overrides ``commands`` (and ``new_rival``, if the operation holds locks in between).
``MachineContract`` plays many operations in any order; it needs hypothesis, as ``celery_sagas.testing.exploration`` does.

        class TestInterleaving(WholeContract.TestInterleaving):
            def commands(self, backend: Backend, before: Callable[[], None]) -> AbstractContextManager[None]: ...

        class TestMachine(WholeContract.Part, MachineContract): ...

A backend may lack aggregators (see ``celery_sagas.stores.ports.Backend``): the tests of these are skipped then. The contract of
one port, such as ``SagaStoreContract``, can be subclassed alone, with the same fixture.
The extra ``testing`` installs pytest and hypothesis: ``pip install "celery-sagas[testing]"``.
"""

import pytest

pytest.register_assert_rewrite(
    *(f"celery_sagas.testing.{name}" for name in ("batches", "buffer_machine", "contract", "machine", "samples", "view"))
)

from celery_sagas.testing.clock import Clock  # noqa: E402
from celery_sagas.testing.contract.aggregates import AggregateStoreContract  # noqa: E402
from celery_sagas.testing.contract.audit import AuditContract  # noqa: E402
from celery_sagas.testing.contract.backend import BackendContract  # noqa: E402
from celery_sagas.testing.contract.buffers import BuffersContract  # noqa: E402
from celery_sagas.testing.contract.dead_letters import DeadLettersContract  # noqa: E402
from celery_sagas.testing.contract.deliveries import DeliveriesContract  # noqa: E402
from celery_sagas.testing.contract.fixtures import NewBackend, OpenBackend  # noqa: E402
from celery_sagas.testing.contract.instances import InstancesContract  # noqa: E402
from celery_sagas.testing.contract.interleaving import InterleavingContract  # noqa: E402
from celery_sagas.testing.contract.journal import JournalContract  # noqa: E402
from celery_sagas.testing.contract.outbox import OutboxContract  # noqa: E402
from celery_sagas.testing.contract.sagas import SagaStoreContract  # noqa: E402
from celery_sagas.testing.contract.switches import SwitchesContract  # noqa: E402
from celery_sagas.testing.contract.whole import WholeContract  # noqa: E402
from celery_sagas.testing.harness.broker import SentMessage  # noqa: E402
from celery_sagas.testing.harness.crashes import CrashPoint  # noqa: E402
from celery_sagas.testing.harness.harness import SagaHarness, ScheduledTimeout  # noqa: E402
from celery_sagas.testing.harness.real_time import RealTimeWarning  # noqa: E402
from celery_sagas.testing.harness.timeline import ScenarioError  # noqa: E402
from celery_sagas.worker.collecting import Collected, CollectedMessage, collected  # noqa: E402

__all__ = [
    "AggregateStoreContract",
    "AuditContract",
    "BackendContract",
    "BuffersContract",
    "Clock",
    "Collected",
    "CollectedMessage",
    "CrashPoint",
    "DeadLettersContract",
    "DeliveriesContract",
    "InstancesContract",
    "InterleavingContract",
    "JournalContract",
    "NewBackend",
    "OpenBackend",
    "OutboxContract",
    "RealTimeWarning",
    "SagaHarness",
    "SagaStoreContract",
    "ScenarioError",
    "ScheduledTimeout",
    "SentMessage",
    "SwitchesContract",
    "WholeContract",
    "collected",
]
