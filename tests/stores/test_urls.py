"""Which adapter serves a backend's URL."""

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from celery_sagas.errors import ConfigurationError
from celery_sagas.stores import urls
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.redis.backend import RedisBackend
from celery_sagas.stores.redis.connection.client import Client
from celery_sagas.stores.redis.connection.cluster import ClusterClient
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.stores.urls import open_backend, register_backend
from celery_sagas.testing.clock import Clock
from tests.servers import unique


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
    backend = open_backend(url, prefix="", options={"pool_recycle": 1})
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
        ("sentinel://:s3cret@one:26379/0;sentinel://two:26379", {"master_name": "shop"}, Client),
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


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("postgresql://me@host/shop?sslpassword=s3cret", "has sslpassword in its query"),
        ("db+postgresql://host/shop?user=me&password=s3cret", "has password in its query"),
        ("mysql://host/shop?passwd=s3cret&charset=utf8mb4", "has passwd in its query"),
        ("postgresql://host/shop?Access%5FToken=s3cret&pwd=", "has Access_Token, pwd in its query"),
        ("redis://host/0?password=s3cret%40x", "has password in its query"),
        ("rediss://host?ssl_password=s3cret", "has ssl_password in its query"),
        ("unix:///run/redis.sock?db=1&password=s3cret", "has password in its query"),
        ("sentinel://one?db=1;sentinel://two?password=s3cret", "has password in its query"),
        ("mongodb://host/shop?secret=s3cret", "has secret in its query"),
        ("own://host/shop?api_key=s3cret&ApiKey=s3cret", "has api_key, ApiKey in its query"),
        ("own://host/shop?access_key=s3cret&accessKeyId=1", "has access_key in its query"),
        ("own://host/shop?credentials=s3cret&signature=s3cret&auth=s3cret", "has credentials, signature, auth in its query"),
        ("own://host/shop?a=1?token=s3cret", "has token in its query"),
        ("own://host/shop#token=s3cret", "has token in its query"),
        ("own://host/shop?a=1#b?token=s3cret", "has token in its query"),
        ("sentinel://:s3cret@one;sentinel://:s3cret@two", "Write them into the first"),
        ("redis+cluster://one;redis+cluster://me:s3cret@two:7000", "Write them into the first"),
        ("postgresql://me:x/s3cret@host/shop", "%-escaped"),
        ("postgresql://me:x?password=s3cret@host/shop", "%-escaped"),
        ("mysql://me:x#s3cret@host/shop", "%-escaped"),
        ("redis://:x?s3cret@host", "%-escaped"),
        ("postgresql://me:12/s3cret@host/shop", "%-escaped"),
        ("postgresql://me:12/s3cret@host/shop?application_name=me", "%-escaped"),
        ("postgresql://me:12?s3cret@host/shop", "%-escaped"),
        ("postgresql://me:12#s3cret@host/shop", "%-escaped"),
        ("postgresql://me:123456?a=s3cret@host/shop", "%-escaped"),
        ("postgresql://me:12x?a=s3cret@host/shop", "%-escaped"),
        ("redis://:12?a=s3cret@host", "%-escaped"),
        ("own.backends:Shelf+shelf://me:s3cret@host/shop", "import path and a password"),
        (
            "own://host/shop?key_pass=s3cret&dbpass=s3cret&pass1=s3cret&passphrase=s3cret&standbypassword=s3cret",
            "has key_pass, dbpass, pass1, passphrase, standbypassword in its query",
        ),
    ],
)
def test_url_whose_secret_celery_would_show_is_refused(url: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text) as caught:
        open_backend(url, prefix="", options={})
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:p%2Fss@host/shop?passfile=/etc/pgpass&application_name=me@host",
        "postgresql://me@host/shop?require_auth=scram-sha-256",
        "postgresql://host:5432/shop?application_name=worker@host",
        "postgresql://host:5432?application_name=worker@host",
        "postgresql://[::1]:5432/shop?application_name=worker@host",
        "redis://localhost:6379/0?client_name=a@b",
        "redis+cluster://one:7000,two:7001/0?client_name=a@b",
        "mysql://host:3306/shop?unix_socket=/run/a@b",
        "sqlite:////srv/a:b/c@d.sqlite3",
        "redis+cluster://me:p%40ss@[::1]:7000,two;redis+cluster://three",
    ],
)
def test_url_without_a_secret_that_celery_would_show(url: str) -> None:
    open_backend(url, prefix="", options={}).close()


@pytest.mark.parametrize(
    "url", ["own://host/shop?bypass_cache=1&compass=north&passive=1", "own.backends:Shelf+shelf://me@host/shop"]
)
def test_url_of_ones_own_without_a_secret(url: str) -> None:
    urls.check_secrets(url)


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


def test_missing_code_of_another_package(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints([EntryPoint("shelf", "no_such_package:open_shelf", urls.ENTRY_POINTS)])
    monkeypatch.setattr(urls, "entry_points", lambda group: points.select(group=group))
    with pytest.raises(ConfigurationError, match=r"no_such_package:open_shelf .* cannot be imported: .* install the package"):
        open_backend("shelf://here", prefix="p", options={})


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that a test registers stays."""
    monkeypatch.setattr(urls, "_REGISTERED", {})


@pytest.mark.usefixtures("registered")
class TestRegistered:
    """A backend that code registers."""

    def test_it_serves_the_urls_of_its_scheme(self) -> None:
        register_backend("shelf", open_shelf)
        assert isinstance(open_backend("shelf://here", prefix="p", options={"a": 1}), MemoryBackend)
        with pytest.raises(ConfigurationError, match=r"Known are .* shelf://; a backend of your own is named by its import path"):
            open_backend("drawer://here", prefix="p", options={})

    def test_it_goes_before_an_entry_point_and_the_last_one_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        points = EntryPoints([EntryPoint("shelf", "no_such_package:open_shelf", urls.ENTRY_POINTS)])
        monkeypatch.setattr(urls, "entry_points", lambda group: points.select(group=group))
        register_backend("shelf", SqlBackend)
        register_backend("shelf", open_shelf)
        assert isinstance(open_backend("shelf://here", prefix="p", options={"a": 1}), MemoryBackend)

    @pytest.mark.parametrize(
        ("scheme", "text"),
        [
            ("redis", "redis:// is a scheme of celery_sagas itself"),
            ("postgresql+mine", "is a scheme of celery_sagas itself"),
            ("db+shelf", "is a scheme of celery_sagas itself"),
            ("Shelf", "'Shelf' is no scheme"),
            ("shelf://", "is no scheme"),
            ("", "is no scheme"),
        ],
    )
    def test_wrong_scheme(self, scheme: str, text: str) -> None:
        with pytest.raises(ConfigurationError, match=text):
            register_backend(scheme, open_shelf)

    @pytest.mark.parametrize("opener", [None, 3, "shop_stores:open_shelf"])
    def test_what_cannot_be_called(self, opener: Any) -> None:
        with pytest.raises(ConfigurationError, match=r"registered for shelf:// cannot be called\. Name a class"):
            register_backend("shelf", opener)


class TestImportPath:
    """A backend that the URL names by its import path."""

    @pytest.fixture(autouse=True)
    def module(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make a module that can be imported."""
        module = ModuleType("shop_stores")
        vars(module).update(open_shelf=open_shelf, Shelves=SimpleNamespace(open=open_shelf), number=3)
        monkeypatch.setitem(sys.modules, "shop_stores", module)

    @pytest.mark.parametrize("path", ["shop_stores:open_shelf", "shop_stores:Shelves.open"])
    def test_it_gets_the_rest_of_the_url(self, path: str) -> None:
        assert isinstance(open_backend(f"{path}+shelf://here", prefix="p", options={"a": 1}), MemoryBackend)

    def test_our_own_adapter(self) -> None:
        backend = open_backend("celery_sagas.stores.sql.backend:SqlBackend+sqlite+pysqlite://", prefix="", options={})
        assert isinstance(backend, SqlBackend)
        backend.close()

    @pytest.mark.parametrize(
        ("url", "text"),
        [
            ("no_such_package.stores:Own+own://me@host", r"no_such_package\.stores:Own cannot be .* install the package"),
            ("shop_stores:Own+own://me@host", r"cannot be imported .* Name what shop_stores defines"),
            ("shop_stores:number+own://me@host", r"shop_stores:number cannot be called\. Name a class"),
            ("shop_stores:open_shelf+s3cret", "has no scheme"),
            ("shop_stores:open_shelf+own://host?password=s3cret", "has password in its query"),
            ("shop_stores.open_shelf+own://me:s3cret@host", "no saga backend serves the scheme"),
        ],
    )
    def test_what_cannot_be_opened(self, url: str, text: str) -> None:
        with pytest.raises(ConfigurationError, match=text) as caught:
            open_backend(url, prefix="", options={})
        assert "s3cret" not in str(caught.value)

    @pytest.mark.parametrize("failure", ["no_name", "import no_such_package", "1 / 0", "int.no_such_name", "def"])
    def test_module_that_fails(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failure: str) -> None:
        """Whatever its code raises, an AttributeError too, it is told as the module's own."""
        name = f"failing_{unique()}"
        (tmp_path / f"{name}.py").write_text(failure)
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(ConfigurationError, match=r"its module cannot be imported: \w+Error: ") as caught:
            open_backend(f"{name}:Own+own://host", prefix="", options={})
        assert caught.value.__cause__ is not None


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
