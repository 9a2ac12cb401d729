"""Deployments for the tests: real brokers, real databases, real workers."""

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kombu import pools

from tests import folders
from tests.integration.matrices import ENGINES
from tests.integration.proxy import Proxy
from tests.integration.worker import Deployment

__all__ = ["ENGINES"]

#: Over how many hash tags instances are spread in a Redis Cluster.
SHARDS = 8

Deploy = Callable[..., Deployment]


_MADE = pytest.StashKey[list[Deployment]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the workers of a test do that has failed, its time limit included."""
    report = yield
    if report.when != "teardown" and report.failed:
        report.sections += [("workers", _stacks(deployment)) for deployment in item.stash.get(_MADE, [])]
    return report


def _stacks(deployment: Deployment) -> str:
    try:
        return deployment.stacks()
    except Exception as exc:  # the test's own failure is what matters
        return f"no stacks: {exc!r}"


@pytest.fixture
def deployments_folder(tmp_path: Path) -> Iterator[Path]:
    """Make a folder for what deployments keep, such as SQLite's files."""
    with folders.in_memory(otherwise=tmp_path) as folder:  # processes are killed here, and no machine
        yield folder


@pytest.fixture
def deploy(request: pytest.FixtureRequest, deployments_folder: Path) -> Iterator[Deploy]:
    """Return a function that makes a deployment on a broker and a backend, each given by name or by URL."""
    request.node.stash[_MADE] = made = list[Deployment]()

    def make(app: str, broker: str, backend: str, **settings: Any) -> Deployment:
        (folder := deployments_folder / f"deployment-{len(made)}").mkdir()
        url = _backend(request, backend, folder / "sagas.sqlite3")
        deployment = Deployment(_broker(request, broker), url, folder, app, settings)
        made.append(deployment)
        return deployment

    yield make
    with ExitStack() as closing:  # all of them, also if one cannot be closed
        closing.callback(pools.reset)  # their clients leave connections to the next app of this process
        for deployment in made:
            closing.callback(deployment.close)
    del request.node.stash[_MADE]


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


def _backend(request: pytest.FixtureRequest, name: str, file: Path) -> str:
    if "://" in name:
        return name
    if name == "sqlite":
        return f"sqlite:///{file}"
    url = str(request.getfixturevalue(f"{name}_url"))
    return f"{url}?shards={SHARDS}" if name == "redis_cluster" else url
