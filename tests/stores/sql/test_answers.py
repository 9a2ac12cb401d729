"""A server that is silent, and keeps its connections, holds nobody for ever."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from sqlalchemy import Executable, make_url, text

from celery_sagas.errors import ConfigurationError, StoreUnavailable
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.stores.sql.options import DEFAULTS
from celery_sagas.testing.samples import by_key, claim, found, outgoing, send, start
from tests.integration.proxy import Proxy
from tests.servers import unique

#: Seconds that each wait may take here, and that all of an operation's may.
ANSWER_S, OPERATION_S = 0.5, 8.0

pytestmark = pytest.mark.parametrize("url", ["postgresql", "mariadb"], indirect=True)


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    """What makes the server silent."""
    with closing(Proxy(url, 3306 if url.startswith("m") else 5432)) as proxy:
        yield proxy


@pytest.fixture
def backend(proxy: Proxy) -> Iterator[SqlBackend]:
    """A backend that has worked."""
    options = {"answer_timeout": ANSWER_S, "connect_timeout": 2}
    with closing(SqlBackend(proxy.url, prefix=unique(), options=options)) as backend:
        backend.prepare(create_schema=True, processes=1)
        start(backend)
        yield backend


def _assert_unavailable(backend: SqlBackend) -> float:
    """Assert that an operation gives up, and return after how long."""
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        claim(backend)
    return time.monotonic() - began


def test_operation_on_an_open_connection_gives_up_at_once(backend: SqlBackend, proxy: Proxy) -> None:
    """It is not repeated: a connection that was merely stale would have shown it earlier."""
    assert backend.database.connections.idle == 1
    proxy.silence()
    assert ANSWER_S <= _assert_unavailable(backend) < 3 * ANSWER_S
    assert (backend.database.connections.lent, backend.database.connections.idle) == (0, 0)


def test_operation_on_a_new_connection_gives_up(backend: SqlBackend, proxy: Proxy) -> None:
    proxy.silence()
    _assert_unavailable(backend)
    assert _assert_unavailable(backend) < OPERATION_S


def test_what_was_asked_in_vain_is_nobodys_answer(backend: SqlBackend, proxy: Proxy) -> None:
    send(backend, row := outgoing())
    proxy.silence()
    _assert_unavailable(backend)
    proxy.speak()  # the answer to the first claim comes, late
    assert found(backend, by_key()).version == 1
    assert {each.id for each in claim(backend)} <= {row.id}
    assert backend.outbox.count() == 1


def test_statement_that_takes_too_long_is_given_up(backend: SqlBackend) -> None:
    """A server that is busy with it is as silent."""
    seconds = 20 * ANSWER_S
    sleep = f"SELECT pg_sleep({seconds})" if backend.database.name == "postgresql" else f"SELECT SLEEP({seconds})"
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        backend.database.fetch(_statement(sleep), (), {})
    assert time.monotonic() - began < 3 * ANSWER_S
    assert found(backend, by_key()).version == 1


def _statement(sql: str) -> Callable[[], Executable]:
    def build() -> Executable:
        return text(sql)

    return build


def test_connection_is_made_with_arguments_that_can_be_overridden(url: str) -> None:
    parsed = make_url(url)
    name = "keepalives_idle" if parsed.get_backend_name() == "postgresql" else "read_timeout"
    by_query = parsed.update_query_dict({name: "7"}).render_as_string(hide_password=False)
    for given, options in ((url, {"connect_args": {name: 7}}), (by_query, {})):
        with closing(SqlBackend(given, prefix=unique(), options=options)) as backend:
            assert _argument(backend, name) == 7
    with closing(SqlBackend(url, prefix=unique())) as backend:
        assert _argument(backend, name) == {"keepalives_idle": 10, "read_timeout": DEFAULTS["answer_timeout"]}[name]


def _argument(backend: SqlBackend, name: str) -> int:
    opened = backend.database.connections.borrow()
    try:
        connection = opened.driver_connection
        if name == "read_timeout":
            return int(connection._read_timeout)
        return int(connection.info.get_parameters()[name])
    finally:
        backend.database.connections.give_back(opened)


@pytest.mark.parametrize("option", ["answer_timeout", "connect_timeout"])
@pytest.mark.parametrize("seconds", [0, -1])
def test_no_time_at_all_is_refused(url: str, option: str, seconds: float) -> None:
    with pytest.raises(ConfigurationError, match=option):
        SqlBackend(url, prefix=unique(), options={option: seconds})
