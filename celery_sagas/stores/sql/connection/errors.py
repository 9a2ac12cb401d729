"""The one place where a driver's errors become the library's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum, auto
from typing import TYPE_CHECKING

from sqlalchemy.exc import DBAPIError, StatementError

from celery_sagas.errors import StoreError, StoreUnavailable
from celery_sagas.stores.sql.connection.location import SqlLocation
from celery_sagas.stores.sql.connection.names import Names

if TYPE_CHECKING:  # SQLAlchemy 2.0 began without it
    from sqlalchemy.engine.interfaces import DBAPIModule


class Fault(Enum):
    """The meaning of a driver's error."""

    LOCKED = auto()  #: the victim of a deadlock or of a lock time-out
    CANCELED = auto()  #: a statement was ended, by its time limit or by an administrator
    UNIQUE = auto()  #: something that was to be inserted is there already
    REFUSED = auto()  #: the values themselves: they would be refused again
    NO_TABLE = auto()  #: our tables were not created
    OLD_TABLE = auto()  #: our tables lack a column or an index
    DENIED = auto()  #: the user lacks the permission
    UNAVAILABLE = auto()  #: everything else


#: By SQLSTATE (or its class, the first two characters) on PostgreSQL, by number on MySQL, by name on SQLite. What is not here
#: goes by the exception's class.
_FAULTS: Mapping[str | int | None, Fault] = {
    "40001": Fault.LOCKED,  # serialization failure
    "40P01": Fault.LOCKED,  # deadlock
    "55P03": Fault.LOCKED,  # lock not available
    1020: Fault.LOCKED,  # record has changed since last read
    1205: Fault.LOCKED,  # lock wait time-out
    1213: Fault.LOCKED,  # deadlock
    "57014": Fault.CANCELED,  # query canceled
    1969: Fault.CANCELED,  # MariaDB: max_statement_time exceeded
    3024: Fault.CANCELED,  # MySQL: max_execution_time exceeded
    "SQLITE_INTERRUPT": Fault.CANCELED,
    "42P01": Fault.NO_TABLE,  # undefined table
    1146: Fault.NO_TABLE,  # no such table
    "42703": Fault.OLD_TABLE,  # undefined column
    1054: Fault.OLD_TABLE,  # unknown column
    1176: Fault.OLD_TABLE,  # no such key, which a statement names
    "42501": Fault.DENIED,  # insufficient privilege
    1044: Fault.DENIED,  # access to the database denied
    1142: Fault.DENIED,  # command on the table denied
    "22": Fault.REFUSED,  # data exception
    "54": Fault.REFUSED,  # program limit exceeded: too long for an index
    1118: Fault.REFUSED,  # row too large, or too large for the redo log
    1153: Fault.REFUSED,  # larger than max_allowed_packet
    1197: Fault.REFUSED,  # transaction larger than max_binlog_cache_size
    1366: Fault.REFUSED,  # incorrect string value
}
#: MySQL's numbers of the errors with which the server has rolled back the whole transaction, savepoints included, and not the
#: statement alone: a record that has changed, a full table of locks, a deadlock. The statements that follow begin another one.
_UNDOES_ALL = frozenset({1020, 1206, 1213})
#: Raised by drivers while they encode the values, before anything is sent: a lone surrogate, a number beyond 64 bits.
_ENCODING_ERRORS = (UnicodeError, OverflowError)

_NO_TABLE = "it has no {}: {}"
_OLD_TABLE = "its {} have the layout of an earlier release: {}"
_MIGRATES_TABLES = "run `celery -A proj sagas migrate`"
_CREATES_TABLES = "start a worker, which creates them, or apply what `celery -A proj sagas schema` prints"

_PATHS = "sqlite:///name is relative to the working directory, sqlite:////name is absolute"


class SqlErrors:
    """Translates the errors of drivers at one location."""

    def __init__(self, location: SqlLocation, names: Names, *drivers: DBAPIModule) -> None:
        self._errors = tuple(driver.Error for driver in drivers)
        self._integrity_errors = tuple(driver.IntegrityError for driver in drivers)
        self._data_errors = tuple(driver.DataError for driver in drivers)
        self._location = location
        self._names = names

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise every error of the driver as a ``StoreError``."""
        try:
            yield
        except DBAPIError as exc:
            origin = exc.orig if isinstance(exc.orig, Exception) else exc
            raise self._translate(origin) from origin
        except StatementError as exc:  # SQLAlchemy's, about an interruption of its own statement, such as a time limit
            raise exc.orig or exc from None
        except (*self._errors, *_ENCODING_ERRORS) as exc:
            raise self._translate(exc) from exc

    def _translate(self, error: Exception) -> StoreError:
        fault = self.fault_of(error)
        if fault is Fault.REFUSED:
            return StoreError(
                f"The saga backend {self._location.shown} refused the values: {self.text_of(error)}. Nothing was stored."
            )
        return StoreUnavailable(self._location.shown, self._unavailable(error, fault))

    def _unavailable(self, error: Exception, fault: Fault) -> str:
        if fault is Fault.NO_TABLE:
            return _NO_TABLE.format(self._names.shown, self._location.creates_tables or _CREATES_TABLES)
        if fault is Fault.OLD_TABLE:
            return _OLD_TABLE.format(self._names.shown, self._location.creates_tables or _MIGRATES_TABLES)
        folder = self._location.missing_folder
        return (
            f"the folder {folder} does not exist: create it, or write another path ({_PATHS})" if folder else self.text_of(error)
        )

    def fault_of(self, error: Exception) -> Fault:
        """Return the meaning of an error."""
        code = _code(error)
        fault = _FAULTS.get(code) or (_FAULTS.get(code[:2]) if isinstance(code, str) else None)
        if fault is not None:
            return fault
        if isinstance(error, self._integrity_errors):
            return Fault.UNIQUE
        if str(error).startswith(f"no such table: {self._names.of('saga_')}"):  # SQLite has no number for it
            return Fault.NO_TABLE
        if str(error).startswith("no such column: "):
            return Fault.OLD_TABLE
        return Fault.REFUSED if isinstance(error, (*self._data_errors, *_ENCODING_ERRORS)) else Fault.UNAVAILABLE

    def undoes_all(self, error: BaseException) -> bool:
        """Return whether the server has rolled back the transaction of a statement, and takes more of them without it."""
        return isinstance(error, self._errors) and _code(error) in _UNDOES_ALL

    def text_of(self, error: BaseException) -> str:
        """Return the first line: those that follow may repeat stored values."""
        line = next(iter(str(error).splitlines()), "").rstrip(".")
        return self._location.hide_secrets(f"{type(error).__name__}: {line}" if line else type(error).__name__)


def _code(error: Exception) -> str | int | None:
    """Return PyMySQL's number (its SQLSTATE, where it has one, is less precise), psycopg's SQLSTATE, or SQLite's name."""
    if error.args and isinstance(error.args[0], int):
        return error.args[0]
    state = getattr(error, "sqlstate", None) or getattr(error, "sqlite_errorname", None)
    return state if isinstance(state, str) else None
