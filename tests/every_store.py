"""Apps whose sagas and items are kept in each kind of store."""

from pathlib import Path

import pytest
from celery import Celery

from celery_sagas.worker.runtime import runtime_of
from tests.apps import NewApp
from tests.servers import unique

__all__ = ["DATABASES", "STORES", "stored_app", "url"]

DATABASES = ("sqlite", "postgresql", "mariadb")
STORES = ("memory", *DATABASES, "redis", "redis_cluster")


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of each kind of store."""
    own = {"memory": f"memory://{unique()}", "sqlite": f"sqlite:///{tmp_path}/sagas.sqlite3"}
    return own.get(request.param) or str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def stored_app(new_app: NewApp, url: str) -> Celery:
    """An app whose sagas are kept there, under a prefix of its own."""
    app = new_app(saga_prefix=unique())
    app.conf.saga_backend = url
    runtime_of(app).prepare(processes=1)
    return app
