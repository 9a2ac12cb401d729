"""Pages of instances cost what they return, however many there are, and whatever the database knows of its tables."""

import re
from collections.abc import Iterator, Mapping
from contextlib import closing

import pytest

from celery_sagas.stores.sql import instances
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.stores.sql.connection.bulk import insert_rows
from celery_sagas.stores.sql.connection.statements import Build, Shape, Values
from celery_sagas.stores.sql.sagas import renames
from celery_sagas.stores.sql.sagas.tags import beginning_of
from celery_sagas.stores.sql.tables import TAG, instance, key
from celery_sagas.testing.samples import HOUR, NAMES, change, conflict, effects, start, update
from tests.servers import unique
from tests.stores.sql.conftest import Open
from tests.stores.sql.watching import explained, observed

NAME, OTHER = NAMES
PAID, NEW = ("status", "paid"), ("status", "new")
#: Enough that it is worth it to take a few of them through an index.
ROWS = 3_000
#: The middle of them.
SLOT = 3_337_862

#: How often a plan of a page shows that a part begins where the page does.
_BOUNDED: Mapping[str, str] = {
    "postgresql": r"index cond: \(\(prefix = [^)]*\) and \(saga = [^)]*\) and \(touched_in [=<>]",
    "mysql": "'range', 'saga_instance_seen', 'saga_instance_seen', '(2311|1289)'",  # bytes of four columns, or of three
    "sqlite": r"using index saga_instance_seen \(prefix=\? and saga=\? and touched_in[=<>]",
}
#: The index of a tag's rows, from and to a value.
_BY_TAG: Mapping[str, str] = {
    "postgresql": r"using saga_key_pkey on saga_key .*index cond: \(\(value > .* and \(value < ",
    "mysql": "'saga_key', 'range', 'primary', 'primary'",
    "sqlite": r"index sqlite_autoindex_saga_key_1 \(value>\? and value<\?\)",
}


def fill(sql: SqlBackend) -> None:
    """Write instances of two sagas in turn, all with one tag."""
    ids = [f"{number:05}" for number in range(ROWS)]
    alike: Values = {"schema_version": 1, "version": 1, "data": "{}", "pending": "{}", "locked_by": "", "locked_until": 0}
    rows = [
        {**alike, "id": id, "key": id, "saga": NAMES[number % 2], "created_at": 0, "updated_at": (SLOT << 19) + number - 1500}
        for number, id in enumerate(ids)
    ]
    tags = [
        {
            "property": TAG,
            "value": f"{beginning_of(sql.database.prefix, NAMES[number % 2], PAID)}{id}",
            "saga": NAME,
            "instance_id": id,
        }
        for number, id in enumerate(ids)
    ]
    sql.database.run(lambda session: insert_rows(session, instance, rows))
    sql.database.run(lambda session: insert_rows(session, key, tags))


def analyse(sql: SqlBackend) -> None:
    """Have the database make its statistics."""
    with sql.database.connect() as connection:
        for table in (instance.name, key.name):
            connection.exec_driver_sql(f"ANALYZE {'TABLE ' if sql.database.name == 'mysql' else ''}{table}").close()


class TestPlans:
    """No statement reads more of an index than it returns."""

    @pytest.mark.parametrize("oldest_first", [False, True])
    def test_page(self, own: SqlBackend, oldest_first: bool) -> None:
        """Both of its parts begin where it does."""
        shape = (own.database.name, "saga_instance_seen", oldest_first)
        for plan in _plans(own, instances._page, shape, {"saga": NAME, "slot": SLOT, "id": "01500", "limit": 51}):
            assert len(re.findall(_BOUNDED[own.database.name], plan)) == 2, plan

    def test_page_of_a_tag(self, own: SqlBackend) -> None:
        values = {**own.instances._of_tag(NAME, PAID, "01500"), "limit": 51}
        for plan in _plans(own, instances._tagged, (own.database.name,), values):
            assert re.search(_BY_TAG[own.database.name], plan), plan
            assert re.search("saga_instance_pkey|'eq_ref', .*'primary'|sqlite_autoindex_saga_instance_1", plan), plan

    def test_count(self, own: SqlBackend) -> None:
        for plan in _plans(own, instances._count, (False, own.database.name), {"saga": NAME, "limit": 10_001}):
            assert re.search("using (index )?saga_instance_seen|'saga_instance_seen', .*using index", plan), plan
            assert not re.search("sort|temp b-tree", plan), plan

    def test_count_of_a_tag(self, own: SqlBackend) -> None:
        for plan in _plans(
            own, instances._count, (True, own.database.name), {**own.instances._of_tag(NAME, PAID), "limit": 10_001}
        ):
            assert re.search(_BY_TAG[own.database.name], plan), plan
            assert not re.search("sort|temp b-tree", plan), plan

    def test_next_instances_to_be_renamed(self, own: SqlBackend) -> None:
        """They are not sorted: the index of pages has all that are under the name, in another order."""
        for plan in _plans(own, renames._next, (), {"former": NAME, "after": "01500", "limit": 51}):
            assert "saga_instance_seen'," not in plan.replace("'primary,saga_instance_seen',", ""), plan
            assert "using index saga_instance_seen" not in plan, plan


class TestTags:
    """Rows of tags beside those of alternate keys."""

    def test_tag_that_is_there_already(self, sql: SqlBackend) -> None:
        """A worker of a release without tags may have changed the state, and left them."""
        order = update(sql, start(sql, tags=(NEW, PAID)), added_tags=(NEW, PAID))
        assert sql.instances.count(NAME, 9, PAID) == 1
        update(sql, order, removed_tags=(PAID,))
        assert sql.instances.count(NAME, 9, PAID) == 0

    def test_tag_that_is_there_under_a_dropped_name(self, sql: SqlBackend) -> None:
        order = update(sql, start(sql, names=(OTHER,)), added_tags=(PAID,))
        sql.sagas.update(order, change(added_tags=(PAID,))._replace(names=(OTHER,)), effects(order))
        assert len(sql.instances.tagged(OTHER, PAID, 9).instances) == 1

    def test_tags_of_one_saga_lie_apart_from_those_of_others(self, sql: SqlBackend, open_sql: Open) -> None:
        """A page of one reads no rows of theirs: not those of another saga, nor of another prefix."""
        bounds = [
            backend.instances._of_tag(name, PAID)
            for backend in (sql, open_sql(prefix=f"{sql.database.prefix} 2"))
            for name in NAMES
        ]
        assert len({bound["first"] for bound in bounds}) == 4

    def test_commit_without_tags_has_no_statement_more(self, sql: SqlBackend) -> None:
        with observed(sql) as plain:
            update(sql, start(sql, "1", keys=(("tracking", "T1"),)))
        with observed(sql) as tagged:
            update(sql, start(sql, "2", keys=(("tracking", "T2"),), tags=(NEW,)), added_tags=(PAID,), removed_tags=(NEW,))
        if sql.database.name == "postgresql":
            assert plain == tagged
        assert len(tagged) - len(plain) == (0 if sql.database.name == "postgresql" else 3)

    def test_change_of_tags_alone_that_is_locked(self, sql: SqlBackend) -> None:
        order = start(sql)
        sql.sagas.lock(order, "me", HOUR)
        with conflict("locked"):
            sql.sagas.update(order, change(added_tags=(PAID,)), effects(order))

    def test_instance_that_was_renamed_by_code_without_tags(self, sql: SqlBackend) -> None:
        """It is passed over under its new name; the pages go on."""
        id = unique()
        for number in range(3):
            start(sql, str(number), id=f"{id}{number}", names=(OTHER,), tags=(PAID,))
        sql.database.run(lambda session: session.execute(f"UPDATE saga_instance SET saga = '{NAME}' WHERE id = '{id}1'"))
        first = sql.instances.tagged(OTHER, PAID, 2)
        second = sql.instances.tagged(OTHER, PAID, 2, first.after)
        assert [[glance.key for glance in page.instances] for page in (first, second)] == [["2"], ["0"]]
        assert not second.after


@pytest.mark.parametrize("options", [{"table_prefix": "Shop_"}, {"schema": "Orders", "table_prefix": "Shop_"}], ids=str)
def test_pages_of_tables_with_other_names(own: SqlBackend, options: dict[str, str]) -> None:
    if own.database.name != "postgresql":
        options = {"table_prefix": "Shop_"}  # a schema would be a database beside the one of this test
    url = own.database.location.url.render_as_string(hide_password=False)
    with closing(SqlBackend(url, prefix="", options=options)) as backend:
        backend.prepare(create_schema=True, processes=1)
        order = start(backend, tags=(PAID,))
        (glance,) = backend.instances.page(NAME, 9).instances
        assert backend.instances.tagged(NAME, PAID, 9).instances == (glance,)
        assert backend.instances.read(NAME, [glance.id]) == [order]


def _plans(sql: SqlBackend, build: Build, shape: Shape, values: Values) -> Iterator[str]:
    """Yield how a statement is run: on empty tables, on full ones, and once the database has its statistics of them."""
    statement = sql.database.statement(build, shape)
    for prepare in (lambda _: None, fill, analyse):
        prepare(sql)
        yield explained(sql, statement.text, statement.bind(values), in_transaction=False).lower()
