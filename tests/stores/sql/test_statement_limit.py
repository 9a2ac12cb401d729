"""A statement larger than MariaDB takes: the server closes the connection, as if it were away, and would do so each time."""

import socket
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from celery_sagas.engine.dead_letters.dead_lettering import add_dead_letter
from celery_sagas.errors import Retry, StoreError, StoreUnavailable
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.testing.samples import by_key, change, dead_letter, effects, entry, found, is_there, outgoing, start
from tests.stores.sql.conftest import Open

pytestmark = pytest.mark.parametrize("url", ["mariadb"], indirect=True)


@pytest.fixture
def limit(sql: SqlBackend) -> int:
    """What the server takes. Bytes."""
    with sql.database.connect() as connection:
        return int(connection.exec_driver_sql("SELECT @@max_allowed_packet").scalar_one())


@pytest.fixture(params=["a bit", "far"])
def beyond(request: pytest.FixtureRequest, limit: int) -> str:
    """Text that is larger: by little, which the server says; by so much that it reads no further, and resets the connection."""
    return "x" * (limit if request.param == "a bit" else limit + 2**24 + 2**20)


WRITES: dict[str, Callable[[SqlBackend, str], Any]] = {
    "insert": lambda sql, text: start(sql, "43", data=text),
    "update": lambda sql, text: sql.sagas.update(record := found(sql, by_key("44")), change(data=text), effects(record)),
    "outgoing": lambda sql, text: start(sql, "45", outgoing(payload=text)),
    "record": lambda sql, text: sql.sagas.record(effects(None, outgoing(payload=text), line=entry())),
    "dead_letter": lambda sql, text: sql.dead.add(dead_letter()._replace(payload=text)),
}


@pytest.mark.parametrize("write", WRITES)
def test_is_refused_for_good(sql: SqlBackend, beyond: str, limit: int, write: str) -> None:
    """With what to do; nothing of it is stored, and what comes next is."""
    before = start(sql, "44")
    with pytest.raises(StoreError, match="max_allowed_packet") as caught:
        WRITES[write](sql, beyond)

    assert caught.value.retry is Retry.NEVER
    assert f"{limit:,} bytes" in str(caught.value)
    assert len(str(caught.value)) < 500
    assert (sql.outbox.count(), sql.dead.count()) == (0, 0)
    assert [is_there(sql, by_key(key)) for key in ("43", "45")] == [False, False]
    assert found(sql, by_key("44")) == before
    start(sql, "46")
    assert is_there(sql, by_key("46"))


def test_on_a_new_connection(open_sql: Open, beyond: str) -> None:
    """It has not worked yet, so that nothing is repeated."""
    with pytest.raises(StoreError, match="max_allowed_packet"):
        start(open_sql(), data=beyond)


def test_escapes_count(sql: SqlBackend, limit: int) -> None:
    """The driver writes a quote as two characters."""
    with pytest.raises(StoreError, match="max_allowed_packet"):
        start(sql, data="'" * (limit // 2 + 1))


def test_dead_letter_is_kept_without_its_message(sql: SqlBackend, beyond: str) -> None:
    kept = dead_letter()
    add_dead_letter(sql, kept._replace(payload=beyond))

    stored = sql.dead.get(kept.id)
    assert stored is not None
    assert stored.payload == '{"unreadable":"the store refused it: StoreError"}'


def test_large_statement_whose_connection_is_lost_is_unavailable(
    sql: SqlBackend, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would have fitted."""
    for server_is_back in (True, False):
        with monkeypatch.context() as patch:
            sql.database.connections.close_idle()
            patch.setattr(sql.database.connections, "open", _losing(sql))
            if not server_is_back:
                patch.setattr(sql.database.engine, "connect", _refusing(sql))
            with pytest.raises(StoreUnavailable):
                start(sql, data="x" * (limit // 2))


def _losing(sql: SqlBackend) -> Callable[[], Any]:
    """Return connections that are lost when their first statement is run."""
    open_one = sql.database.connections.open

    def open_and_lose() -> Any:
        opened = open_one()
        opened.driver_connection._sock.shutdown(socket.SHUT_RDWR)
        return opened

    return open_and_lose


def _refusing(sql: SqlBackend) -> Callable[[], Any]:
    def connect() -> Any:
        raise OperationalError("", {}, sql.database.driver.OperationalError(2003, "Can't connect to MySQL server"))

    return connect
