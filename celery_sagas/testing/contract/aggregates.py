"""``AggregateStore``, in all of its parts."""

from celery_sagas.testing.contract.asking import AskingContract
from celery_sagas.testing.contract.buffering import BufferingContract
from celery_sagas.testing.contract.crowd import CrowdContract
from celery_sagas.testing.contract.due_groups import DueGroupsContract
from celery_sagas.testing.contract.due_times import DueTimesContract
from celery_sagas.testing.contract.duplicates import DuplicatesContract
from celery_sagas.testing.contract.flushing import FlushingContract
from celery_sagas.testing.contract.leasing import LeasingContract
from celery_sagas.testing.contract.looking_again import LookingAgainContract
from celery_sagas.testing.contract.odd_names import OddNamesContract
from celery_sagas.testing.contract.pausing import PausingContract
from celery_sagas.testing.contract.removal import RemovalContract
from celery_sagas.testing.contract.renewal import RenewalContract
from celery_sagas.testing.contract.restoring import RestoringContract
from celery_sagas.testing.contract.unresolved import ResolvingContract


class InsertContract(BufferingContract, DuplicatesContract, AskingContract, LookingAgainContract, OddNamesContract):
    """Items come in."""


class LeaseOfItemsContract(FlushingContract, RemovalContract, LeasingContract, PausingContract, RenewalContract):
    """Items go out."""


class ReturnContract(ResolvingContract, RestoringContract):
    """Items come back."""


class AggregateStoreContract(
    InsertContract, LeaseOfItemsContract, ReturnContract, DueGroupsContract, DueTimesContract, CrowdContract
):
    """The requirements on every ``AggregateStore``."""
