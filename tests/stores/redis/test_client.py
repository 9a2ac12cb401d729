"""What the client does with connections: calls get their own answers, whatever interrupts them or goes away."""

import gc
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from hashlib import sha1
from itertools import count, cycle
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis
from redis.crc import key_slot
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import TimeoutError as NoAnswer

from celery_sagas.errors import StoreError, StoreUnavailable
from celery_sagas.stores.records import Handling
from celery_sagas.stores.redis.backend import RedisBackend, open_client
from celery_sagas.stores.redis.connection import client as client_module
from celery_sagas.stores.redis.connection import connections as connections_module
from celery_sagas.stores.redis.connection.calls import Call
from celery_sagas.stores.redis.connection.client import Client
from celery_sagas.stores.redis.connection.cluster import ClusterClient
from celery_sagas.stores.redis.connection.location import locate
from celery_sagas.stores.redis.connection.options import read_options
from celery_sagas.stores.redis.connection.scripts import Script
from celery_sagas.testing.samples import MINUTE, RELAY, by_key, change, effects, entry, found, outgoing, start
from tests import redis_servers
from tests.integration.proxy import Proxy
from tests.redis_servers import RedisServer
from tests.stores.redis.conftest import PATIENT
from tests.stores.redis.times import command
from tests.waiting import DEADLINE_S, PROGRAM_S, wait_until

T = TypeVar("T")

KEY = "{test:0}:key"


def script(source: str) -> Script:
    """Return a script of the test's own."""
    return Script("of_the_test", source, sha1(source.encode()).hexdigest())


ECHO = script("return ARGV[1]")
#: Appends, and answers with how many there are.
APPEND = script("return redis.call('RPUSH', KEYS[1], ARGV[1])")
#: Appends once, as all scripts of ours that write.
APPEND_ONCE = script(
    "if redis.call('LPOS', KEYS[1], ARGV[1]) then return 'replay' end return redis.call('RPUSH', KEYS[1], ARGV[1])"
)


@contextmanager
def opened(url: str, **options: object) -> Iterator[Client]:
    """Open a client until the end of the block."""
    location = locate(url)
    with closing(open_client(location, read_options(options, location))) as client:
        yield client


@pytest.fixture(scope="module")
def shared() -> Iterator[RedisServer]:
    """A server of this module, which nobody stops."""
    with redis_servers.running() as server:
        yield server


@pytest.fixture
def client(shared: RedisServer) -> Iterator[Client]:
    """A client of the shared server, which is empty."""
    with opened(shared.url) as client:
        command(client, "FLUSHALL")
        yield client


def echo(client: Client, token: str) -> bytes:
    """Make a round trip."""
    answer: bytes = client.run(ECHO, [KEY], [token])
    return answer


def assert_connections(server: RedisServer, count: int) -> None:
    """Assert that a server has so many clients, once it has noticed which of them have gone."""

    def found() -> int:
        with server.client() as asking:
            return len(asking.client_list(_type="normal")) - 1

    wait_until(lambda: found() == count, lambda: f"{count} connections, and not {found()}")


def in_the_end(call: Callable[[], T], deadline_s: float = DEADLINE_S) -> T:
    """Return what a call returns once the server has answered in time, which a busy one may not at first."""
    answers: list[T] = []

    def has_answer() -> bool:
        with suppress(StoreUnavailable):
            answers.append(call())
        return bool(answers)

    wait_until(has_answer, "an answer in time", deadline_s)
    return answers[0]


class Pauses:
    """The client's pauses, which are not slept, but pass."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Pauses:
    """The client's clock."""
    pauses = Pauses()
    monkeypatch.setattr(client_module, "time", pauses)
    return pauses


class TestCalls:
    """Scripts and commands."""

    def test_reply_comes_as_it_is(self, client: Client) -> None:
        answers = script("return {1, 'é', false, {ARGV[1], ARGV[2], KEYS[1]}}")
        assert client.run(answers, ["{é}"], [b"\xff\x00\r\n", -5]) == [
            1,
            "é".encode(),
            None,
            [b"\xff\x00\r\n", b"-5", "{é}".encode()],
        ]

    def test_large_values_pass(self, client: Client) -> None:
        text = "x" * 3_000_000
        assert echo(client, text) == text.encode()

    def test_observers_are_told_of_each_trip(self, client: Client) -> None:
        trips: list[str] = []
        client.observers.append(trips.append)
        command(client, "SCRIPT", "FLUSH")
        echo(client, "1")
        echo(client, "2")
        command(client, "PING")
        assert trips == ["SCRIPT", "of_the_test", "of_the_test", "of_the_test", "PING"]

    def test_a_flushed_script_is_loaded_again(self, client: Client) -> None:
        for token in map(str, range(3)):
            assert echo(client, token) == token.encode()
            command(client, "SCRIPT", "FLUSH")

    def test_a_text_that_is_no_utf8_is_refused(self, client: Client) -> None:
        with pytest.raises(StoreError, match="refused of_the_test") as caught:
            echo(client, "\ud800")
        assert not isinstance(caught.value, StoreUnavailable)
        assert echo(client, "1") == b"1"

    def test_one_connection_serves_many_calls(self, shared: RedisServer, client: Client) -> None:
        for token in map(str, range(10)):
            echo(client, token)
        assert_connections(shared, 1)
        client.close()
        assert_connections(shared, 0)

    @pytest.mark.parametrize("script", [script("error('no')"), script("return redis.call('NOSUCH')")])
    def test_a_refused_script_leaves_the_connection_in_order(self, shared: RedisServer, client: Client, script: Script) -> None:
        with pytest.raises(StoreError, match="refused of_the_test") as caught:
            client.run(script, [KEY], [])
        assert not isinstance(caught.value, StoreUnavailable)
        assert echo(client, "1") == b"1"
        assert_connections(shared, 1)


class TestSharing:
    """Threads and processes that share a client."""

    def test_threads_get_their_own_answers(self, shared: RedisServer) -> None:
        with opened(shared.url) as client:
            with ThreadPoolExecutor(16) as pool:
                tokens = list(map(str, range(4000)))
                assert list(pool.map(lambda token: echo(client, token), tokens)) == [token.encode() for token in tokens]
            assert_connections(shared, client._server.connections.idle)
            assert client._server.connections.idle <= 16

    def test_a_call_within_another_has_a_connection_of_its_own(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        """As a signal handler may make one."""
        read, inner = connections_module._reply, list[bytes]()

        def call(connection: Any) -> Any:
            monkeypatch.setattr(connections_module, "_reply", read)
            inner.append(echo(client, "inner"))
            return read(connection)

        echo(client, "1")
        monkeypatch.setattr(connections_module, "_reply", call)
        assert echo(client, "outer") == b"outer"
        assert inner == [b"inner"]
        assert client._server.connections.idle == 2

    def test_a_fork_leaves_the_connections_to_its_parent(self, shared: RedisServer, client: Client) -> None:
        echo(client, "1")
        child = os.fork()
        if not child:
            with suppress(BaseException):
                answers = [echo(client, f"child {n}") for n in range(100)]
                gc.collect()
                os._exit(0 if answers == [b"child %d" % n for n in range(100)] else 1)
            os._exit(2)
        assert [echo(client, str(n)) for n in range(100)] == [str(n).encode() for n in range(100)]
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert_connections(shared, 1)

    def test_greenlets_get_their_own_answers_also_after_a_timeout(self, shared: RedisServer) -> None:
        pytest.importorskip("gevent")
        program = f"""
from gevent import monkey; monkey.patch_all()
import gevent, random, sys
sys.path.append({str(Path(__file__).parents[3])!r})
from tests.stores.redis.test_client import opened, echo
def calls(client, name):
    for n in range(100):
        try:
            with gevent.Timeout(random.uniform(0, 0.01)):
                assert echo(client, f"{{name}} {{n}}") == b"%d %d" % (name, n)
        except gevent.Timeout:
            pass
        assert echo(client, f"{{name}} {{n}} again") == b"%d %d again" % (name, n)
with opened({shared.url!r}) as client:
    for _ in range(3):
        gevent.joinall([gevent.spawn(calls, client, name) for name in range(30)], raise_error=True)
    assert client._server.connections.idle <= 30
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PROGRAM_S)
        assert done.returncode == 0, done.stderr


class Interruption(BaseException):
    """What no driver raises: a soft time limit, Ctrl-C."""


class Alarm:
    """Interrupts whatever runs, at a random moment; half of the calls end before it, however long they take at present."""

    def __init__(self) -> None:
        self._longest_s = 0.0005
        self.strikes = 0
        self._is_set = False

    def strike(self, *_: object) -> None:
        """Interrupt: this is the signal's handler. A signal may come late."""
        if self._is_set:
            self.strikes += 1
            raise Interruption

    def during(self, call: Callable[[], object]) -> None:
        """Make a call, and let the alarm strike in it, or not; never after it."""
        before = self.strikes
        try:
            try:
                self._is_set = True
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, self._longest_s))
                call()
            finally:
                self._is_set = False
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Interruption:
            self._is_set = False
            signal.setitimer(signal.ITIMER_REAL, 0)
        except UnboundLocalError as exc:  # what redis-py 5 makes of it in a certain line
            if not isinstance(exc.__context__, Interruption):
                raise
        self._longest_s *= 1.05 if self.strikes > before else 0.95


@pytest.fixture
def alarm() -> Iterator[Alarm]:
    """An alarm for calls."""
    alarm = Alarm()
    before = signal.signal(signal.SIGALRM, alarm.strike)
    yield alarm
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def interrupt(client: Client, alarm: Alarm, strikes: int) -> None:
    """Interrupt calls so often, and look at the answers of those that come after each."""
    tokens = map(str, count())
    while alarm.strikes < strikes:
        alarm.during(partial(echo, client, next(tokens)))
        for token in (next(tokens), next(tokens)):
            assert echo(client, token) == token.encode()


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
class TestInterrupted:
    """A connection over which anything but a driver's error passed is never used again."""

    def test_later_calls_get_their_own_answers(self, shared: RedisServer, client: Client, alarm: Alarm) -> None:
        interrupt(client, alarm, 1000)
        gc.collect()
        assert client._server.connections.idle == 1
        assert_connections(shared, 1)

    def test_a_write_is_sent_once_more_or_not_at_all(self, client: Client, alarm: Alarm) -> None:
        """It is never lost once it was answered, nor does an interrupted one end up in another's place."""
        answered = []

        def append(n: int) -> None:
            client.run(APPEND_ONCE, [KEY], [n])
            answered.append(n)

        for n in range(1000):
            alarm.during(partial(append, n))
        assert alarm.strikes > 100
        stored = [int(n) for n in command(client, "LRANGE", KEY, 0, -1)]
        assert set(answered) <= set(stored)
        assert stored == sorted(set(stored))

    def test_the_worst_moment(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        """Between the request and its reply, where redis-py notices nothing: the next call would get this one's answer."""
        read = connections_module._reply

        def interrupted(connection: Any) -> Any:
            monkeypatch.setattr(connections_module, "_reply", read)
            raise Interruption

        echo(client, "1")
        monkeypatch.setattr(connections_module, "_reply", interrupted)
        with pytest.raises(Interruption):
            echo(client, "2")
        assert echo(client, "3") == b"3"

    def test_threads_are_not_disturbed(self, client: Client, alarm: Alarm) -> None:
        is_over, wrong = threading.Event(), []

        def call(name: str) -> None:
            for n in count():
                if is_over.is_set():
                    return
                if echo(client, f"{name} {n}") != f"{name} {n}".encode():
                    wrong.append(n)

        threads = [threading.Thread(target=call, args=[name]) for name in "ab"]
        for thread in threads:
            thread.start()
        try:
            interrupt(client, alarm, 300)
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
        assert not wrong


def open_connections(client: Client, count: int) -> None:
    """Open so many connections, which are idle."""
    connections = client._server.connections
    for _ in range(count - connections.idle):
        connection = client._server._make({})
        connection.connect()
        connections.check_in(connection)
    assert connections.idle == count


@pytest.fixture
def proxy(shared: RedisServer) -> Iterator[Proxy]:
    """A network between the client and the shared server."""
    with closing(Proxy(shared.url, 6379)) as proxy:
        yield proxy


class TestLost:
    """Connections that are lost, and servers that go away."""

    def test_a_lost_reply_is_asked_for_again(self, client: Client, proxy: Proxy) -> None:
        with opened(proxy.url) as behind:
            assert behind.run(APPEND_ONCE, [KEY], ["1"]) == 1
            proxy.swallow(APPEND_ONCE.sha.encode())
            assert behind.run(APPEND_ONCE, [KEY], ["2"]) == b"replay"
            assert proxy.swallowed == 1
        assert command(client, "LRANGE", KEY, 0, -1) == [b"1", b"2"]

    def test_stale_connections_are_left_behind_at_once(self, proxy: Proxy, pauses: Pauses) -> None:
        with opened(proxy.url, retries=1) as client:
            open_connections(client, 8)
            proxy.cut()
            assert echo(client, "1") == b"1"
            assert pauses.slept == [0]
            assert client._server.connections.idle == 1

    def test_stale_connections_cost_many_threads_one_repeat(self, proxy: Proxy) -> None:
        with opened(proxy.url, retries=1) as client, ThreadPoolExecutor(12) as threads:
            for _ in range(5):
                open_connections(client, 15)
                proxy.cut()
                all_there = threading.Barrier(12)

                def call(number: int, all_there: threading.Barrier = all_there) -> bytes:
                    all_there.wait(DEADLINE_S)
                    return echo(client, str(number))

                assert list(threads.map(call, range(12))) == [b"%d" % number for number in range(12)]

    def test_without_retries_a_lost_connection_is_an_error(self, proxy: Proxy) -> None:
        with opened(proxy.url, retries=0) as client:
            echo(client, "1")
            proxy.cut()
            with pytest.raises(StoreUnavailable):
                echo(client, "2")
            assert echo(client, "3") == b"3"

    def test_a_server_that_restarts_between_calls_is_not_noticed(self) -> None:
        with redis_servers.running(appendonly="yes") as server, opened(server.url) as client:
            for n in range(3):
                assert client.run(APPEND, [KEY], [n]) == n + 1
                server.stop()
                server.start()

    def test_a_server_that_is_away_for_a_moment_is_waited_for(self) -> None:
        with redis_servers.running() as server, opened(server.url, retries=100, total_timeout=60) as client:
            echo(client, "1")
            tries: list[str] = []
            client.observers.append(tries.append)
            server.kill()
            with ThreadPoolExecutor(1) as pool:
                answer = pool.submit(echo, client, "2")
                wait_until(lambda: len(tries) > 2, "repeats")
                server.start()
                assert answer.result() == b"2"

    def test_a_server_that_is_away_is_an_error_within_the_bounds(self, pauses: Pauses) -> None:
        with redis_servers.running() as server, opened(server.url, retries=3) as client:
            server.kill()
            with pytest.raises(StoreUnavailable, match="refused") as caught:
                echo(client, "1")
            assert pauses.slept == pytest.approx([0, 0.1, 0.4])
            assert caught.value.__cause__ is not None
            server.start()
            assert echo(client, "2") == b"2"

    def test_a_server_that_is_away_for_longer_than_the_total(self, pauses: Pauses) -> None:
        with redis_servers.running() as server, opened(server.url, retries=100, total_timeout=10) as client:
            server.kill()
            with pytest.raises(StoreUnavailable, match="refused"):
                echo(client, "1")
            assert pauses.slept == pytest.approx([0, 0.1, 0.4, *[1] * 9])

    def test_a_silent_server_is_an_error_within_the_total(
        self, proxy: Proxy, pauses: Pauses, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each try takes no longer than what is left, which is next to nothing in the end."""
        limits = {"socket_timeout": 0.4, "socket_connect_timeout": 0.4, "total_timeout": 1}
        with opened(proxy.url, **limits, retries=50) as client:
            in_the_end(lambda: echo(client, "1"))
            make, limited = client._server._make_one, list[tuple[float, float]]()

            def note(**arguments: Any) -> Any:
                limited.append((arguments["socket_timeout"], arguments["socket_connect_timeout"]))
                return make(**arguments)

            def pass_time(_: str) -> None:
                pauses.now += 0.4

            with monkeypatch.context() as patched:
                patched.setattr(client._server, "_make_one", note)
                client.observers.append(pass_time)
                pauses.slept.clear()
                proxy.silence()
                with pytest.raises(StoreUnavailable, match="Timeout"):
                    echo(client, "2")
                client.observers.clear()
            assert limited == [pytest.approx((0.2, 0.2)), pytest.approx((0.1, 0.1))]
            assert pauses.slept == [0, 0.1]
            proxy.speak()
            again = partial(in_the_end, partial(echo, client, "3"))
            wait_until(lambda: again() == b"3" and client._server.connections.idle == 1, "one connection that is kept")


def prepare_all(client: Client, script: Script, *args: str, keys: Sequence[str] = (KEY,), commits: bool = False) -> list[Call]:
    """Return a call of a script for each argument, on each of the keys in turn."""
    return [client.prepare(script, [key], [arg], commits=commits) for arg, key in zip(args, cycle(keys), strict=False)]


def kinds(answers: Sequence[Any]) -> list[Any]:
    """Return answers as they can be compared: of an error only the class."""
    return [type(answer) if isinstance(answer, StoreError) else answer for answer in answers]


def lose_reply(monkeypatch: pytest.MonkeyPatch, number: int, error: BaseException) -> None:
    """Let an error come in the place of one of the next replies, counted from 0."""
    read, numbers = connections_module._reply, count()

    def reply(connection: Any) -> Any:
        if next(numbers) == number:
            monkeypatch.setattr(connections_module, "_reply", read)
            raise error
        return read(connection)

    monkeypatch.setattr(connections_module, "_reply", reply)


class TestMany:
    """Calls that are sent together: each has the answer that it has alone."""

    def test_no_calls(self, client: Client) -> None:
        assert client.send_many([]) == []

    def test_they_share_one_trip(self, client: Client) -> None:
        client.send_many([*prepare_all(client, ECHO, "1"), *prepare_all(client, APPEND, "1")])
        trips: list[str] = []
        client.observers.append(trips.append)
        answers = client.send_many([*prepare_all(client, ECHO, "2", "3"), *prepare_all(client, APPEND, "2", "3")])
        assert answers == [b"2", b"3", 2, 3]
        assert trips == ["of_the_test"]

    def test_forgotten_scripts_are_loaded_once_for_all(self, client: Client) -> None:
        command(client, "SCRIPT", "FLUSH")
        echo(client, "known")
        trips: list[str] = []
        client.observers.append(trips.append)
        with counting_loads(client) as loaded:
            answers = client.send_many([*prepare_all(client, ECHO, "1", "2"), *prepare_all(client, APPEND, *"12345")])
        assert answers == [b"1", b"2", 1, 2, 3, 4, 5]
        assert (trips.count("of_the_test"), loaded()) == (2, 1)

    def test_a_refused_call_leaves_the_others(self, client: Client) -> None:
        command(client, "SET", "{test:0}:text", "foreign")
        scripts = [script("error('no')"), script("return redis.call('NOSUCH')")]
        calls = prepare_all(client, APPEND, *"123456", keys=[KEY, "{test:0}:text", "{test:0}:other"])
        refused = [client.prepare(each, [KEY], []) for each in scripts]
        answers = client.send_many([*refused, *calls])
        assert kinds(answers) == [StoreError, StoreError, 1, StoreError, 1, 2, StoreError, 2]
        assert "{test:0}:text" in str(answers[3])
        assert client._server.connections.idle == 1

    def test_a_trip_is_bounded(self, client: Client) -> None:
        trips: list[str] = []
        tokens = [str(number) for number in range(1_001)]
        client.send_many(prepare_all(client, ECHO, "loaded"))
        client.observers.append(trips.append)
        assert client.send_many(prepare_all(client, ECHO, *tokens)) == [token.encode() for token in tokens]
        assert len(trips) == 3
        large, small = "x" * 600_000, "y"
        assert client.send_many(prepare_all(client, ECHO, large, small, large, small)) == [
            word.encode() for word in (large, small, large, small)
        ]
        assert len(trips) == 5
        assert client.send_many(prepare_all(client, ECHO, 3 * large)) == [3 * large.encode()]
        assert len(trips) == 6

    def test_lost_replies_are_asked_for_again(self, client: Client, proxy: Proxy) -> None:
        with opened(proxy.url) as behind:
            assert behind.send_many(prepare_all(behind, APPEND_ONCE, "1")) == [1]
            proxy.swallow(APPEND_ONCE.sha.encode())
            assert behind.send_many(prepare_all(behind, APPEND_ONCE, "2", "3", "4")) == [b"replay"] * 3
            assert proxy.swallowed == 1
        assert command(client, "LRANGE", KEY, 0, -1) == [b"1", b"2", b"3", b"4"]

    @pytest.mark.parametrize("error", [LostConnection("reset"), NoAnswer("too late")])
    def test_a_connection_that_is_lost_between_two_replies(
        self, client: Client, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        client.send_many(prepare_all(client, APPEND_ONCE, "1"))
        lose_reply(monkeypatch, 1, error)
        assert client.send_many(prepare_all(client, APPEND_ONCE, "2", "3", "4")) == [b"replay"] * 3
        assert command(client, "LRANGE", KEY, 0, -1) == [b"1", b"2", b"3", b"4"]

    def test_a_trip_that_was_answered_is_not_repeated_for_the_next(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        client.send_many(prepare_all(client, APPEND_ONCE, "first"))
        lose_reply(monkeypatch, 550, LostConnection("reset"))
        answers = client.send_many(prepare_all(client, APPEND_ONCE, *map(str, range(700))))
        assert answers == [*range(2, 502), *[b"replay"] * 200]

    def test_an_interruption_between_two_replies_closes_the_connection(
        self, shared: RedisServer, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client.send_many(prepare_all(client, ECHO, "1"))
        lose_reply(monkeypatch, 1, Interruption())
        with pytest.raises(Interruption):
            client.send_many(prepare_all(client, ECHO, "2", "3", "4"))
        assert client._server.connections.idle == 0
        assert client.send_many(prepare_all(client, ECHO, "5", "6")) == [b"5", b"6"]
        assert_connections(shared, 1)

    @pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
    def test_interruptions_at_any_moment(self, client: Client, alarm: Alarm) -> None:
        for number in count():
            if alarm.strikes >= 300:
                break
            alarm.during(lambda number=number: client.send_many(prepare_all(client, APPEND_ONCE, f"{number} a", f"{number} b")))
            assert client.send_many(prepare_all(client, ECHO, f"{number} c", f"{number} d")) == [
                b"%d c" % number,
                b"%d d" % number,
            ]
        stored = command(client, "LRANGE", KEY, 0, -1)
        assert len(stored) == len(set(stored))

    def test_a_server_that_is_away_is_waited_for_once(self, pauses: Pauses) -> None:
        with redis_servers.running() as server, opened(server.url, retries=3) as client:
            server.kill()
            trips: list[str] = []
            client.observers.append(trips.append)
            answers = client.send_many(prepare_all(client, ECHO, *["x"] * 1_001))
            assert {type(answer) for answer in answers} == {StoreUnavailable}
            assert len(trips) == 4  # not once for each trip that there would have been
            assert pauses.slept == pytest.approx([0, 0.1, 0.4])
            assert all(answer.__cause__ is not None for answer in answers)
            server.start()
            assert client.send_many(prepare_all(client, ECHO, "1", "2")) == [b"1", b"2"]

    def test_a_server_that_has_become_a_replica_is_waited_for_once(self, pauses: Pauses) -> None:
        with redis_servers.running() as master, redis_servers.running() as server, opened(server.url, retries=3) as client:
            client.send_many([*prepare_all(client, ECHO, "1"), *prepare_all(client, APPEND, "1")])
            with server.client() as other:
                other.replicaof(redis_servers.HOST, master.port)
                trips: list[str] = []
                client.observers.append(trips.append)
                answers = client.send_many([*prepare_all(client, ECHO, "2", "3"), *prepare_all(client, APPEND, *"2345")])
                assert kinds(answers) == [b"2", b"3", *[StoreUnavailable] * 4]
                assert len(trips) == 4
                assert pauses.slept == pytest.approx([0, 0.1, 0.4])
                other.replicaof("NO", "ONE")

    def test_a_silent_server_takes_the_total_once(self, proxy: Proxy, pauses: Pauses) -> None:
        limits = {"socket_timeout": 0.4, "socket_connect_timeout": 0.4, "total_timeout": 1}
        with opened(proxy.url, **limits, retries=50) as client:
            in_the_end(lambda: echo(client, "1"))
            trips: list[str] = []

            def pass_time(name: str) -> None:
                trips.append(name)
                pauses.now += 0.4

            client.observers.append(pass_time)
            proxy.silence()
            answers = client.send_many(prepare_all(client, ECHO, *"abcdefgh"))
            assert kinds(answers) == [StoreUnavailable] * 8
            assert len(trips) == 3
            proxy.speak()


@contextmanager
def counting_loads(client: Client) -> Iterator[Callable[[], int]]:
    """Count the scripts that are loaded while the block runs."""

    def loads() -> int:
        stats: bytes = command(client, "INFO", "commandstats")
        found = re.search(rb"cmdstat_script(?:\|load)?:calls=(\d+)", stats)
        return int(found[1]) if found else 0

    before = loads()
    yield lambda: loads() - before


@contextmanager
def replica_of(master: RedisServer) -> Iterator[RedisServer]:
    """Run a replica that is in step."""
    with redis_servers.running(replicaof=f"{redis_servers.HOST} {master.port}") as replica:
        with master.client() as client:
            wait_until(lambda: client.publish("any", "") == 0 and client.execute_command("WAIT", 1, 1000), "a replica in step")
        yield replica


def wait_for_replica(master: RedisServer) -> None:
    """Wait until the replica has caught up."""
    with master.client() as client:
        wait_until(lambda: client.set("caught up", "") and client.execute_command("WAIT", 1, 1000), "a replica in step")


#: Options by which a replica must confirm what is written, however long that takes; and by which it cannot take long.
CONFIRMED: Mapping[str, object] = {**PATIENT, "wait_replicas": 1, "wait_timeout": 29}
CONFIRMED_SOON: Mapping[str, object] = {**CONFIRMED, "wait_timeout": 0.2}


@contextmanager
def two_backends(url: str) -> Iterator[tuple[RedisBackend, RedisBackend]]:
    """Open two backends of one prefix: one that waits long for the replica, and one that does not."""
    with (
        closing(RedisBackend(url, prefix="shop", options=CONFIRMED)) as patient,
        closing(RedisBackend(url, prefix="shop", options=CONFIRMED_SOON)) as brief,
    ):
        yield patient, brief


def all_or_unavailable(answers: list[Any]) -> list[Any]:
    """Return answers; raise what one of them is."""
    for answer in answers:
        if isinstance(answer, StoreUnavailable):
            raise answer
    return answers


class TestReplicas:
    """Commits that replicas confirm."""

    def test_a_commit_waits_for_them_in_its_own_trip(self) -> None:
        with redis_servers.running() as master, replica_of(master), opened(master.url, **CONFIRMED) as client:
            trips: list[str] = []
            client.observers.append(trips.append)
            client.run(ECHO, [KEY], ["loaded"])
            with master.client() as other:
                before = other.info("commandstats").get("cmdstat_wait", {}).get("calls", 0)
                client.run(APPEND, [KEY], ["1"], commits=True)
                client.run(ECHO, [KEY], ["2"])
                assert other.info("commandstats")["cmdstat_wait"]["calls"] - before == 2  # APPEND was not known at first
            assert trips == ["of_the_test"] * 5

    def test_a_shortfall_is_an_error_and_the_connection_in_order(self) -> None:
        with redis_servers.running() as master, replica_of(master) as replica, opened(master.url, **CONFIRMED_SOON) as client:
            first = command(client, "CLIENT", "ID")
            with replica.silent():
                with pytest.raises(StoreUnavailable, match=r"0 replicas confirmed a commit within 0\.2 s.*asks for 1"):
                    client.run(APPEND_ONCE, [KEY], ["1"], commits=True)
                assert echo(client, "2") == b"2"
            wait_for_replica(master)
            assert in_the_end(lambda: client.run(APPEND_ONCE, [KEY], ["1"], commits=True)) == b"replay"
            assert command(client, "CLIENT", "ID") == first
            assert_connections(master, 1)

    def test_many_commits_wait_for_them_once(self) -> None:
        with redis_servers.running() as master, replica_of(master), opened(master.url, **CONFIRMED) as client:
            client.send_many([*prepare_all(client, ECHO, "1"), *prepare_all(client, APPEND, "1")])
            with master.client() as other:
                before = other.info("commandstats").get("cmdstat_wait", {}).get("calls", 0)
                calls = [*prepare_all(client, ECHO, "2"), *prepare_all(client, APPEND, "2", "3", "4", commits=True)]
                assert client.send_many(calls) == [b"2", 2, 3, 4]
                assert client.send_many(prepare_all(client, ECHO, "3", "4")) == [b"3", b"4"]
                assert other.info("commandstats")["cmdstat_wait"]["calls"] - before == 1

    def test_of_many_the_commits_have_the_shortfall_as_their_answer(self) -> None:
        with redis_servers.running() as master, replica_of(master) as replica, opened(master.url, **CONFIRMED_SOON) as client:

            def calls() -> list[Call]:
                commits = prepare_all(client, APPEND_ONCE, "1", "2", commits=True)
                foreign = prepare_all(client, APPEND_ONCE, "3", keys=["{test:0}:text"], commits=True)
                return [*prepare_all(client, ECHO, "1"), *commits, *foreign]

            command(client, "SET", "{test:0}:text", "foreign")
            wait_for_replica(master)
            with replica.silent():
                answers = client.send_many(calls())
                assert kinds(answers) == [b"1", StoreUnavailable, StoreUnavailable, StoreError]
                assert "0 replicas confirmed a commit within 0.2 s" in str(answers[1])
                assert answers[1] is not answers[2]
            wait_for_replica(master)
            again = in_the_end(lambda: all_or_unavailable(client.send_many(calls())[:3]))
            assert again == [b"1", b"replay", b"replay"]
            assert_connections(master, 1)

    def test_a_repeat_of_many_waits_for_what_the_first_has_written(self) -> None:
        with (
            redis_servers.running() as master,
            replica_of(master) as replica,
            closing(Proxy(master.url, 6379)) as proxy,
            opened(proxy.url, **CONFIRMED_SOON) as client,
        ):
            in_the_end(lambda: client.run(APPEND_ONCE, [KEY], ["1"], commits=True))
            with replica.silent():
                proxy.swallow(APPEND_ONCE.sha.encode())
                answers = client.send_many(prepare_all(client, APPEND_ONCE, "2", "3", commits=True))
                assert kinds(answers) == [StoreUnavailable] * 2
                assert proxy.swallowed == 1
            assert command(client, "TYPE", "{test:0}:waits") == b"hash"

    def test_a_repeat_waits_for_what_the_first_has_written(self) -> None:
        """On another connection, which has written nothing."""
        with (
            redis_servers.running() as master,
            replica_of(master) as replica,
            closing(Proxy(master.url, 6379)) as proxy,
            opened(proxy.url, **CONFIRMED_SOON) as client,
        ):
            in_the_end(lambda: client.run(APPEND_ONCE, [KEY], ["1"], commits=True))
            with replica.silent():
                proxy.swallow(APPEND_ONCE.sha.encode())
                with pytest.raises(StoreUnavailable, match="0 replicas confirmed"):
                    client.run(APPEND_ONCE, [KEY], ["2"], commits=True)
                assert proxy.swallowed == 1
            assert command(client, "TYPE", "{test:0}:waits") == b"hash"

    def test_a_message_is_handled_once_they_have_its_commit(self) -> None:
        """Else a message whose commit they lack would be acknowledged when it comes again."""
        with (
            redis_servers.running() as master,
            replica_of(master) as replica,
            two_backends(master.url) as (patient, backend),
        ):
            record = start(patient)
            line = entry(record)
            handling = Handling((line.step,), line.message_id)
            with replica.silent():
                with pytest.raises(StoreUnavailable, match="0 replicas confirmed"):
                    backend.sagas.update(record, change(), effects(record, line=line))
                assert found(backend, by_key()).version == 2
                with pytest.raises(StoreUnavailable, match="0 replicas confirmed"):
                    backend.sagas.find(by_key(), handling)
            assert patient.sagas.find(by_key(), handling).handled is not None

    def test_no_relay_gets_a_message_whose_commit_they_lack(self) -> None:
        """It would be out, and a fail-over could lose the commit that decided it."""
        with (
            redis_servers.running() as master,
            replica_of(master) as replica,
            two_backends(master.url) as (patient, backend),
        ):
            with replica.silent():
                with pytest.raises(StoreUnavailable, match="0 replicas confirmed"):
                    backend.sagas.record(effects(None, outgoing(), grace_ms=0))
                with pytest.raises(StoreUnavailable, match="0 replicas confirmed"):
                    backend.outbox.claim_due(RELAY, 10, lease_ms=1)
            wait_until(lambda: len(patient.outbox.claim_due(RELAY, 10, MINUTE)) == 1, "the end of the lease")


class TestSentinel:
    """A master that Sentinels watch."""

    def test_a_fail_over_is_followed(self) -> None:
        options: dict[str, Any] = {**PATIENT, "master_name": "shop", "retries": 100}
        with (
            redis_servers.running() as master,
            replica_of(master),
            redis_servers.sentinel(master, "shop") as sentinel,
            opened(f"sentinel://127.0.0.1:1;sentinel://127.0.0.1:{sentinel.port}/0", **options) as client,
        ):
            with sentinel.client() as asking:
                wait_until(lambda: asking.sentinel_master("shop")["num-slaves"] == 1, "a sentinel that knows the replica")
            client.run(APPEND, [KEY], ["1"])
            with master.client() as asking:
                wait_until(lambda: asking.execute_command("WAIT", 1, 1000), "a replica in step")
            master.kill()
            again = partial(client.run, APPEND_ONCE, [KEY], ["2"])
            assert in_the_end(again, redis_servers.FAIL_OVER_S) in (2, b"replay")
            assert command(client, "LRANGE", KEY, 0, -1) == [b"1", b"2"]

    def test_an_unknown_master_is_an_error_without_secrets(self) -> None:
        with redis_servers.running() as master, redis_servers.sentinel(master, "shop") as sentinel:
            url = f"sentinel://:s3cret@127.0.0.1:{sentinel.port};sentinel://127.0.0.1:1"
            options = {**PATIENT, "master_name": "shoe", "sentinel_kwargs": {"password": "s3cret"}, "retries": 0}
            with opened(url, **options) as client, pytest.raises(StoreUnavailable, match="shoe") as caught:
                echo(client, "1")
            assert "s3cret" not in f"{caught.value}{caught.value.__cause__}"


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[RedisServer]]:
    """A cluster of this module."""
    with redis_servers.cluster() as nodes:
        yield nodes


@pytest.fixture
def cluster(nodes: list[RedisServer]) -> Iterator[ClusterClient]:
    """A client of the cluster that was told one of its nodes, and one that is not there."""
    with opened(f"redis+cluster://127.0.0.1:1,127.0.0.1:{nodes[1].port}") as client:
        assert isinstance(client, ClusterClient)
        yield client


def slot_of(key: str) -> int:
    """Return a key's slot."""
    return int(key_slot(key.encode()))


class Move:
    """A slot's move from one node to another; its keys are not moved, but removed."""

    def __init__(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        self._slot, self._nodes = slot, (source, target)
        ids = [self._on(node, "CLUSTER", "MYID").decode() for node in self._nodes]
        self._set(target, "IMPORTING", ids[0])
        self._set(source, "MIGRATING", ids[1])
        self._target_id = ids[1]

    def finish(self) -> None:
        """Make the target the slot's owner."""
        for node in reversed(self._nodes):
            for key in self._on(node, "CLUSTER", "GETKEYSINSLOT", str(self._slot), "100"):
                with node.client() as client, suppress(redis.ResponseError):
                    client.pipeline(transaction=False).execute_command("ASKING").delete(key).execute()
            self._set(node, "NODE", self._target_id)

    def give_up(self) -> None:
        """Leave the slot where it is."""
        for node in self._nodes:
            self._set(node, "STABLE")

    def _set(self, node: RedisServer, *words: str) -> None:
        self._on(node, "CLUSTER", "SETSLOT", str(self._slot), *words)

    def _on(self, node: RedisServer, *words: str) -> Any:
        with node.client() as client:
            return client.execute_command(*words)


@contextmanager
def moving(nodes: list[RedisServer], key: str) -> Iterator[Move]:
    """Begin to move a key's slot from its owner to the next node; it is back there in the end."""
    slot = slot_of(key)
    source, target = (nodes[(slot * len(nodes) // 16384 + offset) % len(nodes)] for offset in (0, 1))
    move = Move(slot, source, target)
    yield move
    with source.client() as client:
        owner = {first: port for first, last, (_, port, *_), *_ in client.execute_command("CLUSTER", "SLOTS")}.get(slot)
    if owner == target.port:
        Move(slot, target, source).finish()
    else:
        move.give_up()


class TestCluster:
    """A Redis Cluster."""

    def test_calls_go_to_the_node_that_has_the_key(self, cluster: ClusterClient) -> None:
        for number in range(30):
            assert cluster.run(APPEND, [f"{{calls:{number}}}"], ["1"]) == 1
        assert len(cluster.on_masters("PING")) == 3

    def test_a_slot_that_moves_is_followed(self, cluster: ClusterClient, nodes: list[RedisServer]) -> None:
        key = "{moving:0}:key"
        trips: list[str] = []
        cluster.run(APPEND, ["{moving:0}:other"], ["0"])
        cluster.observers.append(trips.append)
        with moving(nodes, key) as move:
            assert cluster.run(APPEND, [key], ["1"]) == 1  # ASK; the script is not known there
            assert cluster.run(APPEND, [key], ["2"]) == 2
            move.finish()
            trips.clear()
            assert cluster.run(APPEND, [key], ["3"]) == 1  # MOVED
            assert cluster.run(APPEND, [key], ["4"]) == 2
            assert len(trips) == 3
        assert cluster.run(APPEND, [key], ["5"]) == 1

    def test_many_calls_make_one_trip_to_each_node(self, cluster: ClusterClient) -> None:
        keys = [f"{{many:{number}}}" for number in range(30)]
        cluster.send_many(prepare_all(cluster, APPEND, *["0"] * 30, keys=keys))
        trips: list[str] = []
        cluster.observers.append(trips.append)
        assert cluster.send_many(prepare_all(cluster, APPEND, *["1"] * 60, keys=keys)) == [2] * 30 + [3] * 30
        assert len(trips) == 3

    def test_of_many_calls_those_of_a_slot_that_moves_follow_it(self, cluster: ClusterClient, nodes: list[RedisServer]) -> None:
        keys = [key, other] = "{moving many:0}:key", "{staying:0}:key"
        cluster.send_many(prepare_all(cluster, APPEND, "0", keys=["{moving many:0}:other"]))
        cluster.run(APPEND, [other], ["0"])
        trips: list[str] = []
        cluster.observers.append(trips.append)
        with moving(nodes, key) as move:
            calls = prepare_all(cluster, APPEND, *["1"] * 8, keys=keys)
            assert cluster.send_many(calls) == [1, 2, 2, 3, 3, 4, 4, 5]  # ASK; the script may be unknown there
            assert cluster.send_many(prepare_all(cluster, APPEND, "2", keys=[key])) == [5]
            move.finish()
            trips.clear()
            assert cluster.send_many(prepare_all(cluster, APPEND, *["3"] * 8, keys=keys)) == [1, 6, 2, 7, 3, 8, 4, 9]  # MOVED
            assert len(trips) <= 3
            trips.clear()
            assert cluster.send_many(prepare_all(cluster, APPEND, *["4"] * 4, keys=[key])) == [5, 6, 7, 8]
            assert len(trips) == 1

    def test_keys_on_both_sides_of_a_move_are_redelivered_later(self, nodes: list[RedisServer]) -> None:
        keys = ["{trying:0}:a", "{trying:0}:b"]
        both = script("return redis.call('RPUSH', KEYS[1], 1) + redis.call('RPUSH', KEYS[2], 1)")
        with opened(f"redis+cluster://127.0.0.1:{nodes[0].port}", retries=2) as cluster:
            cluster.run(APPEND, [keys[0]], ["0"])
            with moving(nodes, keys[0]), pytest.raises(StoreUnavailable, match="Multiple keys request"):
                cluster.run(both, keys, [])
            assert cluster.run(both, keys, []) == 3

    def test_keys_of_several_slots_are_refused(self, cluster: ClusterClient) -> None:
        with pytest.raises(StoreError, match="refused of_the_test") as caught:
            cluster.run(APPEND, ["{a}", "{b}"], ["1"])
        assert not isinstance(caught.value, StoreUnavailable)

    @pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
    def test_interruptions(self, cluster: ClusterClient, alarm: Alarm) -> None:
        interrupt(cluster, alarm, 300)

    def test_a_node_that_is_away_is_an_error_until_it_is_back(self) -> None:
        with redis_servers.cluster() as nodes, opened(f"redis+cluster://127.0.0.1:{nodes[0].port}", retries=2) as client:
            keys = [f"{{{number}}}" for number in range(30)]
            away = [key for key in keys if slot_of(key) * 3 // 16384 == 2]
            for key in keys:
                client.run(APPEND, [key], ["1"])
            nodes[2].kill()
            with pytest.raises(StoreUnavailable):
                client.run(APPEND, [away[0]], ["2"])
            answers = client.send_many(prepare_all(client, APPEND, *["2"] * 30, keys=keys))
            assert [keys[at] for at, answer in enumerate(answers) if isinstance(answer, StoreUnavailable)] == away
            assert answers.count(2) == 30 - len(away)
            nodes[2].start()

            def is_back() -> bool:
                with suppress(StoreUnavailable):
                    return bool(client.run(APPEND, [away[0]], ["3"]))
                return False

            wait_until(is_back, "a cluster that is whole again")


def test_tcp_and_sockets(tmp_path: Any) -> None:
    path = tmp_path / "redis.sock"
    with redis_servers.running(unixsocket=str(path)), opened(f"unix://{path}?db=3") as client:
        assert echo(client, "1") == b"1"
        assert b" db=3 " in command(client, "CLIENT", "LIST")


def test_options_reach_the_connection(shared: RedisServer) -> None:
    options: Mapping[str, object] = {"client_name": "shop", "db": 5, "health_check_interval": 1}
    with opened(shared.url.removesuffix("/0"), **options) as client:
        echo(client, "1")
        assert b" name=shop " in command(client, "CLIENT", "LIST")
        assert b" db=5 " in command(client, "CLIENT", "LIST")
