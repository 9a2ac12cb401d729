"""Two connections to a Redis server: one that takes messages, and one to which the server writes when there are new ones."""

import re
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from hashlib import sha1
from importlib.resources import files
from time import monotonic, time
from typing import Any, Final, NamedTuple

import redis
from redis.exceptions import NoPermissionError, NoScriptError, ResponseError

from celery_sagas.errors import ConfigurationError

#: The most messages that are taken at once, if the consumer sets no limit.
MAX_MESSAGES: Final = 250
#: The bytes of messages after which no more are taken at once.
MAX_BYTES: Final = 4 * 1024 * 1024
#: Seconds after which the lists are read again although the server has written nothing.
RECHECK_S: Final = 1.0
_LOWEST_VERSION: Final = (6, 2)
#: Where Redis writes what has changed: see its documentation of ``CLIENT TRACKING``.
_INVALIDATIONS: Final = "__redis__:invalidate"
_SOURCE: Final = (files("celery_sagas.worker.transport") / "take.lua").read_text("utf-8")
_SHA: Final = sha1(_SOURCE.encode(), usedforsecurity=False).hexdigest()
_GO_BACK: Final = "or name the broker redis://, without the prefix 'sagas+'"
_UPGRADE: Final = f"Use Redis 6.2 or later, {_GO_BACK}"
#: What a user of Redis needs beside the commands of kombu's own transport and of the script.
RIGHTS: Final = "+subscribe +client|tracking +client|caching +script|load +eval +evalsha &__redis__:invalidate"


class Lists(NamedTuple):
    """Redis lists from which messages are taken."""

    keys: Sequence[str]  #: by priority, then by queue
    in_turn: int  #: how many in a row are taken from in turn; 1: each is emptied before the next


class Taken(NamedTuple):
    """A message that was taken from a list."""

    list: int  #: its position among the lists' keys
    tag: str  #: under which it is noted as unacknowledged; empty: it is not noted
    message: bytes


class Receiver:
    """Takes messages from lists, and knows when there may be some.

    The server writes to the second connection when a list changes that the first has read (``CLIENT TRACKING``). It does so once
    for each reading, and only for readings after ``CLIENT CACHING YES``: it writes nothing while messages are waiting.

    Args:
        pool: A redis-py pool of RESP2 connections, of which two are kept.
        noted: The keys of the hash and of the sorted set of unacknowledged messages.

    Raises:
        ConfigurationError: The server is too old or part of a cluster, or it refuses a command.
        redis.ConnectionError: The server does not answer.
    """

    def __init__(self, pool: Any, noted: Sequence[str]) -> None:
        self._noted = noted
        self._were_emptied = True  #: whether the lists were empty after the last messages were taken
        self._is_told = False  #: whether the server writes when there are messages
        self._taken_at = 0.0
        self._clients: list[Any] = [redis.Redis(connection_pool=pool, single_connection_client=True) for _ in range(2)]
        self._commands, self._news = (client.connection for client in self._clients)
        with ExitStack() as stack:
            stack.callback(self.close)
            self._prepare()
            stack.pop_all()

    def _prepare(self) -> None:
        client_id = self._require_server()
        _ask(self._news, "SUBSCRIBE", _INVALIDATIONS)
        _ask(self._commands, "CLIENT", "TRACKING", "ON", "REDIRECT", client_id, "OPTIN", "NOLOOP")
        _ask(self._commands, "SCRIPT", "LOAD", _SOURCE)

    def _require_server(self) -> int:
        """Check what the server is, and return the id of the second connection."""
        try:
            answer = _ask(self._news, "HELLO")
        except ResponseError as exc:
            raise ConfigurationError("the Redis broker does not know HELLO: it is older than 6.2", _UPGRADE) from exc
        server = dict(zip(map(_text, answer[::2]), answer[1::2], strict=False))
        version = _text(server["version"])
        if _numbers(version) < _LOWEST_VERSION:
            raise ConfigurationError(f"the Redis broker is version {version}", _UPGRADE)
        if _text(server["mode"]) == "cluster":
            raise ConfigurationError(
                "the Redis broker is a cluster, which Celery cannot use", "Name a single server, or Sentinels"
            )
        return int(server["id"])

    def fileno(self) -> int:
        """Return the descriptor that is readable when the server has written."""
        return int(_socket(self._news).fileno())

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to take, as far as the server has said."""
        return self._is_told and monotonic() - self._taken_at < RECHECK_S

    def look_again(self) -> None:
        """Take from the lists next time, whatever the server has said."""
        self._is_told = False

    def read_news(self) -> None:
        """Read what the server has written.

        Raises:
            redis.ConnectionError: The connection was lost.
        """
        _socket(self._news)
        self.look_again()
        while self._news.can_read(timeout=0):
            self._news.read_response(disable_decoding=True)

    def take(self, lists: Lists, most: int) -> list[Taken]:
        """Take up to ``most`` messages, and note them as unacknowledged, atomically.

        Raises:
            ConfigurationError: The server refuses the script.
            redis.ConnectionError: The connection was lost; what the script has taken is noted.
        """
        self._taken_at = monotonic()
        is_tracked = self._were_emptied
        keys = [*self._noted, *lists.keys]
        is_empty, *values = self._run([len(keys), *keys, most, MAX_BYTES, time(), lists.in_turn], is_tracked)
        self._were_emptied = bool(is_empty)
        self._is_told = is_tracked and self._were_emptied
        taken = zip(values[::3], values[1::3], values[2::3], strict=True)
        return [Taken(number - len(self._noted) - 1, _text(tag), message) for number, tag, message in taken]

    def _run(self, arguments: Sequence[Any], is_tracked: bool) -> Any:
        before = [("CLIENT", "CACHING", "YES")] if is_tracked else []
        try:
            return _ask_all(self._commands, [*before, ("EVALSHA", _SHA, *arguments)])
        except NoScriptError:
            return _ask_all(self._commands, [*before, ("EVAL", _SOURCE, *arguments)])

    def close(self) -> None:
        """Close both connections."""
        for client in self._clients:
            with suppress(redis.RedisError, OSError):
                client.connection.disconnect()
            client.close()


def _ask(connection: Any, *command: Any) -> Any:
    return _ask_all(connection, [command])


def _ask_all(connection: Any, commands: Sequence[Sequence[Any]]) -> Any:
    """Send commands together, and return the answer to the last.

    A connection that was lost is not opened again, as redis-py would: what the server has been told of it is lost with it.
    """
    _socket(connection)
    connection.send_packed_command(connection.pack_commands(commands), check_health=False)
    try:
        for _ in commands:
            answer = connection.read_response()
    except NoPermissionError as exc:
        raise ConfigurationError(f"the Redis broker refuses a command: {exc}", f"Allow its user {RIGHTS}; {_GO_BACK}") from exc
    return answer


def _socket(connection: Any) -> Any:
    if connection is None or connection._sock is None:
        raise redis.ConnectionError("The connection to the Redis broker was lost.")
    return connection._sock


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
