"""The contract is whole: no part of it hides another, and whoever uses it learns what to override."""

import pytest

from celery_sagas import testing
from celery_sagas.testing.machine import MachineContract

CONTRACTS = [
    testing.SagaStoreContract,
    testing.OutboxContract,
    testing.JournalContract,
    testing.DeliveriesContract,
    testing.DeadLettersContract,
    testing.AggregateStoreContract,
    testing.BuffersContract,
    testing.BackendContract,
    testing.InterleavingContract,
    MachineContract,
]


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.__name__)
def test_no_part_of_a_contract_hides_another(contract):
    """Parts are mixed in: of two tests with one name only one would run."""
    names = [name for part in contract.__mro__ for name in vars(part) if name.startswith("test_")]
    hidden = {name for name in names if names.count(name) > 1}
    assert not hidden, f"Rename one of each: {', '.join(sorted(hidden))}"


def test_names_are_those_that_are_published():
    """What stands in ``__all__`` is there."""
    assert all(hasattr(testing, name) for name in testing.__all__)
