"""The connections of one process to one server, and the commands sent over them."""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as NoAnswer

from celery_sagas.connections import IdleConnections, OnFailure
from celery_sagas.stores.redis.connection.location import Endpoint, RedisLocation
from celery_sagas.stores.redis.connection.options import Options, connection_arguments, uses_tls

Word: TypeAlias = str | int | bytes
#: Returns where to connect, before each new connection.
Resolve: TypeAlias = Callable[[], Endpoint]

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
    """Return the part that is the same for each message of a saga."""
    return _pack(("EVALSHA", sha, number, *words))


def _pack(words: Sequence[Word]) -> bytes:
    """Return words, each behind the end of what comes before it."""
    pieces = []
    for word in words:
        piece = word if isinstance(word, bytes) else word.encode() if isinstance(word, str) else b"%d" % word
        pieces.append(_HEADS[len(piece)] if len(piece) < _LONG else b"\r\n$%d\r\n" % len(piece))
        pieces.append(piece)
    return b"".join(pieces)


def always(address: Endpoint) -> Resolve:
    """Return a ``Resolve`` that always returns one address."""
    return lambda: address


class Server:
    """One server, as one process sees it.

    A connection is used again only once each of its replies has been read. If anything else happens, a time limit that strikes in
    the middle included, it is closed: its reply to the next call would be unpredictable.

    Args:
        resolve: Returns the server's address; not called for one behind a socket.
        location: How to connect.
        options: The limits.
    """

    def __init__(self, resolve: Resolve, location: RedisLocation, options: Options) -> None:
        self._resolve = resolve
        self._path = location.path
        self._make_one = _maker(options, location)
        self._arguments = connection_arguments(options, location)
        self.connections: IdleConnections[Any] = IdleConnections(_disconnect)

    def ask(self, commands: Sequence[bytes], timeout: float = math.inf) -> list[Any]:
        """Send packed commands in one trip; return a reply for each, which is a ``ResponseError`` where it was refused.

        Args:
            commands: As ``pack`` returns them.
            timeout: Seconds that connecting may take, and each reply, if the options allow more.
        """
        short: dict[str, float] = {}
        connection = self.connections.check_out()
        if connection is None:
            short = {name: timeout for name in _TIMEOUTS if self._arguments[name] > timeout}
            connection = self._make(short)
        with OnFailure(connection.disconnect):
            try:
                connection.send_packed_command([b"".join(commands)])  # redis-py sends each by itself
                replies = [_reply(connection) for _ in commands]
            except (LostConnection, NoAnswer):
                self.connections.close_idle()  # where one was lost, most often the others were
                raise
        if short:
            connection.disconnect()
        else:
            self.connections.check_in(connection)
        return replies

    def _make(self, short: dict[str, float]) -> Any:
        """Return a connection, with shorter time-outs than the options say; sending connects it."""
        where = {"path": self._path} if self._path else dict(zip(("host", "port"), self._resolve(), strict=True))
        return self._make_one(**self._arguments | short | where)


def _disconnect(connection: Any) -> None:
    connection.disconnect()


def _maker(options: Options, location: RedisLocation) -> Callable[..., Any]:
    if location.path:
        return UnixDomainSocketConnection
    return SSLConnection if uses_tls(options, location) else Connection


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as exc:
        return exc
