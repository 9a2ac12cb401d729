"""The databases on which every SQL test runs."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from celery_sagas.stores.sql.backend import SqlBackend
from tests import folders, servers
from tests.servers import unique
from tests.stores import opening

DATABASES = ("sqlite", "postgresql", "mariadb")
#: Threads that write into one file of SQLite's take turns, however long that takes.
PATIENT: Mapping[str, object] = {"busy_timeout": 60}

Open = opening.Open[SqlBackend]


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    """A fresh PostgreSQL database whose commits do not wait for the disk: nobody here is about to crash the server."""
    with servers.database("postgresql") as url:
        engine = create_engine(url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(f"ALTER DATABASE {engine.url.database} SET synchronous_commit = off")
        engine.dispose()
        _make_tables(url)
        yield url


@pytest.fixture(scope="session")
def mariadb_url() -> Iterator[str]:
    """A fresh MariaDB database."""
    with servers.database("mariadb") as url:
        _make_tables(url)
        yield url


@pytest.fixture(scope="session")
def sqlite_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite database to be copied."""
    file = tmp_path_factory.mktemp("sqlite") / "sagas.sqlite3"
    _make_tables(f"sqlite:///{file}")
    return file


def _make_tables(url: str) -> None:
    """Make the tables once: to make them takes longer than most tests do, and so does to look for them."""
    with closing(SqlBackend(url, prefix="")) as backend:
        backend.prepare(create_schema=True, processes=1)


@pytest.fixture
def sqlite_folder(tmp_path: Path) -> Iterator[Path]:
    """Where SQLite's files are: its commits do not wait for a disk either."""
    with folders.in_memory(otherwise=tmp_path) as folder:
        yield folder


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, sqlite_folder: Path) -> str:
    """The URL of a database with tables, once for each kind."""
    if request.param == "sqlite":
        file = shutil.copy(request.getfixturevalue("sqlite_file"), sqlite_folder / "sagas.sqlite3")
        return f"sqlite:///{file}"
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture
def open_sql(url: str) -> Iterator[Open]:
    """Open backends that are closed when the test ends."""
    with opening.opening(SqlBackend, unique(), PATIENT) as open_one:
        yield partial(open_one, url)


@pytest.fixture
def sql(open_sql: Open) -> SqlBackend:
    """A backend that is ready."""
    return open_sql()


@pytest.fixture(params=DATABASES)
def own(request: pytest.FixtureRequest, sqlite_folder: Path) -> Iterator[SqlBackend]:
    """A backend on a database of its own, of whose tables nothing is known."""
    with ExitStack() as ending:
        is_file = request.param == "sqlite"
        url = f"sqlite:///{sqlite_folder}/own.sqlite3" if is_file else ending.enter_context(servers.database(request.param))
        backend = ending.enter_context(closing(SqlBackend(url, prefix="shop")))
        backend.prepare(create_schema=True, processes=1)
        yield backend
