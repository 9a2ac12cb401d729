"""``Leftovers``, in all of its parts."""

from celery_sagas.testing.contract.keeping import KeepingContract
from celery_sagas.testing.contract.putting_back import PuttingBackContract


class LeftoversContract(KeepingContract, PuttingBackContract):
    """What every ``Leftovers`` must do."""
