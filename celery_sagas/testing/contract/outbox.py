"""``Outbox``, in all of its parts."""

from celery_sagas.testing.contract.claim import ClaimContract
from celery_sagas.testing.contract.lease import LeaseContract


class OutboxContract(ClaimContract, LeaseContract):
    """The requirements on every ``Outbox``."""
