"""A shop, and a harness for it."""

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_sagas.testing.harness.harness import SagaHarness
from tests.testing.harness.shop import open_shop


@pytest.fixture(name="shop")
def make_shop(app: Celery) -> Any:
    """The tasks of a shop, of this test alone."""
    return open_shop(app)


@pytest.fixture
def harness(shop: Any) -> Iterator[SagaHarness]:
    """A harness for the shop."""
    with SagaHarness(shop.app) as harness:
        yield harness
