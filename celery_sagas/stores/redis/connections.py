"""The connections of one process to one server, and what is said over them."""

import math
import os
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Final, TypeAlias
from weakref import WeakSet

from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as NoAnswer

from celery_sagas.pool import Pool
from celery_sagas.stores.redis.location import Address, Location
from celery_sagas.stores.redis.options import Options, connection_arguments, uses_tls

Word: TypeAlias = str | int | bytes
#: Tells where to connect, before each new connection.
Resolve: TypeAlias = Callable[[], Address]

_TIMEOUTS: Final = ("socket_timeout", "socket_connect_timeout")
#: The beginning of a word that is shorter than this, by its length: formatting it takes longer than anything else here.
_LONG: Final = 512
#: A call with more keys than these is about many groups, which hardly ever come together again.
_USUAL_KEYS: Final = 32
_HEADS: Final = tuple(b"\r\n$%d\r\n" % length for length in range(_LONG))


def pack(words: Sequence[Word]) -> bytes:
    """Return a command as it is sent; redis-py's own packing takes three times as long."""
    return b"*%d%b\r\n" % (len(words), _pack(words))


def pack_call(sha: str, keys: Sequence[str], args: Sequence[Word], own_key: str = "", usual: tuple[Word, ...] = ()) -> bytes:
    """Return the call of a script as it is sent.

    Args:
        sha: Of the script.
        keys: Those that other calls of the script have too.
        args: The arguments.
        own_key: A last key, which no other call has; there are no usual arguments then.
        usual: The arguments before these, if other calls have them too.
    """
    rest, number = [own_key, *args] if own_key else args, len(keys) + bool(own_key)
    if len(keys) <= _USUAL_KEYS:
        beginning = _beginning(sha, number, (*keys, *usual))
    else:
        beginning = _pack(("EVALSHA", sha, number, *keys, *usual))
    return b"*%d%b%b\r\n" % (3 + len(keys) + len(usual) + len(rest), beginning, _pack(rest))


@lru_cache(maxsize=1024)
def _beginning(sha: str, number: int, words: tuple[Word, ...]) -> bytes:
    """Return what is the same for each message of a saga."""
    return _pack(("EVALSHA", sha, number, *words))


def _pack(words: Sequence[Word]) -> bytes:
    """Return words, each behind the end of what comes before it."""
    pieces = []
    for word in words:
        piece = word if isinstance(word, bytes) else word.encode() if isinstance(word, str) else b"%d" % word
        pieces.append(_HEADS[len(piece)] if len(piece) < _LONG else b"\r\n$%d\r\n" % len(piece))
        pieces.append(piece)
    return b"".join(pieces)


def always(address: Address) -> Resolve:
    """Return what tells one address."""
    return lambda: address


class OpenConnection:
    """A connection, and what decides whether it can be used again."""

    __slots__ = ("__weakref__", "connection", "era", "is_lasting")

    def __init__(self, connection: Any, era: object, *, is_lasting: bool) -> None:
        self.connection = connection
        self.era = era
        self.is_lasting = is_lasting  #: whether it has the time-outs of the options


class Server:
    """One server, as one process sees it.

    A connection comes back to the pool only once each of its replies has been read. If anything else happens, a time limit that
    strikes in the middle included, it is closed: nobody knows what it would answer to the next call.

    Args:
        resolve: Tells the server's address; not called for one behind a socket.
        location: How to connect.
        options: The limits.
    """

    def __init__(self, resolve: Resolve, location: Location, options: Options) -> None:
        self._resolve = resolve
        self._path = location.path
        self._make_one = _maker(options, location)
        self._arguments = connection_arguments(options, location)
        self._limit = options.max_connections
        self._patience = options.total_timeout
        self.forget()
        _servers.add(self)

    def forget(self) -> None:
        """Leave the connections to the process that this one was forked from."""
        self.pool: Pool[OpenConnection] = Pool(self._limit)
        self._era = object()  #: Ends when a connection was lost: those that were made in another one are closed.

    def ask(self, commands: Sequence[bytes], timeout: float = math.inf) -> list[Any]:
        """Send packed commands in one trip; return a reply for each, which is a ``ResponseError`` where it was refused.

        Args:
            commands: As ``pack`` returns them.
            timeout: Seconds that connecting may take, and each reply, if the options allow more.
        """
        pool = self.pool
        opened = self._borrow(timeout)
        connection, is_sound = opened.connection, False
        try:
            connection.send_packed_command(commands)
            replies = [_reply(connection) for _ in commands]
            is_sound = opened.is_lasting
        except (LostConnection, NoAnswer):
            self._drop(opened.era)
            raise
        finally:
            if not (is_sound and opened.era is self._era and pool.give_back(opened)):
                connection.disconnect()
                pool.forget(opened)
            elif opened.era is not self._era:  # by now
                self._close_idle()
        return replies

    def _borrow(self, timeout: float) -> OpenConnection:
        pool = self.pool
        while opened := pool.borrow(partial(self._make, timeout), min(timeout, self._patience)):
            if opened.era is self._era:
                return opened
            opened.connection.disconnect()
            pool.forget(opened)
        raise NoAnswer(f"all {self._limit} connections are in use: raise max_connections in saga_backend_options")

    def drop(self) -> None:
        """Close the idle connections now, and the lent ones when they come back."""
        self._drop(self._era)

    def _drop(self, era: object) -> None:
        """Drop the connections, unless another thread has: where one was lost, the others were."""
        if self._era is era:
            self._era = object()
            self._close_idle()

    def _close_idle(self) -> None:
        for opened in self.pool.drain():
            opened.connection.disconnect()

    def _make(self, timeout: float) -> OpenConnection:
        """Return a connection; sending connects it."""
        era = self._era
        short = {name: timeout for name in _TIMEOUTS if self._arguments[name] > timeout}
        where = {"path": self._path} if self._path else dict(zip(("host", "port"), self._resolve(), strict=True))
        return OpenConnection(self._make_one(**self._arguments | short | where), era, is_lasting=not short)


def _maker(options: Options, location: Location) -> Callable[..., Any]:
    if location.path:
        return UnixDomainSocketConnection
    return SSLConnection if uses_tls(options, location) else Connection


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as exc:
        return exc


def _forget() -> None:
    for server in list(_servers):
        server.forget()


_servers: WeakSet[Server] = WeakSet()
os.register_at_fork(after_in_child=_forget)
