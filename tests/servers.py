"""Where the real servers of the tests are: a variable's URL, else the standard local port, else one of our own."""

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn
from urllib.parse import urlsplit

import kombu
import pytest
import redis
from redis import WatchError
from sqlalchemy import URL, Connection, create_engine, make_url, text
from sqlalchemy.pool import NullPool

from tests import embedded

#: seconds that a server may take to answer: a busy one takes its time, and one that is not there refuses at once
TIMEOUT = 30
#: Says that a Redis database is the tests', and holds the id of the connection that leases it.
LEASE = "celery-sagas:test-lease"


class Missing(Exception):
    """Raised when a server is neither configured nor found."""


class Unreachable(Exception):
    """Raised when the server that a variable names does not answer."""


@dataclass(frozen=True)
class Server:
    """A kind of server and how to find one."""

    name: str
    variable: str  #: the environment variable whose URL comes first
    local: str  #: the URL of the standard local port
    check: Callable[[str], None]  #: raises unless the URL takes a real connection
    start: str  #: how a person starts one
    fallback: Callable[[], str] | None = None  #: starts a server of our own

    def find(self) -> str:
        """Return the server's URL.

        Raises:
            Missing: there is none on this machine.
            Unreachable: the variable names one that does not answer.
        """
        if url := os.environ.get(self.variable):
            return self._configured(url)
        try:
            self.check(self.local)
        except Exception as exc:
            return self._fall_back(exc)
        return self.local

    def _configured(self, url: str) -> str:
        try:
            self.check(url)
        except Exception as exc:
            raise Unreachable(f"{self.name}: the server that {self.variable} names does not answer: {_first_line(exc)}") from exc
        return url

    def _fall_back(self, cause: Exception) -> str:
        reason = (
            f"no {self.name} on its standard local port ({_first_line(cause)}): start one ({self.start}), "
            f"or set {self.variable} to the URL of one"
        )
        if self.fallback is None:
            raise Missing(reason) from cause
        try:
            return self.fallback()
        except Exception as exc:
            raise Missing(f"{reason}; nor could one be started: {_first_line(exc)}") from exc


def check_sql(url: str) -> None:
    """Connect to a SQL server and run a statement on it."""
    with _connection(driven(url)) as connection:
        connection.execute(text("SELECT 1"))


def check_redis(url: str) -> None:
    """Connect to a Redis server and ping it."""
    with _redis(url) as client:
        client.ping()


def check_amqp(url: str) -> None:
    """Connect to an AMQP broker, its virtual host included."""
    with kombu.Connection(url, connect_timeout=TIMEOUT) as connection:
        connection.connect()


SERVERS = {
    server.name: server
    for server in (
        Server(
            name="postgresql",
            variable="CELERY_SAGAS_TEST_POSTGRESQL",
            local="postgresql://postgres@127.0.0.1:5432/postgres",
            check=check_sql,
            start="Debian: sudo apt-get install postgresql",
            fallback=embedded.start,
        ),
        Server(
            name="mariadb",
            variable="CELERY_SAGAS_TEST_MARIADB",
            local="mysql://root@127.0.0.1:3306/?ssl_disabled=true",  # else each connection loads every certificate there is
            check=check_sql,
            start="Debian: sudo apt-get install mariadb-server",
        ),
        Server(
            name="redis",
            variable="CELERY_SAGAS_TEST_REDIS",
            local="redis://127.0.0.1:6379/0",
            check=check_redis,
            start="Debian: sudo apt-get install redis-server",
        ),
        Server(
            name="rabbitmq",
            variable="CELERY_SAGAS_TEST_RABBITMQ",
            local="amqp://guest:guest@127.0.0.1:5672//",
            check=check_amqp,
            start="Debian: sudo apt-get install rabbitmq-server",
        ),
    )
}


@cache
def find(name: str) -> str | Missing | Unreachable:
    """Look for a server once in a test session."""
    try:
        return SERVERS[name].find()
    except (Missing, Unreachable) as exc:
        return exc


def require(name: str) -> str:
    """Return a server's URL; without one skip the test, or fail it where ``CI`` is true or the variable was set."""
    found = find(name)
    if isinstance(found, str):
        return found
    if isinstance(found, Unreachable):
        pytest.fail(str(found), pytrace=False)
    return absent(str(found))


def absent(reason: str) -> NoReturn:
    """Skip the test for want of a server, or fail it where ``CI`` is true."""
    if in_ci():
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def in_ci() -> bool:
    """Tell whether a missing server is a failure."""
    return os.environ.get("CI", "").lower() in {"1", "true", "yes"}


@contextmanager
def database(name: str) -> Iterator[str]:
    """Make a database of our own on the server ``name``, drop it at the end; two test runs never meet."""
    scratch = _redis_database if name == "redis" else _sql_database
    with scratch(require(name)) as url:
        yield url


def unique(stem: str = "celery_sagas_test") -> str:
    """Return a name that no other test run uses, for a database, a queue or a prefix."""
    return f"{stem}_{uuid.uuid4().hex[:12]}"


@contextmanager
def _sql_database(server: str) -> Iterator[str]:
    url = driven(server)
    name = unique()
    with _connection(url) as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    try:
        yield url.set(database=name).render_as_string(hide_password=False)
    finally:
        force = " WITH (FORCE)" if url.get_backend_name() == "postgresql" else ""
        with _connection(url) as connection:
            connection.execute(text(f"DROP DATABASE {name}{force}"))


@contextmanager
def _redis_database(server: str) -> Iterator[str]:
    """Lease one of the server's empty databases for as long as a connection lasts; the highest first: people use the lowest."""
    for number in range(15, 0, -1):
        url = urlsplit(server)._replace(path=f"/{number}").geturl()
        with _redis(url) as client:
            if _lease(client):
                try:
                    yield url
                finally:
                    client.flushdb()
                return
    pytest.fail("redis: each of the databases 1 to 15 is in use; empty one of them for the tests", pytrace=False)


def _lease(client: Any) -> bool:
    """Take a database that is empty, or that a test run left behind when it was killed: its connection is gone."""
    with client.pipeline(transaction=True) as atomically, suppress(WatchError):
        atomically.watch(LEASE)
        holder = atomically.get(LEASE)
        if atomically.dbsize() if holder is None else holder.decode() in {each["id"] for each in client.client_list()}:
            return False
        atomically.multi()
        atomically.flushdb().set(LEASE, client.client_id()).execute()
        return True
    return False


def driven(url: str) -> URL:
    """Name the driver that the library's extra installs, whatever SQLAlchemy's default is."""
    parsed = make_url(url.removeprefix("db+"))
    drivers = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql", "mariadb": "mariadb+pymysql"}
    return parsed.set(drivername=drivers.get(parsed.drivername, parsed.drivername))


@contextmanager
def _connection(url: URL) -> Iterator[Connection]:
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args={"connect_timeout": TIMEOUT})
    with engine.connect() as connection:
        yield connection


@contextmanager
def _redis(url: str) -> Iterator[Any]:
    client = redis.Redis.from_url(url, single_connection_client=True, socket_connect_timeout=TIMEOUT, socket_timeout=TIMEOUT)
    try:
        yield client
    finally:
        client.close()


def _first_line(exc: Exception) -> str:
    return next(iter(str(exc).splitlines()), type(exc).__name__)
