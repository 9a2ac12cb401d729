"""The tables of the release before get the layout of this one, while its workers go on."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from sqlalchemy import Connection, make_url

from celery_sagas.errors import ConfigurationError, StoreUnavailable
from celery_sagas.stores.records import Record
from celery_sagas.stores.sql import migration
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.stores.sql.expansion import Step
from celery_sagas.stores.sql.tables import LAYOUT
from celery_sagas.testing.samples import NAMES, by_key, by_tracking, complete, found, operate, start, update
from tests import servers
from tests.servers import unique
from tests.stores.sql import layout_5
from tests.stores.sql.conftest import DATABASES
from tests.stores.sql.test_prepare import made, run
from tests.waiting import PROGRAM_S, wait_until

PAID = ("status", "paid")
DONE = [
    "The column touched_in was added to saga_instance.",
    "The column tried_at was added to saga_outbox.",
    "The table saga_audit was created.",
    "The table saga_switch was created.",
    "The index saga_instance_seen was made.",
    "The index saga_outbox_tried was made.",
    "The index saga_audit_at was made.",
    "The index saga_audit_key was made.",
    f"The tables have the layout {LAYOUT.version} now.",
]

_MIGRATE_IN_FOUR_PROCESSES = """
import json
import os
import sys
from celery_sagas.stores.sql.backend import SqlBackend

trigger, opened = os.pipe()
answers, answering = os.pipe()
for number in range(4):
    if os.fork() == 0:
        os.close(opened)
        os.read(trigger, 1)  # until the parent has forked all of them, and closes it
        backend = SqlBackend(sys.argv[1], prefix="", options={"busy_timeout": 240})
        os.write(answering, json.dumps(backend.migrate()).encode() + b"\\n")
        os._exit(0)
os.close(opened)
os.close(answering)
assert [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(4)] == [0] * 4
with open(answers) as lines:
    print(json.dumps([sentence for line in lines for sentence in json.loads(line)]))
"""


@pytest.fixture(params=DATABASES)
def own_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without tables."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/own.sqlite3"
    else:
        with servers.database(request.param) as url:
            yield url


@pytest.fixture
def old(own_url: str) -> Iterator[SqlBackend]:
    """A backend on tables of the release before; its commits are those of that release, as long as they have no tags."""
    with closing(SqlBackend(own_url, prefix="")) as backend:
        layout_5.create(backend)
        yield backend


@pytest.fixture
def orders(old: SqlBackend) -> list[Record]:
    """Instances that it has committed."""
    kept = [start(old, str(number), keys=(("tracking", f"T{number}"),)) for number in range(3)]
    complete(old, start(old, "ended"))
    return [*kept[:2], update(old, kept[2])]


only_postgresql = pytest.mark.parametrize("own_url", ["postgresql"], indirect=True)
only_servers = pytest.mark.parametrize("own_url", ["postgresql", "mariadb"], indirect=True)


def assert_migrated(backend: SqlBackend, orders: list[Record]) -> None:
    """Everything is there, is listed, and goes on."""
    assert backend.prepare(create_schema=False, processes=1) == []
    glances = {glance.id: glance for glance in backend.instances.page(NAMES[0], 50).instances}
    assert glances.keys() == {order.id for order in orders}
    assert backend.instances.read(NAMES[0], [order.id for order in orders]) == orders
    assert found(backend, by_tracking("T0")) == found(backend, by_key("0"))
    order = update(backend, found(backend, by_key("1")), added_tags=(PAID,))
    assert [glance.id for glance in backend.instances.tagged(NAMES[0], PAID, 9).instances] == [order.id]
    made = operate(backend)
    assert [each.id for each in backend.audit.recent(9, "", NAMES, made.key).entries] == [made.id]
    assert backend.migrate() == []


def test_layout_before_is_refused_until_it_is_migrated(old: SqlBackend, orders: list[Record]) -> None:
    with pytest.raises(ConfigurationError, match=r"layout 5, .* Run `celery -A proj sagas migrate`, then start the workers"):
        old.prepare(create_schema=True, processes=1)
    assert old.migrate() == DONE
    assert_migrated(old, orders)


@pytest.mark.parametrize("oldest_first", [False, True])
def test_page_of_the_layout_before_says_what_to_do(old: SqlBackend, oldest_first: bool) -> None:
    """Processes that only look, or send, start without a look at the layout."""
    with pytest.raises(StoreUnavailable, match="the layout of an earlier release: run `celery -A proj sagas migrate`"):
        old.instances.page(NAMES[0], 9, oldest_first=oldest_first)


def test_migrated_tables_are_those_that_are_created(own_url: str, old: SqlBackend) -> None:
    old.migrate()
    with closing(SqlBackend(own_url, prefix="", options={"table_prefix": "new_"})) as new:
        new.prepare(create_schema=True, processes=1)
        for table in ("saga_instance", "saga_outbox", "saga_audit", "saga_switch"):
            assert made(new)[table] == made(old)[table]
        assert new.migrate() == []


def test_printed_statements_do_the_same(old: SqlBackend, orders: list[Record]) -> None:
    run(old, *(statement for statement in old.migration().split(";\n") if statement.strip()))
    assert_migrated(old, orders)


def test_layout_between_is_migrated_too(old: SqlBackend, orders: list[Record]) -> None:
    add_column, _, _, _, create_index, *_ = old.migration().split(";\n")
    run(old, add_column, create_index, "UPDATE saga_layout SET version = 6, oldest = 5")
    with pytest.raises(ConfigurationError, match=r"layout 6, .* Run `celery -A proj sagas migrate`"):
        old.prepare(create_schema=True, processes=1)
    assert old.migrate() == [*DONE[1:4], *DONE[5:]]
    assert_migrated(old, orders)


def test_printing_needs_no_server() -> None:
    for url in ("postgresql://me:s3cret@nowhere/shop", "mariadb://", "mysql://", "sqlite://"):
        with closing(SqlBackend(url, prefix="")) as backend:
            text = backend.migration()
        assert [text.count(word) for word in ("ALTER TABLE", "CREATE TABLE", "CREATE INDEX", "UPDATE saga_layout")] == [
            2,
            2,
            4,
            1,
        ]
        assert ("CONCURRENTLY" in text) == ("STORED" in text) == url.startswith("postgresql")


@pytest.mark.parametrize("number", range(len(DONE)))
@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
def test_killed_at_each_statement(
    own_url: str, old: SqlBackend, orders: list[Record], monkeypatch: pytest.MonkeyPatch, number: int, is_done: bool
) -> None:
    steps = list[Step]()

    def kill(connection: Connection, step: Step) -> None:
        steps.append(step)
        if len(steps) <= number or is_done:
            _run(connection, step)
        if len(steps) > number:
            connection.invalidate()
            raise KeyboardInterrupt

    _run = migration._run
    with monkeypatch.context() as patch:
        patch.setattr(migration, "_run", kill)
        with pytest.raises(KeyboardInterrupt):
            old.migrate()
    orders[0] = update(old, orders[0])
    with closing(SqlBackend(own_url, prefix="")) as another:
        another.migrate()
        assert_migrated(another, orders)


def test_four_at_once(own_url: str, old: SqlBackend, orders: list[Record]) -> None:
    """Each statement is run once."""
    command = [sys.executable, "-c", _MIGRATE_IN_FOUR_PROCESSES, own_url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S, check=False)
    assert json.loads(ended.stdout or "[]") == DONE, ended.stderr
    assert_migrated(old, orders)


@only_servers
def test_workers_commit_meanwhile(old: SqlBackend, orders: list[Record], monkeypatch: pytest.MonkeyPatch) -> None:
    def commit_first(connection: Connection, step: Step) -> None:
        orders[:] = [update(old, order) for order in orders]
        orders.append(start(old, f"at {len(orders)}"))
        _run(connection, step)

    _run = migration._run
    monkeypatch.setattr(migration, "_run", commit_first)
    assert old.migrate() == DONE
    assert len(orders) == 3 + len(DONE)
    assert_migrated(old, orders)


@only_servers
def test_statements_have_as_long_as_they_take(own_url: str, old: SqlBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever limit the user has: the making of an index may take longer."""
    is_postgresql = old.database.name == "postgresql"
    limit = {"options": "-c statement_timeout=60s"} if is_postgresql else {"init_command": "SET max_statement_time = 60"}
    shown = "SELECT current_setting('statement_timeout')" if is_postgresql else "SELECT @@max_statement_time"
    limits = list[str]()

    def look(connection: Connection, step: Step) -> None:
        limits.append(str(connection.exec_driver_sql(shown).scalar_one()))
        _run(connection, step)

    _run = migration._run
    monkeypatch.setattr(migration, "_run", look)
    limited = make_url(own_url).update_query_dict(limit).render_as_string(hide_password=False)
    with closing(SqlBackend(limited, prefix="")) as backend:
        with backend.database.connect() as connection:
            assert connection.exec_driver_sql(shown).scalar_one() in ("1min", 60)
        assert backend.migrate() == DONE
    assert limits == ["0" if is_postgresql else "0.0"] * len(DONE)


@only_servers
def test_table_that_others_have_locked(
    own_url: str, old: SqlBackend, orders: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is given back to the commits that wait, and tried again."""
    with closing(SqlBackend(own_url, prefix="")) as reader, ExitStack() as reading:
        connection = reading.enter_context(reader.database.connect())
        connection.exec_driver_sql("BEGIN")
        connection.exec_driver_sql("SELECT * FROM saga_instance").all()
        pauses = list[float]()

        def end(seconds: float) -> None:
            pauses.append(seconds)
            connection.exec_driver_sql("COMMIT")

        monkeypatch.setattr(migration.time, "sleep", end)
        assert old.migrate() == DONE
    assert pauses == [migration._PAUSE_S]
    assert_migrated(old, orders)


@only_servers
def test_table_that_others_do_not_give_back(own_url: str, old: SqlBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "_TRIES", 1)
    with closing(SqlBackend(own_url, prefix="")) as reader, reader.database.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        connection.exec_driver_sql("SELECT * FROM saga_instance").all()
        with pytest.raises(StoreUnavailable):
            old.migrate()
        connection.exec_driver_sql("COMMIT")
    assert old.migrate() == DONE


@only_postgresql
class TestIndexOfPostgresql:
    """It is made beside commits, and not in a transaction: an interruption leaves it, incomplete."""

    def test_interrupted_one_is_made_anew(self, old: SqlBackend, orders: list[Record]) -> None:
        run(old, old.migration().split(";\n")[0])
        with pytest.raises(StoreUnavailable):
            run(old, "CREATE UNIQUE INDEX CONCURRENTLY saga_instance_seen ON saga_instance (saga)")
        dropped = "The index saga_instance_seen was dropped: its making had been interrupted."
        assert old.migrate() == [*DONE[1:4], dropped, *DONE[4:]]
        assert_migrated(old, orders)

    def test_one_that_is_lost_later_is_made_anew(self, old: SqlBackend, orders: list[Record]) -> None:
        old.migrate()
        run(old, "DROP INDEX saga_instance_seen")
        assert old.migrate() == [DONE[4]]
        assert_migrated(old, orders)

    def test_one_that_the_server_still_makes(
        self, own_url: str, old: SqlBackend, orders: list[Record], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It waits for a transaction, as it does for a process that was killed."""
        add_column, _, _, _, create_index, *_ = old.migration().split(";\n")
        run(old, add_column)
        with closing(SqlBackend(own_url, prefix="")) as writer, writer.database.connect() as writing:
            writing.exec_driver_sql("BEGIN")
            writing.exec_driver_sql("UPDATE saga_instance SET locked_until = 0")
            making = Thread(target=run, args=(old, create_index))
            making.start()
            with old.database.connect() as looking:
                query = "SELECT 1 FROM pg_stat_progress_create_index WHERE relid = 'saga_instance'::regclass"
                wait_until(lambda: looking.exec_driver_sql(query).all(), "the index is being made")

            def end(seconds: float) -> None:
                writing.exec_driver_sql("COMMIT")
                making.join()

            monkeypatch.setattr(migration.time, "sleep", end)
            assert old.migrate() == [*DONE[1:4], *DONE[5:]]
        assert_migrated(old, orders)


class TestNames:
    """Tables in a schema of their own, and under names of their own."""

    @pytest.fixture
    def named(self, own_url: str) -> Iterator[SqlBackend]:
        schema = "" if own_url.startswith("sqlite") else unique("Orders")
        with closing(SqlBackend(own_url, prefix="", options={"schema": schema, "table_prefix": "Shop_"})) as backend:
            layout_5.create(backend)
            yield backend
            if backend.database.name == "mysql":
                run(backend, f"DROP SCHEMA `{schema}`")

    @pytest.fixture
    def migrate(self, named: SqlBackend, request: pytest.FixtureRequest) -> Callable[[], Any]:
        """Migrate with the statements that are printed, or with those that are run."""
        statements = [statement for statement in named.migration().split(";\n") if statement.strip()]
        return named.migrate if request.param == "run" else lambda: run(named, *statements)

    @pytest.mark.parametrize("migrate", ["run", "printed"], indirect=True)
    def test_only_these_are_migrated(self, own_url: str, named: SqlBackend, migrate: Callable[[], Any]) -> None:
        with closing(SqlBackend(own_url, prefix="")) as others:
            layout_5.create(others)
            order = start(named, "1", keys=(("tracking", "T0"),))
            orders = [order, start(named, "0")]
            migrate()
            with pytest.raises(ConfigurationError, match="sagas migrate"):
                others.prepare(create_schema=True, processes=1)
            assert named.migrate() == []
            assert {glance.id for glance in named.instances.page(NAMES[0], 9).instances} == {each.id for each in orders}
            named.prepare(create_schema=False, processes=1)


class TestRefusals:
    """Where nothing can be migrated."""

    def test_nothing_is_stored(self, own_url: str) -> None:
        with closing(SqlBackend(own_url, prefix="")) as backend:
            with pytest.raises(ConfigurationError, match=r"nothing is stored in .* yet"):
                backend.migrate()
            backend.prepare(create_schema=True, processes=1)
            assert backend.migrate() == []

    @pytest.mark.parametrize(
        ("layout", "remedy"), [((4, 4), "Use the release that made it"), ((99, 99), "Upgrade")], ids=["earlier", "later"]
    )
    def test_layout_from_which_no_way_leads_here(self, old: SqlBackend, layout: tuple[int, int], remedy: str) -> None:
        run(old, "UPDATE saga_layout SET version = {}, oldest = {}".format(*layout))
        with pytest.raises(ConfigurationError, match=remedy):
            old.migrate()

    def test_later_layout_with_which_this_code_can_live(self, old: SqlBackend) -> None:
        run(old, "UPDATE saga_layout SET version = 99")
        assert old.migrate() == []
        assert "touched_in" not in made(old)["saga_instance"]


def test_creation_that_the_release_before_has_begun(old: SqlBackend) -> None:
    """Without the layout's row it is completed, in the layout of this release."""
    run(old, "DELETE FROM saga_layout", "DROP TABLE saga_seen")
    old.prepare(create_schema=True, processes=1)
    start(old)
    assert len(old.instances.page(NAMES[0], 9).instances) == 1
    assert old.migrate() == []
