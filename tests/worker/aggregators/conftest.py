"""Every test here defines aggregators of its own."""

import pytest


@pytest.fixture(autouse=True)
def own_definitions(definitions: None) -> None:
    """Take no aggregator from one test to another."""
