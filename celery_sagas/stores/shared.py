"""The port of shared transactions: rows of the user's, and what this library keeps, are committed together or not at all.

The docstrings are the specification. A backend that takes no part in the transactions of others has none: see ``Backend``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from celery_sagas.errors import StoreUnavailable
from celery_sagas.stores.records import Entry, Outgoing

T = TypeVar("T")

#: The step that rows of the outbox name if plain code has sent them.
SEND: Final = "celery_sagas.send"


def sent_by(cause: str) -> Entry:
    """Return what ``Outbox.claim_due`` takes for the rows that plain code has sent in one transaction."""
    return Entry(SEND, cause, "", "", "", "", "", 0, "")


class SharedTransaction(ABC):
    """A transaction that has begun in the backend's database: a function writes its rows in it, then the library commits."""

    #: Given to the function: a session or a connection.
    handle: Any

    @abstractmethod
    def flush(self) -> None:
        """Send what the function has left to be written.

        Raises:
            Exception: The database, or the session, refuses it; the error is as the function itself would meet it.
            MisuseError: The function has ended the transaction.
        """

    @abstractmethod
    def commit(self, operation: Callable[[Any], T]) -> T:
        """Perform a commit of the library in this transaction, and commit both.

        If it returns, all is committed; if it raises, nothing is. If the reply to the commit is lost, ``StoreUnavailable`` is
        raised, and all or nothing was committed: the journal, or the lease, tells which.

        Args:
            operation: Called with a backend whose ``sagas`` and ``aggregates`` write in this transaction.

        Raises:
            StoreError: What the operation would raise alone; or the commit failed. See ``is_conflict``.
            MisuseError: The function has ended the transaction, or has caught an error that has ended it.
            Exception: A constraint of the user's, which is checked at the end, refuses the function's rows.
        """

    @abstractmethod
    def close(self) -> None:
        """Undo what was not committed, and give the connection back; after a commit only the latter. Raises nothing."""

    @abstractmethod
    def is_conflict(self, error: BaseException) -> bool:
        """Return whether an error, of the function or of ``commit``, says that the database has undone the transaction in favour
        of another one: the whole is run again.
        """

    @abstractmethod
    def loss_of(self, error: BaseException) -> StoreUnavailable | None:
        """Return what an error of the function stands for, if it says that the connection was lost; else ``None``."""


class SharedTransactions(ABC):
    """Transactions in a backend's database that hold rows of the user's."""

    @abstractmethod
    def add(self, using: object, rows: Sequence[Outgoing], then: Callable[[str], object]) -> None:
        """Write outgoing rows in a transaction of the caller's: they are sent if and only if it commits, savepoints included.

        Their step is ``SEND``. No lease lasts on them: once the transaction has committed, and their due time has come, they are
        due. The rows of one transaction have one cause.

        Args:
            using: What the caller's transaction is known by.
            rows: The rows.
            then: Called right after the commit, once for all rows of a transaction, with their cause; never, if nothing tells
                when the transaction commits. An error of it does not reach the caller.

        Raises:
            TypeError: ``using`` is nothing of which a transaction is known.
            MisuseError: There is no transaction, or it can only be rolled back.
            ConfigurationError: It is one of another database, or one in which rows cannot be written safely.
            Exception: An error of the database, as the caller's own statements would meet it.
        """

    @abstractmethod
    def check(self, kind: object) -> None:
        """Check, without a connection, that a kind of transaction can be opened.

        Raises:
            ConfigurationError: It cannot; the text says why, and what to do.
        """

    @abstractmethod
    def open(self, kind: object) -> SharedTransaction:
        """Begin a transaction.

        Args:
            kind: The class of the session or the connection that the function is given.

        Raises:
            ConfigurationError: This kind cannot be opened.
            StoreUnavailable: The database cannot be reached, or is locked.
        """
