"""``Buffers``, in all of its parts."""

from celery_sagas.testing.contract.by_hand import OpeningContract, RemovingContract
from celery_sagas.testing.contract.looking import LookingContract


class BuffersContract(LookingContract, OpeningContract, RemovingContract):
    """What every ``Buffers`` must do."""
