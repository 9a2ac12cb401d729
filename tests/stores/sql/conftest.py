"""The databases on which every SQL test runs."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Protocol

import pytest

from celery_sagas.stores.sql.backend import SqlBackend
from tests.servers import unique

DATABASES = ("sqlite", "postgresql", "mariadb")


class Open(Protocol):
    """Opens a backend on the test's database under the test's prefix; it is closed when the test ends."""

    def __call__(
        self,
        *,
        prefix: str | None = None,
        options: Mapping[str, object] | None = None,
        clock: Callable[[], int] | None = None,
    ) -> SqlBackend: ...


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database, once for each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/sagas.sqlite3"
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture
def open_sql(url: str) -> Iterator[Open]:
    """Open backends that are closed when the test ends."""
    own = unique()
    with ExitStack() as opened:

        def open_one(
            *,
            prefix: str | None = None,
            options: Mapping[str, object] | None = None,
            clock: Callable[[], int] | None = None,
        ) -> SqlBackend:
            backend = SqlBackend(url, prefix=own if prefix is None else prefix, options=options, clock=clock)
            return opened.enter_context(closing(backend))

        yield open_one


@pytest.fixture
def sql(open_sql: Open) -> SqlBackend:
    """A backend that is ready."""
    backend = open_sql()
    backend.prepare(create_schema=True, processes=1)
    return backend
