"""Transactions of callers, known by an SQLAlchemy session or connection: outgoing rows are written over that very connection."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Engine,
    Insert,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    bindparam,
    case,
    event,
    insert,
)
from sqlalchemy import column as named
from sqlalchemy import literal_column as literal
from sqlalchemy import table as plain_table
from sqlalchemy.exc import DBAPIError, PendingRollbackError
from sqlalchemy.orm import Session, SessionTransaction, scoped_session

from celery_sagas.core.ids import time_ordered_id
from celery_sagas.errors import ConfigurationError, MisuseError
from celery_sagas.stores.records import Outgoing
from celery_sagas.stores.shared import SEND
from celery_sagas.stores.sql.connection.database import Database
from celery_sagas.stores.sql.connection.statements import SERVER_CLOCKS
from celery_sagas.stores.sql.shared.checks import check_connection, refuse_autocommit
from celery_sagas.stores.sql.tables import outbox

#: PostgreSQL's code of the error of a statement in a transaction that an earlier error has ended.
_ABORTED: Final = "25P02"


class _Sent(NamedTuple):
    """The rows that a session's transaction has."""

    cause: str
    then: Callable[[str], object]


class OutgoingInsert:
    """Inserts outgoing rows of plain code over any connection to a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.statement = _insert_row(database.names.table(outbox), database.name, has_clock=database.clock is not None)

    def values(self, row: Outgoing, cause: str) -> dict[str, object]:
        """Return the parameters for a row."""
        values: dict[str, object] = {**row._asdict(), "prefix": self._database.prefix, "cause": cause}
        if self._database.name == "mysql":  # the caller's connection may encode texts in another way than ours
            values = {name: value.encode() if isinstance(value, str) else value for name, value in values.items()}
        return values if self._database.clock is None else {**values, "now": self._database.clock()}


class Callers:
    """The transactions of callers in one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._insert = OutgoingInsert(database)
        self._checked: WeakSet[Engine] = WeakSet()

    def add(self, using: object, rows: Sequence[Outgoing], then: Callable[[str], object]) -> None:
        """Write rows; see ``SharedTransactions.add``."""
        caller = using() if isinstance(using, scoped_session) else using
        if isinstance(using, str):
            problem = f"using={using!r} is an alias of Django's, and the messages are kept in {self._database.location.shown}"
            raise ConfigurationError(problem, f"Let saga_outbox_backend, or saga_backend, be django://{using}")
        if not isinstance(caller, Session | Connection):
            raise TypeError(f"using= takes a Session or a Connection of SQLAlchemy's, {_but_given(using)}")
        with _ended_transactions_refused():
            connection = caller.connection() if isinstance(caller, Session) else caller
            self._check(connection)
            cause = self._note(caller, then) if isinstance(caller, Session) and _is_told(connection) else time_ordered_id()
            for row in rows:
                connection.execute(self._insert.statement, self._insert.values(row, cause))

    def _check(self, connection: Connection) -> None:
        refuse_autocommit(connection)
        if connection.engine not in self._checked:
            check_connection(connection, self._database)
            self._checked.add(connection.engine)

    def _note(self, session: Session, then: Callable[[str], object]) -> str:
        """Have a function called once the session commits; return the cause of all rows until then."""
        sent = _sent.setdefault(session, {})
        cause = sent[self].cause if self in sent else time_ordered_id()
        sent[self] = _Sent(cause, then)
        return cause


@event.listens_for(Session, "after_commit")  # a listener of each session would cost it a fifth of what sending does
def _after_commit(session: Session) -> None:
    """Note what a session has committed. SQLAlchemy reports a released savepoint as a commit, too."""
    if session not in _sent or session.in_nested_transaction():
        return
    sent = _sent.pop(session)
    if isinstance(session.bind, Connection) and session.bind.in_transaction():
        return  # a transaction around the session goes on: nothing tells when it commits
    _committed[session] = sent


@event.listens_for(Session, "after_transaction_end")
def _after_end(session: Session, transaction: SessionTransaction) -> None:
    """Call what waits for a session's commit, once the session has given its connection back and can be used again."""
    if session in _committed and transaction.parent is None:
        for cause, then in _committed.pop(session).values():
            then(cause)


#: The rows of each session's transaction, and those of one that it has committed. Not in its ``info``: that is the caller's, and
#: every session of the process comes by here.
_sent: WeakKeyDictionary[Session, dict[Callers, _Sent]] = WeakKeyDictionary()
_committed: WeakKeyDictionary[Session, dict[Callers, _Sent]] = WeakKeyDictionary()


def _is_told(connection: Connection) -> bool:
    """Return whether something may be done as soon as a session has committed: over an asynchronous driver nothing may block."""
    return not connection.dialect.is_async


@contextmanager
def _ended_transactions_refused() -> Iterator[None]:
    """Report a transaction that can only be rolled back; other errors of the database are the caller's.

    Raises:
        MisuseError: An earlier error has ended the transaction.
    """
    try:
        yield
    except (PendingRollbackError, DBAPIError) as exc:
        if isinstance(exc, DBAPIError) and not is_aborted(exc.orig):
            raise
        problem, remedy = "the transaction was ended by an earlier error, and nothing can be sent with it", "Roll it back first"
        raise MisuseError(problem, remedy) from exc


def is_aborted(error: BaseException | None) -> bool:
    """Return whether PostgreSQL refuses a statement since an earlier error has ended its transaction; by the driver's error."""
    return _ABORTED in (getattr(error, name, "") for name in ("sqlstate", "pgcode"))


def _but_given(value: object) -> str:
    name = type(value).__name__
    return f"not {name}: await session.run_sync(…), and give it the Session there" if name.startswith("Async") else f"not {name}"


def _insert_row(table: Table, database: str, *, has_clock: bool) -> Insert:
    """Insert an outgoing row of plain code: due at once, or when its time comes; under no lease."""
    text: Any = LargeBinary() if database == "mysql" else Text()
    clock: ColumnElement[int] = _given("now", BigInteger()) if has_clock else literal(SERVER_CLOCKS[database], BigInteger())
    due_at = _given("due_at", BigInteger())
    columns: dict[str, Any] = {
        **{name: _given(name, text) for name in ("prefix", *Outgoing._fields, "cause")},
        "due_at": due_at,
        "available_at": case((due_at > literal("0"), due_at), else_=clock),
        **dict.fromkeys(("leased_until", "attempts"), literal("0", Integer())),
        **dict.fromkeys(("token", "error", "instance_id"), literal("''", String())),
        "step": literal(f"'{SEND}'", String()),
    }
    rows = plain_table(table.name, *map(named, columns), schema=table.schema)
    return insert(rows).values(columns)


def _given(name: str, type_: Any) -> Any:
    return bindparam(name, type_=type_)
