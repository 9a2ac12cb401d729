"""What a database says of its health."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from celery_sagas.errors import ConfigurationError, StoreUnavailable, UnsafeBackend
from celery_sagas.stores.health import Level, Subject
from celery_sagas.stores.sql import health
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.stores.sql.health import statistics_of
from celery_sagas.stores.sql.tables import LAYOUT
from tests import servers
from tests.servers import unique
from tests.stores.sql.conftest import DATABASES
from tests.stores.sql.test_prepare import run


@pytest.fixture
def sql(own: SqlBackend) -> SqlBackend:
    """A backend whose tables are there; what other tests have left in theirs is not looked at."""
    return own


def layouts(backend: SqlBackend) -> list[tuple[Level, str]]:
    """Return what is said of the layout."""
    return [(each.level, each.sentence) for each in backend.health() if each.subject is Subject.LAYOUT]


def test_database_that_is_well(sql: SqlBackend) -> None:
    assert [each for each in sql.health() if each.subject is not Subject.SAFETY] == []


class TestLayout:
    """Nothing is created."""

    @pytest.fixture(params=DATABASES)
    def empty(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqlBackend]:
        """A backend on a database without tables; SQLite's file is there."""
        if request.param == "sqlite":
            (tmp_path / "empty.sqlite3").touch()
            with closing(SqlBackend(f"sqlite:///{tmp_path}/empty.sqlite3", prefix="")) as backend:
                yield backend
            return
        with servers.database(request.param) as url, closing(SqlBackend(url, prefix="")) as backend:
            yield backend

    def test_tables_that_are_missing(self, empty: SqlBackend) -> None:
        expected = [(Level.FAIL, "nothing can be stored: the saga tables are missing")]
        assert layouts(empty) == expected
        assert layouts(empty) == expected

    @pytest.mark.parametrize(
        ("version", "oldest", "is_refused"),
        [(LAYOUT.version + 1, LAYOUT.version, False), (LAYOUT.version + 9, LAYOUT.version + 9, True), (1, 1, True)],
    )
    def test_layout_of_another_release(self, empty: SqlBackend, version: int, oldest: int, is_refused: bool) -> None:
        empty.prepare(create_schema=True, processes=1)
        run(empty, f"UPDATE saga_layout SET version = {version}, oldest = {oldest}")
        found = layouts(empty)
        assert bool(found) == is_refused
        assert all(sentence.startswith("workers do not start: the saga tables in ") for _, sentence in found)

    def test_layout_of_the_release_before(self, empty: SqlBackend) -> None:
        empty.prepare(create_schema=True, processes=1)
        run(empty, f"UPDATE saga_layout SET version = {LAYOUT.oldest}, oldest = {LAYOUT.oldest}")
        [remark] = [each for each in empty.health() if each.subject is Subject.LAYOUT]
        assert "celery -A proj sagas migrate" in remark.remedy

    def test_file_that_is_missing_is_not_made(self, tmp_path: Path) -> None:
        with closing(SqlBackend(f"sqlite:///{tmp_path}/none.sqlite3", prefix="")) as backend:
            assert layouts(backend) == [(Level.FAIL, "nothing is stored yet: the file does not exist")]
        assert list(tmp_path.iterdir()) == []

    def test_database_in_memory(self) -> None:
        with closing(SqlBackend("sqlite://", prefix="")) as backend:
            [remark] = backend.health()
        assert (remark.subject, remark.level) == (Subject.SAFETY, Level.WARN)


class TestSafety:
    """As ``prepare`` warns, or refuses."""

    @pytest.mark.parametrize(
        ("error", "sentence"),
        [
            (UnsafeBackend("it forgets", "Set it"), "it forgets"),
            (ConfigurationError("it is read-only", "Set it"), "workers do not start: it is read-only"),
        ],
    )
    def test_what_is_refused(
        self, sql: SqlBackend, monkeypatch: pytest.MonkeyPatch, error: ConfigurationError, sentence: str
    ) -> None:
        def refuse(*_: object) -> list[str]:
            raise error

        monkeypatch.setattr(health, "CHECKS", {sql.database.name: refuse})
        assert [(each.level, each.sentence, each.remedy) for each in sql.health()] == [(Level.FAIL, sentence, "Set it")]

    def test_warnings(self, sql: SqlBackend, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(health, "CHECKS", {sql.database.name: lambda *_: ["It may forget."]})
        assert [(each.subject, each.level, each.sentence) for each in sql.health()] == [
            (Subject.SAFETY, Level.WARN, "It may forget")
        ]

    def test_server_that_is_away(self) -> None:
        url = "postgresql://postgres:s3cret@127.0.0.1:1/shop"
        with closing(SqlBackend(url, prefix="")) as backend, pytest.raises(StoreUnavailable) as caught:
            backend.health()
        assert "s3cret" not in str(caught.value)


class TestTables:
    """PostgreSQL's statistics."""

    @pytest.mark.parametrize(
        ("counts", "has_updates", "said"),
        [
            ((0, 0, 0, 0), True, []),
            ((9_999, 0, 100, 9_999), True, []),
            ((10_000, 5_000, 40_000, 10_000), True, []),
            ((10_000, 4_900, 40_000, 10_000), True, ["only 49% of the updates of t touch no index"]),
            ((10_000, 4_900, 40_000, 10_000), False, []),
            ((0, 0, 30_000, 10_000), False, ["25% of the rows of t are dead"]),
            ((10_000, 0, 0, 10_000), True, ["only 0% of the updates", "100% of the rows of t are dead"]),
        ],
    )
    def test_what_follows(self, counts: Sequence[int], has_updates: bool, said: Sequence[str]) -> None:
        found = list(statistics_of("t", counts, has_updates=has_updates))
        assert [sentence.startswith(begin) for (_, _, sentence, _), begin in zip(found, said, strict=True)] == [True] * len(said)
        assert all(each.subject is Subject.TABLES and "ALTER TABLE t SET" in each.remedy for each in found)

    def test_they_are_read(self, postgresql_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of every table, also in a schema of its own."""
        monkeypatch.setattr(health, "_MANY", 0)
        monkeypatch.setattr(health, "_LEAST_HOT", 2.0)
        monkeypatch.setattr(health, "_MOST_DEAD", -1.0)
        seen: list[str] = []

        def note(table: str, counts: Sequence[int], *, has_updates: bool) -> list[object]:
            assert len(counts) == 4
            seen.append(f"{table} {has_updates}")
            return []

        monkeypatch.setattr(health, "statistics_of", note)
        options = {"schema": unique().replace("-", "_"), "table_prefix": "shop_"}
        with closing(SqlBackend(postgresql_url, prefix="", options=options)) as backend:
            backend.prepare(create_schema=True, processes=1)
            backend.health()
        assert f'"{options["schema"]}"."shop_saga_instance" True' in seen
        assert f'"{options["schema"]}"."shop_saga_outbox" False' in seen
