"""``Buffers``, in all of its parts."""

import pytest

from celery_sagas.testing.contract.buffers.change import OpeningContract, RemovingContract
from celery_sagas.testing.contract.buffers.look import LookingContract, UnresolvedContract


@pytest.mark.usefixtures("aggregators")
class BuffersContract(LookingContract, UnresolvedContract, OpeningContract, RemovingContract):
    """The requirements on every ``Buffers``."""
