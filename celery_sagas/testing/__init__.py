"""Tools for tests of sagas (``SagaHarness``, ``collected``), and the published contract of the stores.

A backend's test is a subclass of each class, and one fixture.

    class Fixtures:
        @pytest.fixture
        def new_backend(self) -> NewBackend:
            return lambda prefix, clock: MyBackend("my://server", prefix=prefix, clock=clock)

    class TestSagas(Fixtures, SagaStoreContract): ...
    class TestOutbox(Fixtures, OutboxContract): ...
    class TestJournal(Fixtures, JournalContract): ...
    class TestDeliveries(Fixtures, DeliveriesContract): ...
    class TestDeadLetters(Fixtures, DeadLettersContract): ...
    class TestAggregates(Fixtures, AggregateStoreContract): ...
    class TestBuffers(Fixtures, BuffersContract): ...
    class TestBackend(Fixtures, BackendContract): ...
    class TestInterleaving(Fixtures, InterleavingContract): ...

A store whose operations are several commands overrides ``commands`` in ``TestInterleaving`` (and ``new_rival``, if the operation
holds locks in between). ``celery_sagas.testing.machine.MachineContract`` is used in the same way and needs hypothesis, as
``celery_sagas.testing.exploration`` does. The extra ``testing`` installs both: ``pip install "celery-sagas[testing]"``.
"""

import pytest

pytest.register_assert_rewrite(
    *(f"celery_sagas.testing.{name}" for name in ("batches", "buffer_machine", "contract", "machine", "samples", "view"))
)

from celery_sagas.testing.clock import Clock  # noqa: E402
from celery_sagas.testing.contract.aggregates import AggregateStoreContract  # noqa: E402
from celery_sagas.testing.contract.backend import BackendContract  # noqa: E402
from celery_sagas.testing.contract.buffers import BuffersContract  # noqa: E402
from celery_sagas.testing.contract.dead_letters import DeadLettersContract  # noqa: E402
from celery_sagas.testing.contract.deliveries import DeliveriesContract  # noqa: E402
from celery_sagas.testing.contract.fixtures import NewBackend, OpenBackend  # noqa: E402
from celery_sagas.testing.contract.interleaving import InterleavingContract  # noqa: E402
from celery_sagas.testing.contract.journal import JournalContract  # noqa: E402
from celery_sagas.testing.contract.outbox import OutboxContract  # noqa: E402
from celery_sagas.testing.contract.sagas import SagaStoreContract  # noqa: E402
from celery_sagas.testing.harness.broker import SentMessage  # noqa: E402
from celery_sagas.testing.harness.crashes import CrashPoint  # noqa: E402
from celery_sagas.testing.harness.harness import SagaHarness, ScheduledTimeout  # noqa: E402
from celery_sagas.testing.harness.real_time import RealTimeWarning  # noqa: E402
from celery_sagas.testing.harness.timeline import ScenarioError  # noqa: E402
from celery_sagas.worker.collecting import Collected, CollectedMessage, collected  # noqa: E402

__all__ = [
    "AggregateStoreContract",
    "BackendContract",
    "BuffersContract",
    "Clock",
    "Collected",
    "CollectedMessage",
    "CrashPoint",
    "DeadLettersContract",
    "DeliveriesContract",
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
    "collected",
]
