"""The table that translates drivers' errors, and what the texts may not hold."""

import sqlite3
from pathlib import Path

import psycopg
import pymysql
import pytest
from sqlalchemy.exc import StatementError

from celery_sagas.errors import ConfigurationError, StoreError, StoreUnavailable
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.stores.sql.connection.errors import Fault, SqlErrors
from celery_sagas.stores.sql.connection.location import locate
from celery_sagas.stores.sql.connection.names import OURS, Names
from celery_sagas.testing.samples import by_key

_LOCATION = locate("postgresql://me:s3cret@host/shop")


def _translator(driver: object) -> SqlErrors:
    return SqlErrors(_LOCATION, OURS, driver)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (psycopg.errors.SerializationFailure(), Fault.LOCKED),
        (psycopg.errors.DeadlockDetected(), Fault.LOCKED),
        (psycopg.errors.LockNotAvailable(), Fault.LOCKED),
        (psycopg.errors.UniqueViolation(), Fault.UNIQUE),
        (psycopg.errors.NotNullViolation(), Fault.UNIQUE),
        (psycopg.errors.StringDataRightTruncation(), Fault.REFUSED),
        (psycopg.errors.UntranslatableCharacter(), Fault.REFUSED),
        (psycopg.errors.ProgramLimitExceeded(), Fault.REFUSED),
        (psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes"), Fault.REFUSED),
        (psycopg.errors.AdminShutdown(), Fault.UNAVAILABLE),
        (psycopg.errors.ReadOnlySqlTransaction(), Fault.UNAVAILABLE),
        (psycopg.errors.UndefinedTable(), Fault.NO_TABLE),
        (psycopg.errors.InsufficientPrivilege(), Fault.DENIED),
        (psycopg.OperationalError("connection refused"), Fault.UNAVAILABLE),
        (psycopg.InterfaceError("the connection is closed"), Fault.UNAVAILABLE),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.name,
)
def test_psycopg(error: Exception, fault: Fault) -> None:
    assert _translator(psycopg).fault_of(error) is fault


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (pymysql.err.OperationalError(1205, "Lock wait timeout exceeded"), Fault.LOCKED),
        (pymysql.err.OperationalError(1213, "Deadlock found"), Fault.LOCKED),
        (pymysql.err.OperationalError(1020, "Record has changed since last read"), Fault.LOCKED),
        (pymysql.err.IntegrityError(1062, "Duplicate entry"), Fault.UNIQUE),
        (pymysql.err.DataError(1406, "Data too long for column"), Fault.REFUSED),
        (
            pymysql.err.OperationalError(1118, "The size of BLOB/TEXT data inserted in one transaction is too large"),
            Fault.REFUSED,
        ),
        (pymysql.err.OperationalError(1197, "Multi-statement transaction required more storage"), Fault.REFUSED),
        (pymysql.err.OperationalError(1153, "Got a packet bigger than 'max_allowed_packet' bytes"), Fault.REFUSED),
        (pymysql.err.OperationalError(1366, "Incorrect string value"), Fault.REFUSED),
        (pymysql.err.OperationalError(2006, "MySQL server has gone away"), Fault.UNAVAILABLE),
        (pymysql.err.OperationalError(1290, "running with the --read-only option"), Fault.UNAVAILABLE),
        (pymysql.err.InterfaceError(0, ""), Fault.UNAVAILABLE),
        (pymysql.err.ProgrammingError(1146, "Table does not exist"), Fault.NO_TABLE),
        (pymysql.err.OperationalError(1044, "Access denied for user to database"), Fault.DENIED),
        (pymysql.err.OperationalError(1142, "CREATE command denied to user"), Fault.DENIED),
    ],
    ids=lambda value: str(value.args[0]) if isinstance(value, Exception) else value.name,
)
def test_pymysql(error: Exception, fault: Fault) -> None:
    assert _translator(pymysql).fault_of(error) is fault


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (sqlite3.IntegrityError("UNIQUE constraint failed"), Fault.UNIQUE),
        (sqlite3.DataError("string or blob too big"), Fault.REFUSED),
        (sqlite3.OperationalError("database is locked"), Fault.UNAVAILABLE),
        (sqlite3.OperationalError("attempt to write a readonly database"), Fault.UNAVAILABLE),
        (sqlite3.OperationalError("22 values for 21 columns"), Fault.UNAVAILABLE),
        (OverflowError("Python int too large to convert to SQLite INTEGER"), Fault.REFUSED),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"), Fault.REFUSED),
    ],
    ids=str,
)
def test_sqlite(error: Exception, fault: Fault) -> None:
    assert _translator(sqlite3).fault_of(error) is fault


@pytest.mark.parametrize(("table", "fault"), [("shop_saga_key", Fault.NO_TABLE), ("saga_key", Fault.UNAVAILABLE)])
def test_sqlite_tells_a_missing_table_by_its_name(table: str, fault: Fault) -> None:
    translator = SqlErrors(locate("sqlite://"), Names(prefix="shop_"), sqlite3)  # type: ignore[arg-type]
    assert translator.fault_of(sqlite3.OperationalError(f"no such table: {table}")) is fault


@pytest.mark.parametrize("fault", [psycopg.errors.DeadlockDetected("deadlock"), psycopg.errors.UniqueViolation("taken")])
def test_conflict_of_what_is_no_commit_is_unavailable(fault: Exception) -> None:
    """Nobody would run it again from find."""
    with pytest.raises(StoreUnavailable) as caught, _translator(psycopg).translated():
        raise fault
    assert caught.value.__cause__ is fault


def test_other_exceptions_pass() -> None:
    with pytest.raises(LookupError), _translator(psycopg).translated():
        raise LookupError


def test_what_interrupts_sqlalchemys_own_statements_passes() -> None:
    """Such as a soft time limit, while the first connection is looked at: its message has not failed."""
    interruption = LookupError()
    with pytest.raises(LookupError) as caught, _translator(pymysql).translated():
        raise StatementError("interrupted", "SELECT @@sql_mode", {}, interruption)
    assert caught.value is interruption


@pytest.mark.parametrize("error", [psycopg.OperationalError("password s3cret is wrong\ndetail"), psycopg.DataError("s3cret")])
def test_text_holds_no_password(error: Exception) -> None:
    with pytest.raises(StoreError) as caught, _translator(psycopg).translated():
        raise error
    assert "s3cret" not in f"{caught.value} {caught.value!r} {caught.value.args}"
    assert "detail" not in str(caught.value)


def test_unreachable_server_is_unavailable_and_shows_no_secret() -> None:
    backend = SqlBackend("db+postgresql://me:s3cret@127.0.0.1:1/shop?sslpassword=hush", prefix="")
    for call in (lambda: backend.sagas.find(by_key()), lambda: backend.prepare(create_schema=True, processes=1)):
        with pytest.raises(StoreUnavailable) as caught:
            call()
        assert isinstance(caught.value.__cause__, psycopg.OperationalError)
        for secret in ("s3cret", "hush"):
            assert secret not in f"{caught.value} {caught.value!r} {backend!r} {backend.url}"
    assert backend.url == "postgresql://me:***@127.0.0.1:1/shop?sslpassword=***"
    backend.close()


@pytest.mark.parametrize("is_relative", [True, False])
def test_folder_of_an_sqlite_file_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_relative: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    url = "sqlite:///data/shop.sqlite3" if is_relative else f"sqlite:///{tmp_path}/data/shop.sqlite3"
    backend = SqlBackend(url, prefix="")
    for work in (lambda: backend.prepare(create_schema=True, processes=1), lambda: backend.sagas.find(by_key())):
        with pytest.raises(StoreUnavailable) as raised:
            work()
        assert f"the folder {tmp_path}/data does not exist: create it, or write another path" in str(raised.value)

    (tmp_path / "data").mkdir()
    backend.prepare(create_schema=True, processes=1)
    assert backend.sagas.find(by_key()).record is None
    backend.close()


@pytest.mark.parametrize("url", ["postgresql://me:s3cret@host:s3cret/shop", "postgresql+s3cret", "//me:s3cret@host/shop"])
def test_malformed_url_is_not_repeated(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        locate(url)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None
