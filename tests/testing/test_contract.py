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
    testing.InstancesContract,
    testing.AuditContract,
    testing.SwitchesContract,
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


def test_whole_contract_has_every_contract():
    """Each in a class that pytest collects, and with the backend of the class around it."""
    parts = [part for name, part in vars(testing.WholeContract).items() if name.startswith("Test")]
    assert {contract for part in parts for contract in part.__mro__} >= set(CONTRACTS) - {MachineContract}
    assert all(part.__mro__[1] is testing.WholeContract.Part for part in parts)


def test_contracts_are_those_that_are_published():
    published = {getattr(testing, name) for name in testing.__all__ if name.endswith("Contract")}
    assert published == {*CONTRACTS, testing.WholeContract} - {MachineContract}


def test_names_are_those_that_are_published():
    """What stands in ``__all__`` is there."""
    assert all(hasattr(testing, name) for name in testing.__all__)
