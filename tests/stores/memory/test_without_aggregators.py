"""A backend without aggregators and an audit keeps the rest of the contract, and says what to set for the use of these."""

import uuid
from typing import Any

import pytest

from celery_sagas.errors import ConfigurationError
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.testing import NewBackend, WholeContract
from celery_sagas.testing.machine import MachineContract
from tests.apps import WithoutAggregators


class WithoutAudit(WithoutAggregators):
    """A backend in memory that records nothing of what operators do, either."""

    def __init__(self, url: str, *, prefix: str, clock: Any = None) -> None:
        super().__init__(url, prefix=prefix, clock=clock)
        del self.audit, self.switches


class TestWithoutAggregators(WholeContract):
    """What aggregators, or operators, need is skipped."""

    # as a backend's author may do, for whom each skipped test is a line of the report
    TestAggregates = TestAudit = TestSwitches = None

    @pytest.fixture
    def new_backend(self) -> NewBackend:
        url = f"memory://{uuid.uuid4()}"
        return lambda prefix, clock: WithoutAudit(url, prefix=prefix, clock=clock)

    class TestMachine(WholeContract.Part, MachineContract):
        """Many operations in any order."""


def test_audit_that_is_not_kept_says_what_to_do() -> None:
    backend = WithoutAudit("memory://", prefix="")
    assert not backend.has_audit
    with pytest.raises(ConfigurationError, match=r"in memory://, a backend without Audit\. Keep the saga in another backend"):
        backend.audit.recent(9)


def test_switches_that_are_not_kept_say_what_to_do() -> None:
    backend = WithoutAudit("memory://", prefix="")
    assert not backend.has_switches
    with pytest.raises(ConfigurationError, match=r"be held in memory://, a backend without Switches\. Keep the saga in another"):
        backend.switches.held()


@pytest.mark.parametrize("port", ["aggregates", "buffers"])
def test_port_that_is_not_kept_says_what_to_set(port: str) -> None:
    backend = WithoutAggregators("memory://", prefix="")
    with pytest.raises(ConfigurationError) as caught:
        getattr(backend, port)
    assert str(caught.value) == (
        "the items of aggregators cannot be kept in memory://, a backend without aggregators. "
        "Set saga_aggregator_backend to the URL of a backend that has them."
    )


@pytest.mark.parametrize("lacking", [("aggregates",), ("buffers",), ("aggregates", "buffers")])
def test_backend_has_aggregators_if_it_has_both_ports(lacking: tuple[str, ...]) -> None:
    backend: Any = MemoryBackend("memory://", prefix="")
    assert backend.has_aggregators
    for port in lacking:
        delattr(backend, port)
    assert not backend.has_aggregators
