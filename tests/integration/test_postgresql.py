"""PostgreSQL behind PgBouncer, and roles whose defaults are not the server's."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from sqlalchemy import NullPool, create_engine, make_url, text

from celery_sagas.stores.urls import open_backend
from tests import pgbouncer, servers
from tests.integration.conftest import Deploy
from tests.integration.counting import ADD_AND_TELL, TOLD, assert_conserved, increments, send_all

MakeRole = Callable[..., str]


@pytest.fixture
def make_role(postgresql_url: str) -> Iterator[MakeRole]:
    """Return a function that makes a role with these defaults; it returns the URL of the database, as that role."""
    with ExitStack() as made:
        engine = create_engine(servers.driven(postgresql_url), poolclass=NullPool, isolation_level="AUTOCOMMIT")
        connection = made.enter_context(engine.connect())

        def make(**defaults: str) -> str:
            role = servers.unique("role")
            connection.exec_driver_sql(f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD 'role'")
            made.callback(connection.exec_driver_sql, f"DROP ROLE {role}")
            made.callback(connection.exec_driver_sql, f"REASSIGN OWNED BY {role} TO CURRENT_USER")
            for name, value in defaults.items():
                connection.exec_driver_sql(f"ALTER ROLE {role} SET {name} = '{value}'")
            url = make_url(postgresql_url).set(username=role, password="role")
            return url.render_as_string(hide_password=False)

        yield make


def test_workers_of_a_serializable_role_start_at_once_and_lose_nothing(deploy: Deploy, make_role: MakeRole) -> None:
    """Each connection reads what others have committed: to be refused for that would be worth nothing."""
    url = make_role(default_transaction_isolation="serializable")
    deployment = deploy("counters", "redis", url)
    workers = [deployment.start("prefork", 2) for _ in range(3)]
    for worker in workers:
        worker.wait_ready()
    wanted = increments(120, counters=5)
    send_all(deployment, ADD_AND_TELL, wanted)
    assert_conserved(deployment, wanted)
    assert deployment.backend.dead.count() == 0
    assert not any("could not serialize" in worker.log for worker in workers)


def test_message_is_redelivered_later_if_a_statement_takes_longer_than_the_role_may(
    deploy: Deploy, make_role: MakeRole, postgresql_url: str
) -> None:
    """It is handled once the statement is quick enough."""
    deployment = deploy("counters", "redis", postgresql_url)
    url = make_url(make_role())
    deployment.settings["saga_backend"] = url.render_as_string(hide_password=False)
    worker = deployment.start("prefork", 1).wait_ready()
    with create_engine(servers.driven(postgresql_url), poolclass=NullPool).connect() as rival:
        # only now, and for none but the worker: on a busy machine a statement may take as long that has nothing to wait for
        rival.execute(text(f"ALTER ROLE {url.username} SET statement_timeout = '500ms'"))
        rival.commit()
        wanted = [("a", 1), ("a", 2)]
        send_all(deployment, ADD_AND_TELL, wanted[:1])
        deployment.wait_handled(TOLD, 1)
        rival.execute(text("SELECT 1 FROM saga_instance WHERE prefix = :prefix FOR UPDATE"), {"prefix": deployment.name}).all()
        send_all(deployment, ADD_AND_TELL, wanted[1:])
        worker.wait_logged("canceling statement due to statement timeout")
        worker.wait_logged("is redelivered in")
    assert_conserved(deployment, wanted)
    assert deployment.backend.dead.count() == 0


def test_a_pooler_gives_other_programs_what_their_role_wants(make_role: MakeRole) -> None:
    """They have the library's connections next."""
    with pgbouncer.running(make_role(default_transaction_isolation="serializable")) as server:
        backend = open_backend(server.url, prefix=servers.unique("pooled"), options={})
        backend.prepare(create_schema=True, processes=1)
        assert backend.dead.count() == 0
        # each statement is a transaction, so that each may be on another connection to the server
        engine = create_engine(servers.driven(server.url), poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as other:
            seen = {other.execute(text("SHOW transaction_isolation")).scalar_one() for _ in range(10)}
        backend.close()
    assert seen == {"serializable"}


def test_a_pooler_that_lends_each_transaction_another_connection(deploy: Deploy, postgresql_url: str) -> None:
    """No option is needed: what was prepared on one connection would be missing, or be something else, on the next."""
    with pgbouncer.running(postgresql_url) as server:
        deployment = deploy("counters", "redis", server.url)
        workers = [deployment.start("prefork", 4) for _ in range(2)]
        for worker in workers:
            worker.wait_ready()
        wanted = increments(100, counters=10)
        send_all(deployment, ADD_AND_TELL, wanted)
        assert_conserved(deployment, wanted)
        assert not any("prepared statement" in worker.log for worker in workers)
