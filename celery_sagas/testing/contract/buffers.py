"""``Buffers``, in all of its parts."""

from celery_sagas.testing.contract.by_hand import OpeningContract, RemovingContract
from celery_sagas.testing.contract.looking import LookingContract
from celery_sagas.testing.contract.unresolved import UnresolvedContract


class BuffersContract(LookingContract, UnresolvedContract, OpeningContract, RemovingContract):
    """The requirements on every ``Buffers``."""
