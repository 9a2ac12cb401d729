"""What a worker looks at before it consumes anything: refusals, and warnings."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from celery_sagas.errors import ConfigurationError, StoreUnavailable, UnsafeBackend
from celery_sagas.stores.redis import checks
from celery_sagas.stores.redis.backend import RedisBackend
from celery_sagas.testing.samples import MINUTE, by_key, claim, found, ids, outgoing, start
from tests import processes, redis_servers
from tests.redis_servers import HOST, RedisServer
from tests.servers import unique
from tests.stores.redis.conftest import Open, OpenAt, on_every_server
from tests.waiting import wait_until

DURABLE = {"appendonly": "yes"}
#: As the error and the documentation name them.
RIGHTS = ["+evalsha", "+script|load", "+info", "+wait", "+@hash", "+@list", "+@sortedset", "+get", "+set", "+time"]


def prepare(backend: RedisBackend) -> Sequence[str]:
    """Do what a starting worker does."""
    return backend.prepare(create_schema=True, processes=2)


@pytest.fixture(scope="module")
def durable() -> Iterator[RedisServer]:
    """A server to which there is nothing to say."""
    with redis_servers.running(**DURABLE) as server:
        yield server


@contextmanager
def set_to(server: RedisServer, name: str, value: str, back: str) -> Iterator[None]:
    """Change a setting of a server for a while."""
    with server.client() as client:
        client.config_set(name, value)
        try:
            yield
        finally:
            client.config_set(name, back)


@on_every_server
def test_any_number_of_workers_prepare(open_redis: Open) -> None:
    first = open_redis()
    for backend in (first, open_redis(), first):
        prepare(backend)
    start(first)
    assert first.schema() == ""


def test_nothing_is_said_of_a_server_that_keeps_everything(durable: RedisServer, open_at: OpenAt) -> None:
    assert prepare(open_at(durable.url)) == []


class TestRefused:
    """Servers that cannot keep the promise, or cannot be used."""

    @pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
    def test_eviction_of_any_key(self, durable: RedisServer, open_at: OpenAt, policy: str) -> None:
        refused = pytest.raises(UnsafeBackend, match=f"maxmemory-policy={policy}.*Set maxmemory-policy to noeviction")
        with set_to(durable, "maxmemory-policy", policy, "noeviction"), refused:
            prepare(open_at(durable.url))

    @pytest.mark.parametrize("policy", ["noeviction", "volatile-lru", "volatile-ttl"])
    def test_eviction_of_keys_that_expire_is_none_of_ours(self, durable: RedisServer, open_at: OpenAt, policy: str) -> None:
        with set_to(durable, "maxmemory-policy", policy, "noeviction"):
            assert prepare(open_at(durable.url)) == []

    def test_the_policy_is_read_where_CONFIG_is_forbidden(self, open_at: OpenAt) -> None:
        """As managed servers do."""
        options = {"rename-command CONFIG": '""', "maxmemory-policy": "allkeys-lru"}
        with redis_servers.running(**options) as server, pytest.raises(UnsafeBackend, match="maxmemory-policy=allkeys-lru"):
            prepare(open_at(server.url))

    @pytest.mark.parametrize("read_only", ["yes", "no"])
    def test_replica(self, durable: RedisServer, open_at: OpenAt, read_only: str) -> None:
        refused = pytest.raises(ConfigurationError, match=r"is a replica.*Let saga_backend name the master")
        replicaof = f"{HOST} {durable.port}"
        with redis_servers.running(replicaof=replicaof, replica_read_only=read_only) as replica, refused:
            prepare(open_at(replica.url))

    @pytest.mark.parametrize("version", ["5.0.14", "6.0.16"])
    def test_old_server(self, durable: RedisServer, open_at: OpenAt, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
        read = checks._read
        monkeypatch.setattr(checks, "_read", lambda reply: {**read(reply), "redis_version": version})
        with pytest.raises(ConfigurationError, match=f"Redis {version}.*Use Redis 6.2 or later"):
            prepare(open_at(durable.url))

    def test_server_of_a_cluster_by_the_wrong_scheme(self, redis_cluster_url: str, open_at: OpenAt) -> None:
        url = redis_cluster_url.replace("redis+cluster://", "redis://").partition(",")[0]
        with pytest.raises(ConfigurationError, match=r"is a node of a Redis Cluster.*redis\+cluster://"):
            prepare(open_at(url))

    def test_cluster_that_is_none(self, durable: RedisServer, open_at: OpenAt) -> None:
        with pytest.raises(ConfigurationError, match="Begin saga_backend with redis://"):
            prepare(open_at(f"redis+cluster://{HOST}:{durable.port}"))

    def test_sentinel_by_the_wrong_scheme(self, durable: RedisServer, open_at: OpenAt) -> None:
        refused = pytest.raises(ConfigurationError, match=r"is a Sentinel\. Begin saga_backend with sentinel://")
        with redis_servers.sentinel(durable, "shop") as sentinel, refused:
            prepare(open_at(sentinel.url))

    @pytest.mark.parametrize(
        ("user", "text"),
        [
            ("", "Write the user and the password into saga_backend"),
            (":wr%6fng@", "Write the user and the password into saga_backend"),
            ("nobody:wr%6fng@", "Write the user and the password into saga_backend"),
        ],
    )
    def test_wrong_password(self, open_at: OpenAt, user: str, text: str) -> None:
        with redis_servers.running(requirepass="s3cret") as server:
            with pytest.raises(ConfigurationError, match=text) as caught:
                prepare(open_at(f"redis://{user}{HOST}:{server.port}"))
            shown = f"{caught.value}{caught.value.__cause__}{caught.value.__context__}"
            assert not any(secret in shown for secret in ("s3cret", "wrong", "wr%6fng"))
            prepare(open_at(server.url))

    def test_password_where_there_is_none(self, durable: RedisServer, open_at: OpenAt) -> None:
        with pytest.raises(ConfigurationError, match="Leave the password out"):
            prepare(open_at(f"redis://:s3cret@{HOST}:{durable.port}"))

    def test_user_without_rights(self, durable: RedisServer, open_at: OpenAt) -> None:
        with durable.client() as client:
            client.execute_command("ACL", "SETUSER", "clerk", "on", ">s3cret", "+info", "+get", "~*")
        with pytest.raises(ConfigurationError, match="Let the user run EVALSHA"):
            prepare(open_at(f"redis://clerk:s3cret@{HOST}:{durable.port}"))

    def test_user_with_the_rights_that_the_error_names(self, durable: RedisServer, open_at: OpenAt) -> None:
        backend = open_at(_as_user(durable, *RIGHTS), prefix="shop")
        assert prepare(backend) == []
        record = start(backend, "42", outgoing())
        assert found(backend, by_key()) == record
        assert backend.outbox.confirm("relay", ids(claim(backend))) == 1
        assert backend.journal.purge(-MINUTE, 9) == 1
        assert not any(key.startswith(b"{shop:meta}:") for key in dump(durable, "shop"))

    @pytest.mark.parametrize("missing", ["zadd", "hset", "get", "ltrim", "time"])
    def test_user_who_lacks_a_right_in_scripts(self, durable: RedisServer, open_at: OpenAt, missing: str) -> None:
        """Else a commit would be written in part."""
        backend = open_at(_as_user(durable, *RIGHTS, f"-{missing}"), prefix="shop")
        with pytest.raises(ConfigurationError, match="Let the user run EVALSHA"):
            prepare(backend)
        with pytest.raises(StoreUnavailable, match="Let the user run EVALSHA"):  # rights may be taken away later
            backend._placement.try_rights()

    def test_wrong_database(self, durable: RedisServer, open_at: OpenAt) -> None:
        with pytest.raises(ConfigurationError, match="Let saga_backend name a database that the server has"):
            prepare(open_at(f"redis://{HOST}:{durable.port}/99"))

    def test_server_that_is_away(self, open_at: OpenAt) -> None:
        with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1"):
            prepare(open_at("redis://127.0.0.1:1", options={"retries": 0}))

    def test_changed_number_of_shards(self, durable: RedisServer, open_at: OpenAt) -> None:
        prepare(open_at(durable.url))
        with pytest.raises(ConfigurationError, match="shards"):
            prepare(open_at(durable.url, options={"shards": 2}))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key, and a certificate that it has signed itself."""
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -keyout key.pem -out cert.pem -subj /CN=shop"
    try:
        words = [*command.split(), "-addext", f"subjectAltName=IP:{HOST}"]
        subprocess.run(words, cwd=folder, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl on the PATH")
    return folder / "cert.pem"


@pytest.fixture(scope="module")
def port(certificate: Path) -> Iterator[int]:
    """The port on which a server speaks TLS."""
    port = processes.free_port()
    options = {"tls-cert-file": str(certificate), "tls-key-file": str(certificate.with_name("key.pem"))}
    try:
        with redis_servers.running(**DURABLE, **options, tls_port=str(port), tls_auth_clients="no"):
            yield port
    except RuntimeError as exc:
        pytest.skip(f"redis-server knows no TLS: {exc}")


class TestTls:
    """Servers that speak TLS, and those that do not."""

    def test_trusted_server(self, certificate: Path, port: int, open_at: OpenAt) -> None:
        backend = open_at(f"rediss://{HOST}:{port}?ssl_ca_certs={certificate}")
        assert prepare(backend) == []
        start(backend)

    def test_any_server_if_told_so(self, port: int, open_at: OpenAt) -> None:
        assert prepare(open_at(f"rediss://{HOST}:{port}?ssl_cert_reqs=none")) == []

    def test_unknown_authority(self, port: int, open_at: OpenAt) -> None:
        with pytest.raises(ConfigurationError, match="set ssl_ca_certs"):
            prepare(open_at(f"rediss://{HOST}:{port}"))

    def test_another_name(self, certificate: Path, port: int, open_at: OpenAt) -> None:
        with pytest.raises(ConfigurationError, match="rediss://"):
            prepare(open_at(f"rediss://localhost:{port}?ssl_ca_certs={certificate}"))

    def test_server_that_speaks_none(self, durable: RedisServer, open_at: OpenAt) -> None:
        """Which waits for more of what it takes for a command."""
        limits = {"retries": 0, "socket_timeout": 0.5, "socket_connect_timeout": 0.5}
        with pytest.raises(StoreUnavailable, match="Timeout connecting"):
            prepare(open_at(f"rediss://{HOST}:{durable.port}", options=limits))


class TestWarned:
    """Servers that may lose commits."""

    def test_nothing_on_disk(self, open_at: OpenAt) -> None:
        with redis_servers.running() as server:
            [warning] = prepare(open_at(server.url))
        assert "keeps nothing on disk" in warning
        assert "a restart loses every saga" in warning
        assert warning.endswith(".")

    def test_only_snapshots(self, open_at: OpenAt) -> None:
        with redis_servers.running(save="3600 1") as server:
            [warning] = prepare(open_at(server.url))
        assert "only takes snapshots" in warning
        assert "what was committed since the last one" in warning

    def test_unknown_where_CONFIG_is_forbidden(self, open_at: OpenAt) -> None:
        with redis_servers.running(**{"rename-command CONFIG": '""'}) as server:
            [warning] = prepare(open_at(server.url))
            assert "may take no snapshots either" in warning
            with server.client() as client:
                client.bgsave()
                wait_until(lambda: client.info("persistence")["rdb_last_bgsave_time_sec"] != -1, "a snapshot")
            [warning] = prepare(open_at(server.url))
        assert "only takes snapshots" in warning

    def test_too_few_replicas(self, durable: RedisServer, open_at: OpenAt) -> None:
        backend = open_at(durable.url, options={"wait_replicas": 2})
        [warning] = prepare(backend)
        assert warning.startswith("wait_replicas is 2, and 0 replicas are connected to the server")

    def test_cluster_with_one_shard(self, redis_cluster_url: str, open_at: OpenAt) -> None:
        *others, last = prepare(open_at(redis_cluster_url))
        assert '{"shards": n}' in last
        assert len(others) == 3  # each node of the tests keeps nothing on disk
        assert all("node 127.0.0.1" in warning for warning in others)


def test_no_text_holds_the_password(open_at: OpenAt) -> None:
    backend = open_at("redis://me:s3cret@127.0.0.1:1/0", options={"retries": 0})
    assert backend.url == "redis://me:***@127.0.0.1:1/0"
    with pytest.raises(StoreUnavailable) as caught:
        prepare(backend)
    assert "s3cret" not in f"{caught.value}{caught.value.__cause__!r}{backend!r}"


def _as_user(server: RedisServer, *rights: str) -> str:
    """Return the server's URL for a user who has these rights alone."""
    name = unique("user")
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", name, "on", ">s3cret", *rights, "~{shop:*", "&*")
    return f"redis://{name}:s3cret@{HOST}:{server.port}"


def dump(server: RedisServer, prefix: str) -> set[bytes]:
    """Return the keys of a prefix that do not expire."""
    with server.client() as client:
        return {key for key in client.scan_iter(f"{{{prefix}:*", count=1_000) if client.pttl(key) == -1}
