"""The contract is whole: no part of it hides another, and whoever uses it learns what to override."""

import re

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
    testing.LeftoversContract,
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


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.__name__)
def test_every_test_names_what_it_is_about(contract):
    """The docstring begins with the ids of the contracts."""
    tests = [test for part in contract.__mro__ for name, test in vars(part).items() if name.startswith("test_")]
    silent = [test.__name__ for test in tests if not re.match(r"(PM|NP|NS|AG)-\d\d|T\d", test.__doc__ or "")]
    assert not silent, f"Begin the docstring with the contract's id: {', '.join(silent)}"


def test_names_are_those_that_are_published():
    """What stands in ``__all__`` is there."""
    assert all(hasattr(testing, name) for name in testing.__all__)
