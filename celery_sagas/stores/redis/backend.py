"""The backend in Redis: its ports over one client."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from celery_sagas.errors import StoreUnavailable
from celery_sagas.stores.health import Remark
from celery_sagas.stores.ports import Backend, Operation
from celery_sagas.stores.redis.aggregators.aggregates import RedisAggregateStore
from celery_sagas.stores.redis.aggregators.buffers import RedisBuffers
from celery_sagas.stores.redis.audit import RedisAudit
from celery_sagas.stores.redis.checks import check_servers
from celery_sagas.stores.redis.connection.client import Client
from celery_sagas.stores.redis.connection.cluster import ClusterClient
from celery_sagas.stores.redis.connection.connections import always
from celery_sagas.stores.redis.connection.location import RedisLocation, Topology, locate
from celery_sagas.stores.redis.connection.options import Options, read_options
from celery_sagas.stores.redis.connection.sentinel import master_of
from celery_sagas.stores.redis.dead_letters import RedisDeadLetters
from celery_sagas.stores.redis.deliveries import RedisDeliveries
from celery_sagas.stores.redis.health import health_of
from celery_sagas.stores.redis.instances import RedisInstances
from celery_sagas.stores.redis.journal import RedisJournal
from celery_sagas.stores.redis.many import Operations
from celery_sagas.stores.redis.outbox import RedisOutbox
from celery_sagas.stores.redis.placement import LAYOUT, Placement
from celery_sagas.stores.redis.sagas import RedisSagaStore
from celery_sagas.stores.redis.store import Now
from celery_sagas.stores.redis.switches import RedisSwitches


class RedisBackend(Backend):
    """One backend in a Redis server, in the master that Sentinels watch, or in a Redis Cluster.

    Nothing is connected before the first operation.

    Args:
        url: As Celery and redis-py take it: ``redis://``, ``rediss://``, ``unix://``, ``redis+socket://``, ``sentinel://``,
            ``redis+cluster://`` or ``rediss+cluster://``.
        prefix: Partitions the keys.
        options: Those of ``celery_sagas.stores.redis.connection.options``.
        clock: Returns the time in milliseconds since the epoch; the server's if left out.
    """

    #: A day: everything is kept in memory.
    journal_retention_s = 86_400.0

    def __init__(
        self, url: str, *, prefix: str, options: Mapping[str, object] | None = None, clock: Callable[[], int] | None = None
    ) -> None:
        location = locate(url)
        self.url = location.shown
        self.options = read_options(options or {}, location)
        self.client = open_client(location, self.options)
        self._kind = location.kind
        self._placement = Placement(self.client, prefix, self.options.shards)
        now: Now = clock or (lambda: "")  # the server's
        self.sagas = RedisSagaStore(self.client, self._placement, now)
        self.outbox = RedisOutbox(self.client, self._placement, now)
        self.journal = RedisJournal(self.client, self._placement, now)
        self.deliveries = RedisDeliveries(self.client, self._placement, now)
        self.dead = RedisDeadLetters(self.client, self._placement, now)
        self.aggregates = RedisAggregateStore(self.client, self._placement, now)
        self.buffers = RedisBuffers(self.client, self._placement, now)
        self.instances = RedisInstances(self.client, self._placement, now)
        self.audit = RedisAudit(self.client, self._placement, now)
        self.switches = RedisSwitches(self.client, self._placement, now)
        self._operations = Operations(self.client, self._placement, now, super().many)

    def __repr__(self) -> str:
        return f"RedisBackend({self.url!r})"

    def prepare(self, *, create_schema: bool, processes: int) -> Sequence[str]:
        try:
            warnings, unsafe = check_servers(self.client, self._kind, self.options)
            self._placement.register()
        except StoreUnavailable as exc:
            raise self.client.errors.as_configuration(exc) from exc.__cause__
        self._try_rights()
        if unsafe:
            raise unsafe
        return warnings

    def _try_rights(self) -> None:
        """Refuse a user who may not run the scripts' commands; a server that is full at the moment is accepted."""
        try:
            self._placement.try_rights()
        except StoreUnavailable as exc:
            refusal = self.client.errors.as_configuration(exc)
            if refusal is not exc:
                raise refusal from exc.__cause__

    def health(self) -> Sequence[Remark]:
        try:
            return health_of(self.client, self._kind, self.options, self._placement)
        except StoreUnavailable as exc:
            raise self.client.errors.as_configuration(exc) from exc.__cause__

    def many(self, operations: Sequence[Operation]) -> list[Any]:
        return self._operations.perform(operations)

    def migrate(self) -> Sequence[str]:
        version = self._placement.migrate()
        return [f"Changed the layout of the keys from {version} to {LAYOUT.version}."] if version else []

    def note_app(self, name: str) -> str:
        return self._placement.note_app(name)

    def schema(self) -> str:
        return ""

    def close(self) -> None:
        self.client.close()


def open_client(location: RedisLocation, options: Options) -> Client:
    """Return the client for a kind of location."""
    if location.kind is Topology.CLUSTER:
        return ClusterClient(location, options)
    if location.kind is Topology.SENTINEL:
        return Client(master_of(location, options), location, options)
    return Client(always(location.hosts[0]), location, options)
