"""``AggregateStore``, in all of its parts."""

import pytest

from celery_sagas.testing.contract.aggregates.crowd import CrowdContract
from celery_sagas.testing.contract.aggregates.due import DueGroupsContract, DueTimesContract
from celery_sagas.testing.contract.aggregates.duplicates import DuplicatesContract
from celery_sagas.testing.contract.aggregates.flush import FlushingContract, RemovalContract
from celery_sagas.testing.contract.aggregates.insert import AskingContract, BufferingContract, LookingAgainContract
from celery_sagas.testing.contract.aggregates.lease import LeasingContract, RenewalContract
from celery_sagas.testing.contract.aggregates.pause import PausingContract
from celery_sagas.testing.contract.aggregates.restore import ResolvingContract, RestoringContract
from celery_sagas.testing.contract.aggregates.sending import SendingContract
from celery_sagas.testing.contract.aggregates.text import OddNamesContract


@pytest.mark.usefixtures("aggregators")
class AggregateStoreContract(
    BufferingContract,
    DuplicatesContract,
    AskingContract,
    LookingAgainContract,
    OddNamesContract,
    FlushingContract,
    RemovalContract,
    SendingContract,
    LeasingContract,
    PausingContract,
    RenewalContract,
    ResolvingContract,
    RestoringContract,
    DueGroupsContract,
    DueTimesContract,
    CrowdContract,
):
    """The requirements on every ``AggregateStore``."""
