"""Pages of dead letters begin in the index where the page before has ended."""

import re
from collections.abc import Mapping

from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.stores.sql.connection.bulk import insert_rows
from celery_sagas.stores.sql.dead_letters import _GIVEN, _list
from celery_sagas.stores.sql.tables import dead
from celery_sagas.testing.samples import dead_letter
from tests.stores.sql.watching import explained

_BOUNDED: Mapping[str, str] = {
    "postgresql": r"index scan backward using saga_dead_at .*index cond: .* and \(at <= ",
    "mysql": r"'saga_dead', 'range', .*'saga_dead_at', '\d+', none",
    "sqlite": r"saga_dead using index saga_dead_at \(prefix=\? and at>?<\?\)",
}


def test_page_begins_where_the_one_before_has_ended(own: SqlBackend) -> None:
    letters = [dead_letter(f"{number:05}")._replace(at=number) for number in range(1, 3_001)]
    rows = [{name: getattr(each, name) for name in (*_GIVEN, "at")} for each in letters]
    own.database.run(lambda session: insert_rows(session, dead, rows))
    with own.database.connect() as connection:
        connection.exec_driver_sql(f"ANALYZE {'TABLE ' if own.database.name == 'mysql' else ''}saga_dead").close()
    statement = own.database.statement(_list, (True,))
    plan = explained(own, statement.text, statement.bind({"limit": 50, "before": "00100"}), in_transaction=False).lower()
    assert re.search(_BOUNDED[own.database.name], plan), plan
