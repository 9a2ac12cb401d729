"""``Buffers``, in all of its parts."""

from celery_sagas.testing.contract.buffers.change import OpeningContract, RemovingContract
from celery_sagas.testing.contract.buffers.look import LookingContract, UnresolvedContract


class BuffersContract(LookingContract, UnresolvedContract, OpeningContract, RemovingContract):
    """The requirements on every ``Buffers``."""
