"""The base of the stores in Redis: calls of scripts that answer a repeat as they answered the first time."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from celery_sagas.errors import StoreError
from celery_sagas.stores.redis.connection.calls import Call
from celery_sagas.stores.redis.connection.client import Client
from celery_sagas.stores.redis.connection.connections import Word
from celery_sagas.stores.redis.connection.scripts import Script
from celery_sagas.stores.redis.keys import answer_to, new_call
from celery_sagas.stores.redis.placement import Placement

#: Returns the argument ``now`` of the scripts: milliseconds since the epoch, or an empty text for the server's clock.
Now: TypeAlias = Callable[[], int | str]


class Prepared(NamedTuple):
    """One call of a port: what is sent, and how the reply is read."""

    call: Call
    #: Returns what the port returns, or raises what it raises.
    read: Callable[[Any], Any]


class RedisStore:
    """A store that runs scripts.

    Args:
        client: Runs them.
        placement: Knows their keys.
        now: The time, for the scripts.
    """

    def __init__(self, client: Client, placement: Placement, now: Now) -> None:
        self._client = client
        self._placement = placement
        self._now = now

    def _perform(self, prepared: Prepared) -> Any:
        """Send one call, and return what the port returns."""
        return prepared.read(self._client.send(prepared.call))

    def _send_all(self, calls: Sequence[Call]) -> list[Any]:
        """Send calls, in one trip to each server; return the replies, or raise the first error."""
        answers = self._client.send_many(calls)
        for answer in answers:
            if isinstance(answer, StoreError):
                raise answer
        return answers

    def _run_once(self, script: Script, tag: str, keys: Sequence[str], args: Sequence[Word], *, commits: bool = False) -> Any:
        """Run a script that keeps its answer for a repeat of the call.

        Args:
            script: Its first argument is the call, and its last key the answer of the call.
            tag: The hash tag of the keys.
            keys: The other keys.
            args: The other arguments.
            commits: See ``Client.run``.
        """
        return self._client.send(self._prepare_once(script, tag, keys, args, commits=commits))

    def _prepare_once(
        self, script: Script, tag: str, keys: Sequence[str], args: Sequence[Word], *, commits: bool = False
    ) -> Call:
        """Prepare what ``_run_once`` sends."""
        call = new_call()
        return self._client.prepare(script, keys, [call, *args], answer=answer_to(call, tag), commits=commits)

    def _purge(self, script: Script, tag: str, keys: Sequence[str], args: Sequence[Word], *, limit: int, at_once: int) -> int:
        """Run a script until it has removed ``limit`` things, or finds no more; return how many were removed.

        Args:
            script: Its last argument is how many it removes at most.
            tag: The hash tag of the keys.
            keys: The keys.
            args: The arguments between the call and the last one.
            limit: How many are removed at most.
            at_once: How many one call removes at most: a script blocks all other clients.
        """
        purged = 0
        while (most := min(limit - purged, at_once)) > 0:
            removed: int = self._run_once(script, tag, keys, [*args, most])
            purged += removed
            if removed < most:
                break
        return purged
