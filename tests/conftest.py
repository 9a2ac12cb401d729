"""What every test may ask for: real servers, each with a database of its own for this test session."""

import gc
import os
import signal
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests import matrices, redis_servers, servers

# Modules that assert for the tests: one that fails shows the values that it compared.
pytest.register_assert_rewrite("tests.apps", "tests.benchmarks", "tests.integration")

# A busy machine may take long over any example: that says nothing about what is tested.
settings.register_profile("unhurried", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


#: What gives a test a server, or something that plays one.
SERVERS = frozenset({*servers.SERVERS, "redis62", "redis_cluster", "fake_redis", "deploy"})
#: The folders whose tests start processes. What is still to do when most of the rest is done had better be short.
LONGEST = frozenset({"integration", "example_project"})


def pytest_configure(config: pytest.Config) -> None:
    """Let what is started here be interrupted: a shell has commands in its background ignore that, and these their children.

    Under xdist find servers once, before the workers start: they inherit the variables, and share a server that is our own.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", matrices.IN_TURN)
    if getattr(config.option, "numprocesses", None) and config.option.markexpr != "not server":
        for name in ("postgresql", "redis"):
            found = servers.find(name)
            if isinstance(found, str):
                os.environ[servers.SERVERS[name].variable] = found


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    """Leave out whose turn it is not; mark the tests that ask for a server, by a fixture or a parameter; have long ones first.

    Of those that are wanted in the end, by their marks and names, leave out more where each is run with a few parameters only.
    """
    _leave_out(config, items, set(matrices.left_out(items)))
    items.sort(key=lambda item: LONGEST.isdisjoint(item.path.parts))
    for item in items:
        if isinstance(item, pytest.Function) and not SERVERS.isdisjoint(_asked_for(item)):
            item.add_marker("server")
    yield
    _leave_out(config, items, set(matrices.beyond_a_few(items)))


def _leave_out(config: pytest.Config, items: list[pytest.Item], unwanted: set[pytest.Item]) -> None:
    if unwanted:
        config.hook.pytest_deselected(items=list(unwanted))
        items[:] = [item for item in items if item not in unwanted]


def pytest_collection_finish() -> None:
    """Have Python's collector of garbage look no more at what has been collected here, which stays until the end."""
    gc.collect()
    gc.freeze()


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Forget where errors were raised that are parameters: they would keep what each of their tests has made, and grow."""
    for value in item.callspec.params.values() if hasattr(item, "callspec") else ():
        if isinstance(value, BaseException):
            value.__traceback__ = value.__context__ = None


def _asked_for(item: pytest.Function) -> Iterator[str]:
    yield from (name.removesuffix("_url") for name in item.fixturenames)
    if hasattr(item, "callspec"):
        yield from (value for name, value in item.callspec.params.items() if name.endswith("url") and isinstance(value, str))


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    """A fresh PostgreSQL database."""
    with servers.database("postgresql") as url:
        yield url


@pytest.fixture(scope="session")
def mariadb_url() -> Iterator[str]:
    """A fresh MariaDB database."""
    with servers.database("mariadb") as url:
        yield url


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A Redis database that nobody else uses."""
    with servers.database("redis") as url:
        yield url


@pytest.fixture(scope="session")
def redis_cluster_url() -> Iterator[str]:
    """A Redis Cluster of three masters, of our own, empty."""
    with redis_servers.cluster() as nodes:
        yield "redis+cluster://" + ",".join(f"{redis_servers.HOST}:{node.port}" for node in nodes)


@pytest.fixture(scope="session")
def rabbitmq_url() -> str:
    """A RabbitMQ broker, shared with others: name queues, exchanges and workers with ``servers.unique``."""
    return servers.require("rabbitmq")
