"""A store that is away for long: what cannot be handled is redelivered later for longer and longer, and nothing of it is lost."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import embedded, redis_servers, servers
from tests.integration.conftest import Deploy
from tests.integration.ledgers import ENTER, SOON, Sent, assert_kept, enter, keep_busy
from tests.integration.proxy import Proxy
from tests.integration.redeliveries import PLACES, TIMEOUT_S, assert_no_spinning, wait_redelivered
from tests.integration.worker import Deployment

#: Messages that are sent before the store goes away, and while it is.
BEFORE, WHILE_AWAY = 300, 40


class Store(NamedTuple):
    """A database that goes away for the workers, and comes back."""

    url: str
    go: Callable[[], object]
    come_back: Callable[[], object]
    options: dict[str, Any] = {}


@pytest.fixture
def store(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A server of our own that is stopped, one behind a proxy that refuses connections, or a file that somebody else locks."""
    if engine == "mariadb":
        proxy: Proxy = request.getfixturevalue("proxied")(engine)
        yield Store(proxy.url, proxy.refuse, proxy.accept)
    else:
        with RUN[engine](tmp_path) as store:
            yield store


@contextmanager
def _sqlite(folder: Path) -> Iterator[Store]:
    path = folder / "sagas.sqlite3"
    with closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as rival:
        lock, unlock = partial(rival.execute, "BEGIN EXCLUSIVE"), partial(rival.execute, "ROLLBACK")
        yield Store(f"sqlite:///{path}", lock, unlock, {"busy_timeout": 0.1})


@contextmanager
def _postgresql(_: Path) -> Iterator[Store]:
    with embedded.running() if embedded.find() else servers.absent(embedded.ABSENT) as server:
        yield Store(server.url, server.stop, server.start)


@contextmanager
def _redis(_: Path) -> Iterator[Store]:
    with redis_servers.running(appendonly="yes", appendfsync="always") as server:
        yield Store(server.url, server.stop, server.start, {"retries": 0})  # each takes a part of a second


RUN = {"sqlite": _sqlite, "postgresql": _postgresql, "redis": _redis}


@pytest.mark.parametrize(("engine", "broker"), PLACES)
@pytest.mark.timeout(300 + TIMEOUT_S)
def test_messages_wait_for_their_store(deploy: Deploy, store: Store, engine: str, broker: str) -> None:
    """``StoreUnavailable`` under load."""
    deployment = deploy("chaos", broker, store.url, saga_backend_options=store.options, **SOON)
    began = time.monotonic()
    worker = deployment.start("prefork", 4).wait_ready()
    children = worker.children()
    sent = enter(deployment, range(BEFORE))
    _go_away_under_load(deployment, store, sent)
    sent |= (waiting := enter(deployment, range(len(sent), len(sent) + WHILE_AWAY)))
    wait_redelivered(worker, ENTER, set(waiting))
    store.come_back()
    assert_kept(deployment, sent)
    assert_no_spinning(worker, ENTER, time.monotonic() - began)
    assert worker.children() == children
    deployment.wait_idle(worker)
    assert worker.stop() == 0
    assert deployment.queued() == 0  # nor did it hold anything back


@pytest.mark.parametrize(("engine", "end"), [("postgresql", "kill"), ("redis", "stop")])
@pytest.mark.timeout(300 + TIMEOUT_S)
def test_messages_outlive_the_worker_that_has_put_them_off(deploy: Deploy, store: Store, end: str) -> None:
    """It ends while the store is away: what it held until it is due goes back to the broker."""
    deployment = deploy("chaos", "rabbitmq", store.url, saga_backend_options=store.options, **SOON)
    worker = deployment.start("prefork", 4).wait_ready()
    sent = enter(deployment, range(BEFORE))
    _go_away_under_load(deployment, store, sent)
    sent |= (waiting := enter(deployment, range(len(sent), len(sent) + WHILE_AWAY)))
    wait_redelivered(worker, ENTER, set(waiting), times=1)
    getattr(worker, end)()
    store.come_back()
    deployment.start("prefork", 4)
    assert_kept(deployment, sent)


def _go_away_under_load(deployment: Deployment, store: Store, sent: Sent) -> None:
    deployment.wait_handled(ENTER, BEFORE // 12)
    keep_busy(deployment, sent)
    store.go()
