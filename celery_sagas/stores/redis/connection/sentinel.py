"""The address of the master that the Sentinels watch."""

from typing import Any

from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as LostConnection
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from celery_sagas.errors import ConfigurationError
from celery_sagas.stores.redis.connection.connections import Resolve
from celery_sagas.stores.redis.connection.location import Endpoint, RedisLocation
from celery_sagas.stores.redis.connection.options import Options
from celery_sagas.stores.secrets import hide


def master_of(location: RedisLocation, options: Options) -> Resolve:
    """Return a ``Resolve`` that asks the Sentinels each time, over connections of its own, so that it notices a fail-over."""
    arguments: dict[str, Any] = {
        "socket_timeout": options.socket_connect_timeout,
        "socket_connect_timeout": options.socket_connect_timeout,
        "protocol": 2,
        **options.sentinel_kwargs,
        "retry": Retry(NoBackoff(), 0),
    }
    secrets = location.secrets + options.secrets()

    def open_sentinel() -> Any:
        make: Any = Sentinel  # it has no annotations
        return make(location.hosts, options.min_other_sentinels, arguments)

    def resolve() -> Endpoint:
        sentinel = open_sentinel()
        try:
            host, port = sentinel.discover_master(options.master_name)
            return host, int(port)
        except MasterNotFoundError as exc:
            text = hide(str(exc), secrets)
            raise LostConnection(text) from None
        finally:
            for each in sentinel.sentinels:
                each.close()

    try:
        open_sentinel()
    except TypeError as exc:  # nothing is connected: an argument that redis-py does not know
        raise ConfigurationError(f"sentinel_kwargs in saga_backend_options is wrong: {hide(str(exc), secrets)}") from None
    return resolve
