"""Deployments for the tests: real brokers, real databases, real workers."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.proxy import Proxy
from tests.integration.worker import Deployment

#: The engines on which a promise must hold, each with transactions of its own kind.
ENGINES = ("sqlite", "postgresql", "mariadb")

Deploy = Callable[..., Deployment]


@pytest.fixture
def deploy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deploy]:
    """Return a function that makes a deployment on a broker and a backend, each given by name or by URL."""
    made: list[Deployment] = []

    def make(app: str, broker: str, backend: str, **settings: Any) -> Deployment:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        deployment = Deployment(_broker(request, broker), _backend(request, backend, folder), folder, app, settings)
        made.append(deployment)
        return deployment

    yield make
    for deployment in made:
        deployment.close()


@pytest.fixture
def proxied(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Proxy]]:
    """Return a function that puts a proxy before a server, given by name."""
    made: list[Proxy] = []

    def make(name: str) -> Proxy:
        proxy = Proxy(str(request.getfixturevalue(f"{name}_url")), _PORTS[name])
        made.append(proxy)
        return proxy

    yield make
    for proxy in made:
        proxy.close()


_PORTS = {"postgresql": 5432, "mariadb": 3306, "redis": 6379, "rabbitmq": 5672}


def _broker(request: pytest.FixtureRequest, name: str) -> str:
    if "://" in name:
        return name
    return "filesystem://" if name == "filesystem" else str(request.getfixturevalue(f"{name}_url"))


def _backend(request: pytest.FixtureRequest, name: str, folder: Path) -> str:
    if "://" in name:
        return name
    return f"sqlite:///{folder}/sagas.sqlite3" if name == "sqlite" else str(request.getfixturevalue(f"{name}_url"))
