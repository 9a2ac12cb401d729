"""``SagaStore``, in all of its parts."""

from celery_sagas.testing.contract.sagas.commits import CancelContract, CommitContract
from celery_sagas.testing.contract.sagas.find import FindContract, LockContract
from celery_sagas.testing.contract.sagas.rename import RenameContract
from celery_sagas.testing.contract.sagas.text import TextContract
from celery_sagas.testing.contract.sagas.writes import DeleteContract, InsertContract, UpdateContract


class SagaStoreContract(
    FindContract,
    InsertContract,
    UpdateContract,
    CancelContract,
    DeleteContract,
    CommitContract,
    LockContract,
    RenameContract,
    TextContract,
):
    """The requirements on every ``SagaStore``."""
