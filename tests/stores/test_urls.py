"""Which adapter serves a backend's URL."""

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from celery_sagas.errors import ConfigurationError
from celery_sagas.stores import urls
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.redis.backend import RedisBackend
from celery_sagas.stores.redis.client import Client
from celery_sagas.stores.redis.cluster import ClusterClient
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.stores.urls import open_backend
from celery_sagas.testing.clock import Clock


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("postgresql://me@host/shop", "postgresql+psycopg"),
        ("db+postgresql://me@host/shop", "postgresql+psycopg"),
        ("postgresql+psycopg://me@host/shop", "postgresql+psycopg"),
        ("mysql://me@host/shop", "mysql+pymysql"),
        ("mariadb://me@host/shop", "mysql+pymysql"),
        ("mysql+pymysql://me@host/shop", "mysql+pymysql"),
        ("sqlite:///shop.sqlite3", "sqlite+pysqlite"),
        ("db+sqlite://", "sqlite+pysqlite"),
    ],
)
def test_sql_uses_the_driver_of_its_extra(url: str, driver: str) -> None:
    backend = open_backend(url, prefix="", options={"pool_size": 1})
    assert isinstance(backend, SqlBackend)
    assert backend.database.location.url.drivername == driver
    assert backend.url == url.removeprefix("db+")
    backend.close()


@pytest.mark.parametrize(
    ("url", "options", "kind"),
    [
        ("redis://me:s3cret@host:6380/2", {}, Client),
        ("rediss://me:s3cret@host", {}, Client),
        ("unix://me:s3cret@/run/redis.sock?db=2", {}, Client),
        ("redis+socket:///run/redis.sock?virtual_host=2", {}, Client),
        ("sentinel://:s3cret@one:26379/0;sentinel://:s3cret@two:26379", {"master_name": "shop"}, Client),
        ("redis+cluster://me:s3cret@one:7000,two:7001", {"shards": 16}, ClusterClient),
        ("rediss+cluster://me:s3cret@one:7000", {}, ClusterClient),
    ],
)
def test_redis(url: str, options: dict[str, Any], kind: type[Client]) -> None:
    backend = open_backend(url, prefix="", options=options)
    assert isinstance(backend, RedisBackend)
    assert type(backend.client) is kind
    assert backend.url == url.replace("s3cret", "***")
    backend.close()


def test_memory() -> None:
    assert isinstance(open_backend("memory://", prefix="", options={}, clock=Clock()), MemoryBackend)


@pytest.mark.parametrize("url", ["mongodb://me:s3cret@host/shop", "db+oracle://me:s3cret@host/shop", "s3cret"])
def test_unknown_scheme_is_refused_with_the_known_ones(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"postgresql://|scheme://") as caught:
        open_backend(url, prefix="", options={})
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("url", ["postgresql+psycopg2://me@host/shop", "mysql+aiomysql://me@host/shop"])
def test_unsupported_driver_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="Begin the URL with"):
        open_backend(url, prefix="", options={})


@pytest.mark.parametrize(
    ("url", "driver", "extra"),
    [
        ("postgresql://host/shop", "psycopg", "postgresql"),
        ("mariadb://host/shop", "pymysql", "mysql"),
        ("redis+cluster://host", "redis", "redis"),
    ],
)
def test_missing_driver_names_its_extra(monkeypatch: pytest.MonkeyPatch, url: str, driver: str, extra: str) -> None:
    monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(ConfigurationError, match=rf'pip install "celery-sagas\[{extra}\]"'):
        open_backend(url, prefix="", options={})


def test_other_packages_add_schemes(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints([EntryPoint("shelf", f"{__name__}:open_shelf", urls.ENTRY_POINTS)])
    monkeypatch.setattr(urls, "entry_points", lambda group: points.select(group=group))
    monkeypatch.setitem(sys.modules, __name__, sys.modules[open_shelf.__module__])
    assert isinstance(open_backend("shelf://here", prefix="p", options={"a": 1}), MemoryBackend)
    with pytest.raises(ConfigurationError, match="shelf://"):
        open_backend("drawer://here", prefix="p", options={})


def open_shelf(url: str, *, prefix: str, options: Any, clock: Callable[[], int] | None) -> MemoryBackend:
    """What another package would provide."""
    assert (url, prefix, options) == ("shelf://here", "p", {"a": 1})
    return MemoryBackend("memory://", prefix=prefix, clock=clock)


def test_nothing_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys, celery_sagas.stores.urls as urls\n"
        "drivers = {'sqlalchemy', 'psycopg', 'pymysql', 'redis'}\n"
        "urls.open_backend('memory://', prefix='', options={})\n"
        "assert not drivers & set(sys.modules), drivers & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
