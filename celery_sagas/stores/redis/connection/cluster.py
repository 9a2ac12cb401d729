"""The client of a Redis Cluster: which node has a key, now."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from redis.crc import key_slot
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import RedisError, ResponseError

from celery_sagas.stores.redis.connection.calls import Call
from celery_sagas.stores.redis.connection.client import Client
from celery_sagas.stores.redis.connection.connections import Server, always, pack
from celery_sagas.stores.redis.connection.location import Endpoint, RedisLocation
from celery_sagas.stores.redis.connection.options import Options

_SLOTS: Final = pack(["CLUSTER", "SLOTS"])
#: How often a call may be redirected: a moving slot takes two.
_MOST_REDIRECTS: Final = 8

_slot_of = lru_cache(maxsize=4096)(lambda key: key_slot(key.encode()))


class ClusterClient(Client):
    """The client of a cluster.

    redis-py's own returns a connection to its pool when a time limit strikes between a command and its reply, and cannot
    send WAIT over the connection of a script; so only its errors and its slots of keys are used here.

    Args:
        location: Names some nodes; the others are found.
        options: The limits.
    """

    def __init__(self, location: RedisLocation, options: Options) -> None:
        super().__init__(always(location.hosts[0]), location, options)
        self._servers: dict[Endpoint, Server] = {}
        self._owners: Mapping[int, Endpoint] = {}

    def holder_of(self, key: str) -> object:
        return self._owners.get(_slot_of(key), key)

    def close(self) -> None:
        for server in list(self._servers.values()):
            server.connections.close()
        self._owners = {}

    def _by_server(self, calls: Sequence[Call]) -> Mapping[Server, Sequence[Call]]:
        if not self._owners:
            self._look_up()
        by_server: dict[Server, list[Call]] = {}
        for call in calls:
            address = self._owners.get(_slot_of(call.keys[0])) if call.server is None else None
            call.asked = call.server or (address and self._server_at(address))
            if call.asked:
                by_server.setdefault(call.asked, []).append(call)
            else:
                call.error = LostConnection("no node of the cluster has the slot of the key")
        return by_server

    def _masters(self) -> dict[str, Server]:
        self._look_up()
        return {f"the node {host}:{port}": self._server_at((host, port)) for host, port in dict.fromkeys(self._owners.values())}

    def _server_at(self, address: Endpoint) -> Server:
        server = self._servers.get(address)
        if server is None:
            made = Server(always(address), self._location, self._options)
            server = self._servers.setdefault(address, made)
        return server

    def _is_redirected(self, call: Call, code: str, error: Exception) -> bool:
        if not call.keys:
            return False
        call.server, call.is_asking = None, False
        if code not in ("ASK", "MOVED") or call.redirects == _MOST_REDIRECTS:
            return False
        call.redirects += 1
        *_, slot, node = str(error).split()
        host, _, port = node.rpartition(":")
        address = host or self._host_of(call.asked), int(port)
        if code == "MOVED":
            if self._owners.get(int(slot)) != address:  # of many calls, one has looked it up
                self._look_up_quietly(address)
                self._owners = {**self._owners, int(slot): address}
        else:
            call.server, call.is_asking = self._server_at(address), True
        return True

    def _host_of(self, server: Server | None) -> str:
        """Return the host of a node; one that does not know its own name means itself."""
        return next(address[0] for address, known in self._servers.items() if known is server)

    def _recover(self, codes: set[str]) -> None:
        """Look up the owners of the slots: a replica may have taken over."""
        self._look_up_quietly()

    def _look_up_quietly(self, *first: Endpoint) -> None:
        """Look the owners up, and ignore a failure: it shows when the owners are used."""
        try:
            self._look_up(*first)
        except RedisError:
            self._owners = {}

    def _look_up(self, *first: Endpoint) -> None:
        """Ask the first node that answers which node owns which slot.

        Args:
            first: The nodes that are asked before the others.
        """
        failure: Exception = LostConnection("no node of the cluster answers")
        for address in dict.fromkeys([*first, *self._owners.values(), *self._location.hosts]):
            try:
                [reply] = self._server_at(address).ask([_SLOTS], self._options.socket_connect_timeout)
            except RedisError as exc:
                failure = exc
                continue
            if isinstance(reply, ResponseError):
                raise reply
            self._owners = _owners(reply, address)
            return
        raise failure


def _owners(reply: list[Any], asked: Endpoint) -> dict[int, Endpoint]:
    """Read the reply of CLUSTER SLOTS; a node without a name is the one that was asked, or is behind the same name."""
    owners = {}
    for first, last, (host, port, *_), *_replicas in reply:
        address = host.decode() if host else asked[0], int(port)
        owners.update(dict.fromkeys(range(first, last + 1), address))
    return owners
