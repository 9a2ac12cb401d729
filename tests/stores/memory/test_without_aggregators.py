"""A backend without aggregators keeps the rest of the contract, and says what to set for the use of aggregators."""

import uuid
from typing import Any

import pytest

from celery_sagas.errors import ConfigurationError
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.testing import NewBackend, WholeContract
from tests.apps import WithoutAggregators


class TestWithoutAggregators(WholeContract):
    """What aggregators need is skipped."""

    TestAggregates = None  # as a backend's author may do, for whom each skipped test is a line of the report

    @pytest.fixture
    def new_backend(self) -> NewBackend:
        url = f"memory://{uuid.uuid4()}"
        return lambda prefix, clock: WithoutAggregators(url, prefix=prefix, clock=clock)


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
