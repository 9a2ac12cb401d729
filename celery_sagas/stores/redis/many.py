"""The operations of several messages at once: those that are one script share a trip to each server."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from celery_sagas.errors import StoreError, StoreUnavailable
from celery_sagas.stores.operations import CountDelivery, Delete, Find, Insert, Lock, Update, Write
from celery_sagas.stores.ports import Operation
from celery_sagas.stores.records import Found
from celery_sagas.stores.redis.connection.calls import Call
from celery_sagas.stores.redis.connection.client import Client
from celery_sagas.stores.redis.deliveries import RedisDeliveries
from celery_sagas.stores.redis.placement import Placement
from celery_sagas.stores.redis.sagas import RedisSagaStore
from celery_sagas.stores.redis.store import Now, Prepared

#: Look-ups whose shard could not be found, by what it depends on: another try would take as long.
_Failed: TypeAlias = dict[object, StoreUnavailable]


class Operations:
    """Performs operations together.

    Args:
        client: Sends their calls.
        placement: Knows their keys.
        now: The time, for the scripts.
        one_by_one: Performs those that are more than one script.
    """

    def __init__(
        self, client: Client, placement: Placement, now: Now, one_by_one: Callable[[Sequence[Operation]], list[Any]]
    ) -> None:
        self._client = client
        self._placement = placement
        self._one_by_one = one_by_one
        checked = placement.without_checks()
        self._sagas, deliveries = RedisSagaStore(client, checked, now), RedisDeliveries(client, checked, now)
        self._prepare: Mapping[type[Any], Callable[..., Prepared]] = {
            Find: self._sagas.prepare_find,
            Insert: self._sagas.prepare_insert,
            Update: self._sagas.prepare_update,
            Delete: self._sagas.prepare_delete,
            Write: self._sagas.prepare_record,
            Lock: self._sagas.prepare_lock,
            CountDelivery: deliveries.prepare_count,
        }

    def perform(self, operations: Sequence[Operation]) -> list[Any]:
        """Perform operations; see ``Backend.many``."""
        try:
            self._placement.check()
        except StoreError as exc:
            return [exc] * len(operations)
        failed: _Failed = {}
        answers = [self._prepared(operation, failed) for operation in operations]
        prepared = {position: each for position, each in enumerate(answers) if isinstance(each, Prepared)}
        replies = self._client.send_many([each.call for each in prepared.values()])
        waits: dict[int, Call] = {}
        for (position, each), reply in zip(prepared.items(), replies, strict=True):
            answer = answers[position] = _read(each, reply)
            if isinstance(answer, Found) and (wait := self._sagas.prepare_wait(each.call, answer)):
                waits[position] = wait
        for position, reply in zip(waits, self._client.send_many(list(waits.values())), strict=True):
            if isinstance(reply, StoreError):
                answers[position] = reply
        return answers

    def _prepared(self, operation: Any, failed: _Failed) -> Any:
        """Return an operation that is ready to be sent, or its answer."""
        prepare = self._prepare.get(type(operation))
        if not prepare:
            return self._one_by_one([operation])[0]
        looked_up = (operation.lookup.names, operation.lookup.has_alternate_keys) if isinstance(operation, Find) else None
        if looked_up in failed:
            return failed[looked_up]
        try:
            return prepare(*operation)
        except StoreUnavailable as exc:
            if looked_up:
                failed[looked_up] = exc
            return exc
        except StoreError as exc:
            return exc


def _read(prepared: Prepared, reply: Any) -> Any:
    if isinstance(reply, StoreError):
        return reply
    try:
        return prepared.read(reply)
    except StoreError as exc:
        return exc
