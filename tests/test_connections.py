"""Connections that stay open between two uses, what interrupts a use, and what is written over one."""

import gc
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count

import pytest

from celery_sagas.connections import IdleConnections, OnFailure, hold_packets
from tests.waiting import DEADLINE_S


class Connection:
    """Knows whether it was closed."""

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class Interruption(BaseException):
    """A time limit that strikes."""


@pytest.fixture
def connections() -> IdleConnections[Connection]:
    return IdleConnections(Connection.close)


def test_there_is_none_at_first(connections: IdleConnections[Connection]) -> None:
    assert connections.check_out() is None
    assert connections.idle == 0


def test_the_one_that_was_used_last_is_used_next(connections: IdleConnections[Connection]) -> None:
    first, second = Connection(), Connection()
    connections.check_in(second)
    connections.check_in(first)
    assert connections.idle == 2
    assert [connections.check_out() for _ in range(3)] == [first, second, None]
    assert (first.closed, second.closed) == (0, 0)


def test_what_a_burst_has_opened_is_closed_but_for_some() -> None:
    connections = IdleConnections(Connection.close, most=2)
    burst = [Connection() for _ in range(4)]
    for connection in burst:
        connections.check_in(connection)
    assert connections.idle == 2
    assert [connection.closed for connection in burst] == [0, 0, 1, 1]


def test_one_in_use_is_nobody_elses(connections: IdleConnections[Connection]) -> None:
    """A use may begin within another one."""
    connections.check_in(Connection())
    assert connections.check_out()
    assert connections.check_out() is None


def test_idle_ones_are_closed_and_others_come_back(connections: IdleConnections[Connection]) -> None:
    idle, used = Connection(), Connection()
    connections.check_in(idle)
    connections.close_idle()
    connections.check_in(used)
    assert (idle.closed, used.closed, connections.idle) == (1, 0, 1)


def test_nothing_is_kept_after_the_end(connections: IdleConnections[Connection]) -> None:
    idle, used = Connection(), Connection()
    connections.check_in(idle)
    connections.close()
    connections.check_in(used)
    assert (idle.closed, used.closed, connections.idle) == (1, 1, 0)


def test_child_neither_uses_nor_closes_its_parents(connections: IdleConnections[Connection]) -> None:
    """Nor when it collects its garbage."""
    closed: list[str] = []

    class Shared(Connection):
        def close(self) -> None:
            closed.append("shared")

        __del__ = close

    connections.check_in(Shared())
    child = os.fork()
    if not child:
        with suppress(BaseException):
            assert connections.check_out() is None
            connections.check_in(Connection())
            connections.close()
            del connections
            gc.collect()
            os._exit(len(closed))
        os._exit(-1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert isinstance(connections.check_out(), Shared)


@pytest.mark.parametrize("error", [OSError, Interruption])
def test_failure_undoes(error: type[BaseException]) -> None:
    connection = Connection()
    with pytest.raises(error), OnFailure(connection.close):
        raise error
    assert connection.closed == 1


def test_nothing_is_undone_without_a_failure() -> None:
    connection = Connection()
    with OnFailure(connection.close):
        pass
    assert connection.closed == 0


class TestThreads:
    """Many threads that use connections at once."""

    THREADS = 8

    def test_each_connection_has_one_user(self, connections: IdleConnections[Connection]) -> None:
        users: dict[Connection, int] = {}
        made = count()

        def use(thread: int) -> None:
            for _ in range(1_000):
                connection = connections.check_out()
                if connection is None:
                    next(made)
                    connection = Connection()
                assert users.setdefault(connection, thread) == thread
                time.sleep(0)
                assert users.pop(connection) == thread
                connections.check_in(connection)

        with ThreadPoolExecutor(self.THREADS) as threads:
            list(threads.map(use, range(self.THREADS), timeout=DEADLINE_S))
        assert connections.idle == next(made) <= self.THREADS


class TestHoldingPackets:
    """Only Linux can."""

    def test_a_socket_that_holds_packets(self) -> None:
        cork = getattr(socket, "TCP_CORK", None)
        with socket.socket() as sock:
            for is_held in (True, False):
                hold_packets(sock, is_held)
                assert cork is None or sock.getsockopt(socket.IPPROTO_TCP, cork) == is_held

    @pytest.mark.parametrize("make", [lambda: None, lambda: socket.socket(socket.AF_UNIX), lambda: closed(socket.socket())])
    def test_one_that_cannot(self, make: Callable[[], socket.socket | None]) -> None:
        """It has none, is local, or was closed."""
        sock = make()
        hold_packets(sock, True)
        if sock is not None:
            sock.close()


def closed(sock: socket.socket) -> socket.socket:
    """Return a socket that was closed."""
    sock.close()
    return sock
