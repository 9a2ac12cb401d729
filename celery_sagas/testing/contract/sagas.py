"""``SagaStore``, in all of its parts."""

from celery_sagas.testing.contract.cancel import CancelContract
from celery_sagas.testing.contract.commits import CommitContract
from celery_sagas.testing.contract.delete import DeleteContract
from celery_sagas.testing.contract.find import FindContract
from celery_sagas.testing.contract.insert import InsertContract
from celery_sagas.testing.contract.lock import LockContract
from celery_sagas.testing.contract.rename import RenameContract
from celery_sagas.testing.contract.text import TextContract
from celery_sagas.testing.contract.update import UpdateContract


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
