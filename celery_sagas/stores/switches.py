"""The port of the switches. The docstrings are the specification; ``celery_sagas.testing`` tests each sentence.

A backend may lack it: see ``Backend``.
"""

from abc import ABC, abstractmethod
from typing import Final, NamedTuple

from celery_sagas.errors import StoreError
from celery_sagas.stores.records import AuditEntry

#: How many switches there are at most: every worker process reads all of them.
MOST: Final = 100


class Switch(NamedTuple):
    """A saga, or a step, that is held: its messages wait."""

    name: str  #: the stored name of the saga, or the name of the step's task
    actor: str
    reason: str
    at: int  #: when it was held; milliseconds since the epoch, by the store's clock


class Switches(ABC):
    """What operators hold. A change and its entry of the audit are one commit: both are written, or neither is.

    The id of the entry identifies the call. One that is repeated with the same entry, after its reply was lost, returns what the
    first call did, and writes nothing.
    """

    @abstractmethod
    def hold(self, name: str, entry: AuditEntry) -> bool:
        """Hold a saga or a step, with the actor and the reason of the entry; return whether this call holds it.

        One that is held already stays as it is, and nothing is written. Of several calls at once for one name, one holds it.

        Raises:
            StoreError: ``MOST`` others are held; nothing was written.
        """

    @abstractmethod
    def release(self, name: str, entry: AuditEntry) -> bool:
        """Release a saga or a step; return whether it was held. If it was not, nothing is written."""

    @abstractmethod
    def held(self) -> list[Switch]:
        """Return all switches, by their names. One that is damaged is returned, perhaps without actor, reason and time."""


def too_many() -> StoreError:
    """Return the error about one switch more than there may be."""
    return StoreError(f"{MOST} sagas and steps are held, and no more can be. Nothing was stored. Release some first.")
