"""Rows that functions of users have written, in tables with the name of their deployment."""

from typing import Any

from sqlalchemy import create_engine, text

from tests.integration.conftest import Deploy
from tests.integration.deaths import VISIBILITY, has_ended
from tests.integration.ledgers import SOON
from tests.integration.worker import APPS, Deployment

#: Where a process may be told to die that writes rows in a transaction of the library's, whose commit comes after its own write.
POINTS = ("after insert", "before write", "after write", "after commit")


def deploy_rows(deploy: Deploy, app: str, engine: str, broker: str, **settings: Any) -> Deployment:
    """Deploy an app, and create its tables; on Redis with the transport that loses nothing when its worker is killed."""
    is_redis = broker.startswith("redis")
    visibility = {"broker_transport_options": VISIBILITY} if is_redis else {}
    deployment = deploy(app, broker, engine, **SOON, **visibility, **settings)
    if is_redis:
        deployment.settings["broker_read_url"] = f"sagas-{deployment.broker}"
    deployment.script(APPS / "creating.py", app)
    return deployment


def have_die(deployment: Deployment, where: str) -> None:
    """Have the next process die that comes there."""
    (deployment.folder / where).touch()


def has_died(deployment: Deployment, where: str, times: int) -> bool:
    """Return whether so many processes have died there."""
    died = [line.split(" ", 1) for line in deployment.noted("killed")]
    return sum(at == where and has_ended(pid) for pid, at in died) >= times


def numbers_in(deployment: Deployment, table: str) -> list[int]:
    """Return the numbers in a table, in order."""
    engine = create_engine(deployment.backend_url)
    try:
        with engine.connect() as connection:
            return list(connection.execute(text(f"SELECT number FROM {deployment.name}_{table} ORDER BY number")).scalars())
    finally:
        engine.dispose()
