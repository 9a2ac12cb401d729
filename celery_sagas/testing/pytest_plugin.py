"""The pytest plugin: a fixture, and with a failed test what has happened to its sagas. It imports nothing before its use."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from celery_sagas.testing.harness.harness import SagaHarness


@pytest.fixture
def saga_harness_options() -> dict[str, Any]:
    """The arguments of the ``SagaHarness`` of the fixture ``saga_harness``: override it to name an app, or a time."""
    return {}


@pytest.fixture
def saga_harness(saga_harness_options: dict[str, Any]) -> "Iterator[SagaHarness]":
    """Sagas in virtual time, of the current Celery app, which the test may also make: see ``SagaHarness``."""
    from celery_sagas.testing.harness.harness import SagaHarness

    with SagaHarness(**saga_harness_options) as harness:
        yield harness


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Show with a test that has failed what has happened to its sagas."""
    report = yield
    harness = getattr(item, "funcargs", {}).get("saga_harness")
    if harness is not None and report.when == "call" and report.failed:
        report.sections.append(("sagas", harness.timeline()))
    return report
