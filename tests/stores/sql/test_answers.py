"""A server that is silent, and keeps its connections, holds nobody indefinitely."""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from sqlalchemy import Executable, make_url, text

from celery_sagas.errors import ConfigurationError, StoreUnavailable
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.stores.sql.connection import answers
from celery_sagas.stores.sql.connection.options import DEFAULTS
from celery_sagas.testing.samples import by_key, claim, found, outgoing, send, start
from tests.integration.proxy import Proxy
from tests.servers import unique
from tests.stores.sql.watching import OpenConnections
from tests.waiting import DEADLINE_S, wait_until

T = TypeVar("T")

#: Seconds that each wait may take here: in vain wherever the server is silent, and perhaps where it is only slow.
ANSWER_S = 0.5

servers = pytest.mark.parametrize("url", ["postgresql", "mariadb"], indirect=True)


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    """What makes the server silent."""
    with closing(Proxy(url, 3306 if url.startswith("m") else 5432)) as proxy:
        yield proxy


@pytest.fixture
def prefix(url: str) -> str:
    """A prefix under which there is an instance and a row that is due."""
    prefix = unique()
    with closing(SqlBackend(url, prefix=prefix)) as patient:
        start(patient)
        send(patient, outgoing())
    return prefix


@pytest.fixture
def backend(proxy: Proxy, prefix: str) -> Iterator[SqlBackend]:
    """A backend that has worked."""
    options = {"answer_timeout": ANSWER_S, "connect_timeout": 2}
    with closing(SqlBackend(proxy.url, prefix=prefix, options=options)) as backend:
        _in_the_end(lambda: found(backend, by_key()))
        yield backend


def _in_the_end(operation: Callable[[], T]) -> T:
    """Return what an operation returns once the server has answered in time, which a busy one may not at first."""
    results: list[T] = []

    def has_result() -> bool:
        try:
            results.append(operation())
        except StoreUnavailable:
            return False
        return True

    wait_until(has_result, "an answer in time")
    return results[0]


def _assert_unavailable(backend: SqlBackend) -> None:
    """Assert that an operation gives up."""
    with pytest.raises(StoreUnavailable):
        claim(backend)


@servers
def test_operation_on_an_open_connection_gives_up_at_once(
    backend: SqlBackend, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not repeated: a connection that was merely stale would have shown it earlier."""
    attempt, attempts = backend.database._attempt, list[bool]()

    def note(work: Any, *, may_repeat: bool) -> Any:
        attempts.append(may_repeat)
        return attempt(work, may_repeat=may_repeat)

    monkeypatch.setattr(backend.database, "_attempt", note)
    assert backend.database.connections.idle == 1
    opened = OpenConnections(backend)
    proxy.silence()
    _assert_unavailable(backend)
    assert attempts == [True]
    assert opened.count == 0


@servers
def test_operation_on_a_new_connection_gives_up(backend: SqlBackend, proxy: Proxy) -> None:
    opened = OpenConnections(backend)
    proxy.silence()
    for _ in range(2):
        _assert_unavailable(backend)
    assert opened.count == 0


@servers
def test_what_was_asked_in_vain_is_nobodys_answer(backend: SqlBackend, proxy: Proxy) -> None:
    proxy.silence()
    _assert_unavailable(backend)
    proxy.speak()  # the answer to the first claim comes, late
    assert _in_the_end(lambda: found(backend, by_key())).version == 1
    assert len(_in_the_end(lambda: claim(backend))) <= 1
    assert _in_the_end(backend.outbox.count) == 1


@servers
def test_statement_that_takes_too_long_is_given_up(backend: SqlBackend) -> None:
    """A server that is busy with it is as silent."""
    function = "pg_sleep" if backend.database.name == "postgresql" else "SLEEP"
    with pytest.raises(StoreUnavailable):
        backend.database.fetch(_statement(f"SELECT {function}({DEADLINE_S})"), (), {})
    assert _in_the_end(lambda: found(backend, by_key())).version == 1


class TestLooks:
    """How PostgreSQL is found to be silent: psycopg looks again and again whether something has come."""

    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
        """The clock of the looks, in seconds."""
        clock = SimpleNamespace(now=1_000.0)
        monkeypatch.setattr(answers, "time", SimpleNamespace(monotonic=lambda: clock.now))
        return clock

    @pytest.fixture
    def looks(self, clock: SimpleNamespace) -> Generator[str, object, None]:
        """The looks at a server that may be silent for 30 seconds; the first is under way."""

        def ask() -> Generator[str, object, None]:
            while True:
                yield "answer"

        looks = answers._watched(ask(), 30, _time_out)
        assert next(looks) == "answer"
        return looks

    def test_silence_counts_from_what_came_last(self, looks: Generator[str, object, None], clock: SimpleNamespace) -> None:
        for ready in ("", "something", ""):
            clock.now += 29
            assert looks.send(ready) == "answer"
        clock.now += 2
        assert looks.send("") == "answer"
        with pytest.raises(TimeoutError):
            looks.send("")

    def test_what_came_while_this_process_was_held_up_is_taken(
        self, looks: Generator[str, object, None], clock: SimpleNamespace
    ) -> None:
        """The look that was under way then has found nothing; one more is taken."""
        clock.now += 3600
        assert looks.send("") == "answer"
        assert looks.send("something") == "answer"
        assert looks.send("") == "answer"


def _time_out() -> None:
    raise TimeoutError


def _statement(sql: str) -> Callable[[], Executable]:
    def build() -> Executable:
        return text(sql)

    return build


@servers
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
    opened = backend.database.connections.open()
    try:
        connection = opened.driver_connection
        if name == "read_timeout":
            return int(connection._read_timeout)
        return int(connection.info.get_parameters()[name])
    finally:
        opened.close()


@servers
@pytest.mark.parametrize("option", ["answer_timeout", "connect_timeout"])
@pytest.mark.parametrize("seconds", [0, -1])
def test_no_time_at_all_is_refused(url: str, option: str, seconds: float) -> None:
    with pytest.raises(ConfigurationError, match=option):
        SqlBackend(url, prefix=unique(), options={option: seconds})
