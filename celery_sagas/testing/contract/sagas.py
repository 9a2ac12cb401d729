"""``SagaStore``, in all of its parts."""

from celery_sagas.testing.contract.commits import CommitContract
from celery_sagas.testing.contract.delete import DeleteContract
from celery_sagas.testing.contract.find import FindContract
from celery_sagas.testing.contract.insert import InsertContract
from celery_sagas.testing.contract.rename import RenameContract
from celery_sagas.testing.contract.reserve import ReserveContract
from celery_sagas.testing.contract.text import TextContract
from celery_sagas.testing.contract.update import UpdateContract
from celery_sagas.testing.contract.withdraw import WithdrawContract


class SagaStoreContract(
    FindContract,
    InsertContract,
    UpdateContract,
    WithdrawContract,
    DeleteContract,
    CommitContract,
    ReserveContract,
    RenameContract,
    TextContract,
):
    """What every ``SagaStore`` must do."""
