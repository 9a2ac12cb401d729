"""Take from one shard after the other, so that an unresponsive server does not hold up the others."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import TimeoutError as NoAnswer

from celery_sagas.errors import StoreError, StoreUnavailable
from celery_sagas.stores.redis.connection.client import Client
from celery_sagas.stores.redis.keys import Shard

Taken = TypeVar("Taken")

#: Seconds for which a server that gave no answer is not asked again, unless no other is left.
_PASSED_OVER_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class _Unresponsive:
    """A server's failure to answer."""

    error: StoreUnavailable
    until: float  #: when it is asked again


class Turns:
    """Calls shards in turn, and remembers the unresponsive servers.

    Args:
        client: Knows the servers.
        clock: Returns seconds, of any beginning.
    """

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        #: By what ``Client.holder_of`` returns.
        self._unresponsive: dict[object, _Unresponsive] = {}

    def take(self, shards: Sequence[Shard], limit: int, take: Callable[[Shard, int], Iterable[list[Taken]]]) -> list[Taken]:
        """Take at most ``limit`` things of the shards, which are asked in this order.

        What was taken is returned even if a shard failed. It takes little longer than the option ``total_timeout`` says: a lease
        that has begun must not be spent on waiting.

        Args:
            shards: To be asked.
            limit: How many are taken at most.
            take: Takes at most a number of things of one shard, and yields them part by part.

        Raises:
            StoreError: A shard failed, or belongs to a server that was unresponsive a moment ago, and the others had nothing.
        """
        taken: list[Taken] = []
        failure: StoreError | None = None
        deadline = self._clock() + self._client.total_timeout
        self._ask_again_if_all_are_unresponsive(shards)
        for shard in shards:
            server = self._client.holder_of(shard.rows[0])  # before the call, which may lose sight of it
            if unresponsive := self._unresponsive_server_of(shard):
                failure = unresponsive.error.with_traceback(None)  # which would grow each time that it is raised
                continue
            try:
                for part in take(shard, limit - len(taken)):
                    taken += part
            except StoreError as exc:
                failure = exc
                self._note(server, exc)
                if taken and isinstance(exc, StoreUnavailable):
                    break
            if len(taken) >= limit or self._clock() >= deadline:
                break
        if failure and not taken:
            raise failure
        return taken

    def _unresponsive_server_of(self, shard: Shard) -> _Unresponsive | None:
        unresponsive = self._unresponsive.get(self._client.holder_of(shard.rows[0]))
        return unresponsive if unresponsive and self._clock() < unresponsive.until else None

    def _ask_again_if_all_are_unresponsive(self, shards: Sequence[Shard]) -> None:
        if all(map(self._unresponsive_server_of, shards)):
            self._unresponsive.clear()

    def _note(self, server: object, error: StoreError) -> None:
        """Remember a server that gave no answer; a refusal costs no time."""
        if isinstance(error, StoreUnavailable) and isinstance(error.__cause__, LostConnection | NoAnswer):
            self._unresponsive[server] = _Unresponsive(error, self._clock() + _PASSED_OVER_S)
