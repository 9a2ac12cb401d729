"""Two connections to a Redis server: one that takes messages, and one to which the server writes when there are new ones."""

import os
import re
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from hashlib import sha1
from importlib.resources import files
from random import uniform
from time import monotonic, time
from typing import Any, Final, NamedTuple

import redis
from redis.exceptions import NoScriptError, ResponseError

from celery_sagas.errors import ConfigurationError
from celery_sagas.worker.transport.away import is_away

#: The most messages that are taken at once, if the consumer sets no limit.
MAX_MESSAGES: Final = 250
#: How many connections a receiver has.
CONNECTIONS: Final = 2
#: The bytes of messages after which no more are taken at once.
MAX_BYTES: Final = 4 * 1024 * 1024
#: Seconds after which the lists are read again although the server has written nothing.
RECHECK_S: Final = 1.0
#: How often in a row the server may tell of messages that others take, until a receiver waits before it looks.
_PATIENCE: Final = 2
#: By how much the wait grows with each further time, and its longest; it is a random part of this. Seconds.
_STEP_S, _LONGEST_S = 0.01, 0.1
_LOWEST_VERSION: Final = (6, 2)
#: The channel to which Redis writes the names of keys that have changed: see its documentation of ``CLIENT TRACKING``.
_INVALIDATIONS: Final = "__redis__:invalidate"
_SOURCE: Final = (files("celery_sagas.worker.transport") / "take.lua").read_text("utf-8")
_SHA: Final = sha1(_SOURCE.encode(), usedforsecurity=False).hexdigest()
#: Has the server write once to the other connection when one of the keys changes that the next command reads.
_TRACK_NEXT: Final = ("CLIENT", "CACHING", "YES")
_GO_BACK: Final = "or name the broker redis://, without the prefix 'sagas-'"
_UPGRADE: Final = f"Use Redis 6.2 or later, {_GO_BACK}"
#: What a user of Redis needs beside the rights for kombu's own transport.
RIGHTS: Final = (
    "+subscribe +client|tracking +client|caching +script|load +eval +evalsha +exists +lindex +hsetnx +rpop +zadd +zrem +hdel "
    "&__redis__:invalidate"
)
#: How Redis says that it refuses a command, also within a script.
_REFUSAL: Final = re.compile("NOPERM|no permission|can't run this command", re.IGNORECASE)


class Lists(NamedTuple):
    """Redis lists from which messages are taken."""

    keys: Sequence[str]  #: by priority, then by queue
    queues: Sequence[str]
    in_turn: int  #: how many in a row are taken from in turn; 1: each is emptied before the next


class Taken(NamedTuple):
    """A message that was taken from a list."""

    queue: str
    tag: str  #: under which it is noted as unacknowledged
    message: bytes


class Answer(NamedTuple):
    """The messages that were taken, and an error that must be raised once they are safe."""

    messages: Sequence[Taken]
    error: Exception | None


class Receiver:
    """Takes messages from lists, and knows when there may be more.

    After each taking it reads whether there are messages, by a command that the server tracks: if one of the lists changes, it
    writes to the second connection. It does so for all receivers, of which one takes the message: those that have come too late a
    few times wait a little before they look, and are told of nothing else meanwhile.

    Attributes:
        looks_at: When it looks for what it was told of, on the monotonic clock; 0 if it was told of nothing.

    Args:
        pool: A redis-py pool of RESP2 connections, of which two are kept.
        noted: The keys of the hash and of the sorted set of unacknowledged messages.

    Raises:
        ConfigurationError: The server is too old or part of a cluster, or it refuses a command.
        redis.ConnectionError: The server does not answer.
    """

    def __init__(self, pool: Any, noted: Sequence[str]) -> None:
        self.opened_at = monotonic()
        self._noted = noted
        self._is_empty = False  #: whether the lists were, and the server has not written since
        self._taken_at = self.looks_at = 0.0
        self._misses = 0  #: how often in a row it was told of messages, and found none
        self._clients: list[Any] = [redis.Redis(connection_pool=pool, single_connection_client=True) for _ in range(CONNECTIONS)]
        self._commands, self._invalidations = (client.connection for client in self._clients)
        self._fds: list[int] = []
        with ExitStack() as stack:
            stack.callback(self.close)
            self._prepare()
            for connection in (self._invalidations, self._commands):
                self._fds.append(os.dup(_socket(connection).fileno()))
            stack.pop_all()

    def _prepare(self) -> None:
        client_id = self._require_server()
        _ask(self._invalidations, "SUBSCRIBE", _INVALIDATIONS)
        _ask(self._commands, "CLIENT", "TRACKING", "ON", "REDIRECT", client_id, "OPTIN", "NOLOOP")
        _ask(self._commands, *_TRACK_NEXT)
        _ask(self._commands, "EXISTS", self._noted[0])
        _ask(self._commands, "SCRIPT", "LOAD", _SOURCE)

    def _require_server(self) -> int:
        """Check what the server is, and return the id of the second connection."""
        try:
            answer = _ask(self._invalidations, "HELLO")
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

    def filenos(self) -> list[int]:
        """Return the descriptors that are readable when the server has written, or has closed a connection.

        They are open until ``close``, where redis-py closes its own upon an error: a poller that watches a descriptor cannot
        forget it then, and goes on to report it while a forked process has the connection open.
        """
        return list(self._fds)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to take, as far as the server has said."""
        now = monotonic()
        return (self._is_empty or now < self.looks_at) and now - self._taken_at < RECHECK_S

    @property
    def is_lost(self) -> bool:
        """Whether the connection that takes messages was closed, such as one that was idle for too long."""
        try:
            return bool(_socket(self._commands) and self._commands.can_read(timeout=0))  # nothing comes unasked
        except (redis.RedisError, OSError):
            return True

    def look_again(self) -> None:
        """Read the lists next time, whatever the server has said."""
        self._is_empty, self.looks_at = False, 0.0

    def read_invalidations(self) -> None:
        """Read what the server has written.

        Raises:
            redis.ConnectionError: A connection was lost.
        """
        _socket(self._invalidations)
        if self.is_lost:
            raise redis.ConnectionError("The connection that takes messages was closed.")
        if self._is_empty:
            self._is_empty, self.looks_at = False, monotonic() + self._wait_s()
        while self._invalidations.can_read(timeout=0):
            self._invalidations.read_response(disable_decoding=True)

    def _wait_s(self) -> float:
        return uniform(0, min(max(self._misses - _PATIENCE, 0) * _STEP_S, _LONGEST_S))

    def take(self, lists: Lists, most: int) -> Answer:
        """Take up to ``most`` messages, and note them as unacknowledged, atomically.

        Raises:
            ConfigurationError: The server refuses the script.
            redis.ConnectionError: The connection was lost; what the script has taken is noted.
        """
        self._taken_at = monotonic()
        keys = [*self._noted, *lists.keys]
        arguments = [len(keys), *keys, most, MAX_BYTES, time(), lists.in_turn, *lists.queues]
        script, _, filled = self._run(arguments, lists.keys)
        self._is_empty = filled == 0
        failure, *values = script
        taken = zip(values[::3], values[1::3], values[2::3], strict=True)
        queues, first = lists.queues, len(self._noted) + 1
        messages = [Taken(queues[(number - first) % len(queues)], _text(tag), message) for number, tag, message in taken]
        self._misses = 0 if messages else self._misses + bool(self.looks_at)
        self.looks_at = 0.0
        error = filled if isinstance(filled, Exception) else _error_of(ResponseError(_text(failure))) if failure else None
        return Answer(messages, error)

    def _run(self, arguments: Sequence[Any], keys: Sequence[str]) -> list[Any]:
        after = [_TRACK_NEXT, ("EXISTS", *keys)]
        try:
            return _ask_all(self._commands, [("EVALSHA", _SHA, *arguments), *after])
        except NoScriptError:
            return _ask_all(self._commands, [("EVAL", _SOURCE, *arguments), *after])

    def close(self) -> None:
        """Close both connections."""
        for client in self._clients:
            with suppress(redis.RedisError, OSError):
                client.connection.disconnect()
            client.close()
        while self._fds:
            os.close(self._fds.pop())


def _ask(connection: Any, *command: Any) -> Any:
    return _ask_all(connection, [command])[0]


def _ask_all(connection: Any, commands: Sequence[Sequence[Any]]) -> list[Any]:
    """Send commands together, and return their answers; an error is raised if it is the first one's.

    A connection that was lost is not opened again, as redis-py would: what the server has been told of it is lost with it.
    """
    _socket(connection)
    connection.send_packed_command(connection.pack_commands(commands), check_health=False)
    answers = [_answer_of(connection) for _ in commands]
    if isinstance(answers[0], Exception):
        raise answers[0]
    return answers


def _answer_of(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as exc:
        return _error_of(exc)


def _error_of(answer: ResponseError) -> Exception:
    """Return what to raise for an error of the server."""
    if _REFUSAL.search(str(answer)):
        return _refused(answer)
    return redis.ConnectionError(f"The Redis broker serves nobody for now: {answer}") if is_away(answer) else answer


def _refused(reason: object) -> ConfigurationError:
    return ConfigurationError(f"the Redis broker refuses a command: {reason}", f"Allow its user {RIGHTS}; {_GO_BACK}")


def _socket(connection: Any) -> Any:
    if connection is None or connection._sock is None:
        raise redis.ConnectionError("The connection over which messages are received was closed.")
    return connection._sock


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
