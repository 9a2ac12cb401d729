"""What goes wrong with a server, and what comes of it: a clear error, and nothing half-written."""

import json
import pickle
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import sha1

import pytest
import redis
from redis._parsers import _RESP2Parser
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as NoAnswer

from celery_sagas.errors import ConfigurationError, Retry, StoreError, StoreUnavailable
from celery_sagas.stores.records import Handling
from celery_sagas.stores.redis.backend import RedisBackend
from celery_sagas.stores.redis.connection.errors import RedisErrors
from celery_sagas.stores.redis.connection.scripts import Script
from celery_sagas.testing.samples import by_key, change, dead_letter, effects, found, is_there, new_record, outgoing, start
from tests import redis_servers
from tests.integration.proxy import Proxy
from tests.redis_servers import HOST, RedisServer
from tests.stores.redis.conftest import Open, OpenAt, on_every_server

SHOWN = "redis://:***@host/0"
#: As servers from 6.2 to 8 write them after a command, and in a script.
WRITTEN = {
    "OOM": "command not allowed when used memory > 'maxmemory'.",
    "READONLY": "You can't write against a read only replica.",
    "LOADING": "Redis is loading the dataset in memory",
    "TRYAGAIN": "Multiple keys request during rehashing of slot",
    "CLUSTERDOWN": "The cluster is down",
    "MASTERDOWN": "Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "NOREPLICAS": "Not enough good replicas to write.",
    "MISCONF": "Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
    "BUSY": "Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
}


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A server whose settings the tests change."""
    with redis_servers.running() as server:
        yield server


@pytest.fixture
def backend(server: RedisServer, open_at: OpenAt) -> RedisBackend:
    """A backend on it that is ready."""
    backend = open_at(server.url)
    backend.prepare(create_schema=True, processes=1)
    return backend


def as_redis_py_reads(text: str) -> Exception:
    """Return the error that redis-py makes of a reply."""
    error: Exception = _RESP2Parser(socket_read_size=1).parse_error(text)
    return error


class TestTranslation:
    """By the text of the reply."""

    translator = RedisErrors(SHOWN, ("s3cret",))

    @pytest.mark.parametrize("code", WRITTEN)
    @pytest.mark.parametrize(
        "text",
        [
            "{code} {text}",
            "{code} {text} script: 5ca1ab1e, on @user_script:12.",  # from 7.0 on
            "ERR Error running script (call to f_5ca1ab1e): @user_script:12: -{code} {text}",  # 6.2
            "ERR Error running script (call to f_5ca1ab1e): @user_script:12: @user_script: 12: -{code} {text}",
        ],
    )
    def test_what_passes_is_for_later(self, code: str, text: str) -> None:
        error = self.translator.translate(as_redis_py_reads(text.format(code=code, text=WRITTEN[code])), "saga_update")
        assert isinstance(error, StoreUnavailable)
        assert error.retry is Retry.LATER
        assert WRITTEN[code].rstrip(".") in str(error)

    @pytest.mark.parametrize(
        "error", [LostConnection("Error 111"), NoAnswer("Timeout reading"), OSError(9, "Bad file"), RedisError("odd")]
    )
    def test_what_the_driver_raises_is_for_later(self, error: Exception) -> None:
        assert isinstance(self.translator.translate(error, "saga_update"), StoreUnavailable)

    @pytest.mark.parametrize(
        "text",
        [
            "ERR user_script:3: Script attempted to access nonexistent global variable 'x' script: 5ca1ab1e, on @user_script:3.",
            "ERR Error running script (call to f_5ca1ab1e): @user_script:3: Script attempted to access nonexistent global",
            "ERR Protocol error: invalid bulk length",
            "ERR unknown command 'EVALSHA'",
            "CROSSSLOT Keys in request don't hash to the same slot",
        ],
    )
    def test_what_will_be_refused_again_is_never_retried(self, text: str) -> None:
        error = self.translator.translate(as_redis_py_reads(text), "saga_update")
        assert type(error) is StoreError
        assert error.retry is Retry.NEVER
        assert str(error).startswith(f"The saga backend {SHOWN} refused saga_update: ")

    @pytest.mark.parametrize(
        "text",
        [
            "WRONGTYPE Operation against a key holding the wrong kind of value script: 5ca1ab1e, on @user_script:3.",
            "ERR Error running script (call to f_5ca1ab1e): @user_script:3: WRONGTYPE Operation against a key holding the wrong "
            "kind of value",
        ],
    )
    def test_foreign_data_names_the_keys_and_what_to_do(self, text: str) -> None:
        error = self.translator.translate(as_redis_py_reads(text), "saga_update", ["{shop:0}:journal", "{shop:0}:outbox"])
        assert type(error) is StoreError
        assert "{shop:0}:journal, {shop:0}:outbox" in str(error)
        assert "saga_prefix" in str(error)

    @pytest.mark.parametrize("text", ["WRONGPASS invalid username-password pair", "NOAUTH Authentication required.", "NOPERM no"])
    def test_what_a_setting_mends_is_for_later_and_says_so(self, text: str) -> None:
        """While a worker runs: somebody changes the password on the server first."""
        error = self.translator.translate(as_redis_py_reads(text), "saga_update")
        assert isinstance(error, StoreUnavailable)
        assert "user" in str(error)

    def test_only_the_first_line_and_no_secret(self) -> None:
        error = self.translator.translate(LostConnection("cannot use s3cret here\nvalue"), "saga_update")
        assert str(error) == f"The saga backend {SHOWN} is unavailable: ConnectionError: cannot use *** here."

    def test_errors_can_be_sent(self) -> None:
        for text in ("ERR no", "OOM no", "WRONGTYPE no"):
            error = self.translator.translate(as_redis_py_reads(text), "saga_update", ["key"])
            assert str(pickle.loads(pickle.dumps(error))) == str(error)
            assert str(type(error)(*json.loads(json.dumps(error.args)))) == str(error)


Operation = Callable[[RedisBackend], object]
COMMITS: list[Operation] = [
    lambda backend: start(backend, "T2", outgoing(), keys=(("email", "T2"),)),
    lambda backend: backend.sagas.update(
        found(backend, by_key()), change(added=(("email", "T3"),)), effects(new_record(), outgoing())
    ),
    lambda backend: backend.sagas.record(effects(new_record("T4"), outgoing())),
    lambda backend: backend.dead.add(dead_letter("T5")),
]


def stored(server: RedisServer) -> dict[bytes, bytes]:
    """Return everything that a server keeps."""
    with server.client() as client:
        return {key: client.dump(key) for key in client.keys("*")}


class TestFull:
    """A server without memory."""

    @pytest.mark.parametrize("commit", COMMITS)
    def test_a_commit_is_for_later_and_nothing_is_written(
        self, server: RedisServer, backend: RedisBackend, commit: Operation
    ) -> None:
        start(backend)
        before = stored(server)
        with server.client() as client:
            client.config_set("maxmemory", 1)
            try:
                with pytest.raises(StoreUnavailable, match="command not allowed when used memory"):
                    commit(backend)
                assert is_there(backend, by_key())
            finally:
                client.config_set("maxmemory", 0)
        assert stored(server) == before
        commit(backend)

    def test_the_end_of_an_instance_is_committed_whole(self, server: RedisServer, backend: RedisBackend) -> None:
        """It frees memory before it takes some, which the server lets a script do."""
        record = start(backend)
        end = effects(record, outgoing())
        with server.client() as client:
            client.config_set("maxmemory", 1)
            try:
                backend.sagas.delete(record, end)
            finally:
                client.config_set("maxmemory", 0)
        answer = backend.sagas.find(by_key(), Handling((end.entry.step,), end.entry.message_id))
        assert answer.record is None
        assert answer.handled is not None
        assert backend.outbox.count() == 1


class TestAway:
    """A server that goes away in the middle."""

    @pytest.mark.parametrize("commit", COMMITS)
    def test_a_commit_whose_server_goes_away_is_for_later(self, server: RedisServer, open_at: OpenAt, commit: Operation) -> None:
        with closing(Proxy(server.url, 6379)) as proxy:
            backend = open_at(proxy.url, options={"retries": 1})
            backend.prepare(create_schema=True, processes=1)
            start(backend)
            proxy.refuse()
            with pytest.raises(StoreUnavailable) as caught:
                commit(backend)
            assert isinstance(caught.value.__cause__, redis.RedisError)
            proxy.accept()
            commit(backend)


class TestForeign:
    """Data of others under our keys."""

    def test_foreign_data_is_a_clear_error(self, server: RedisServer, backend: RedisBackend, prefix: str) -> None:
        start(backend)
        with server.client() as client:
            [journal] = client.keys(f"{{{prefix}:*:journal")
            client.delete(journal)
            client.set(journal, "mine")
            before = stored(server)
            with pytest.raises(StoreError, match="holds what the saga backend never writes there") as caught:
                start(backend, "T2")
            assert journal.decode() in str(caught.value)
            assert not isinstance(caught.value, StoreUnavailable)
            assert stored(server) == before
            client.flushall()


class TestSecrets:
    """Passwords stay where they are."""

    def test_wrong_password_while_a_worker_runs(self, server: RedisServer, open_at: OpenAt) -> None:
        with redis_servers.running(requirepass="s3c/ret") as server:
            backend = open_at(f"redis://:s3c%2Fret@{HOST}:{server.port}/0")
            backend.prepare(create_schema=True, processes=1)
            start(backend)
            with server.client() as client:
                client.config_set("requirepass", "changed")
                client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            with pytest.raises(StoreUnavailable, match="Write the user and the password into saga_backend") as caught:
                found(backend, by_key())
            with pytest.raises(ConfigurationError, match="Write the user and the password") as refused:
                backend.prepare(create_schema=True, processes=1)
        for error in (caught.value, refused.value):
            text = "".join(traceback.format_exception(error))
            assert not any(secret in text for secret in ("s3c/ret", "s3c%2Fret", "changed"))


def test_wrong_database_while_a_worker_runs(server: RedisServer, open_at: OpenAt) -> None:
    backend = open_at(f"redis://{HOST}:{server.port}/99")
    with pytest.raises(StoreUnavailable, match="Let saga_backend name a database"):
        found(backend, by_key())


@on_every_server
def test_every_server_translates(open_redis: Open) -> None:
    """Of whatever version: a script that fails is refused."""
    source = "return redis.call('NOSUCH')"
    script = Script("broken", source, sha1(source.encode()).hexdigest())
    with pytest.raises(StoreError, match="refused broken"):
        open_redis().client.run(script, ["{test}"], [])
