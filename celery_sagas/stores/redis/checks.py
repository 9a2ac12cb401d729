"""Checks that a server, by its kind and its settings, keeps what was committed."""

from collections.abc import Mapping
from typing import Final

from celery_sagas.errors import ConfigurationError, StoreError, UnsafeBackend
from celery_sagas.stores.redis.connection.client import Client
from celery_sagas.stores.redis.connection.location import Topology
from celery_sagas.stores.redis.connection.options import Options

_OLDEST: Final = (6, 2)
_LOST: Final = "every saga, the record of what was handled, and what was still to be sent"


def check_servers(client: Client, kind: Topology, options: Options) -> tuple[list[str], UnsafeBackend | None]:
    """Look at every master.

    Returns:
        Warnings about what may lose commits, one sentence each; and, if one may throw away stored data, the error to raise
        if nothing else was found: a setting may let it pass.

    Raises:
        ConfigurationError: A server cannot be used.
    """
    warnings, unsafe = [], None
    snapshots = _snapshots(client)
    for name, info in infos_of(client).items():
        _check_mode(name, info, kind)
        _check_version(name, info)
        _check_role(name, info)
        unsafe = unsafe or _evicting(name, info)
        warnings += _warn_of_loss(name, info, snapshots.get(name)) + _warn_of_replicas(name, info, options)
    if kind is Topology.CLUSTER and options.shards == 1:
        warnings.append('Everything lives on one node of the cluster: {"shards": n} in saga_backend_options spreads it.')
    return warnings, unsafe


def infos_of(client: Client) -> dict[str, dict[str, str]]:
    """Return what each master says of itself, by its name as it may be shown."""
    return {name: _read(reply) for name, reply in client.on_masters("INFO").items()}


def _read(reply: bytes) -> dict[str, str]:
    """Read the reply of INFO."""
    pairs = (line.partition(":") for line in reply.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in pairs if colon}


def _snapshots(client: Client) -> dict[str, bool]:
    """Return, by the master, whether it is set to take snapshots; nothing where that may not be asked, as on managed servers."""
    try:
        settings = client.on_masters("CONFIG", "GET", "save")
    except StoreError:
        return {}
    return {name: bool(setting[1]) for name, setting in settings.items() if len(setting) == 2}


def _check_mode(name: str, info: Mapping[str, str], kind: Topology) -> None:
    mode = info.get("redis_mode", "standalone")
    if mode == "sentinel":
        raise ConfigurationError(f"{name} is a Sentinel", "Begin saga_backend with sentinel://")
    if mode == "cluster" and kind is not Topology.CLUSTER:
        raise ConfigurationError(f"{name} is a node of a Redis Cluster", "Begin saga_backend with redis+cluster://")


def _check_version(name: str, info: Mapping[str, str]) -> None:
    version = info.get("redis_version", "")
    numbers = tuple(int(number) for number in version.split(".")[:2] if number.isdigit())
    if numbers and numbers < _OLDEST:
        raise ConfigurationError(f"{name} is Redis {version}", f"Use Redis {'.'.join(map(str, _OLDEST))} or later, or Valkey")


def _check_role(name: str, info: Mapping[str, str]) -> None:
    if info.get("role", "master") != "master":
        raise ConfigurationError(
            f"the saga backend is read-only, or what is written to it is lost: {name} is a replica",
            "Let saga_backend name the master, or its Sentinels",
        )


def _evicting(name: str, info: Mapping[str, str]) -> UnsafeBackend | None:
    policy = info.get("maxmemory_policy", "")
    if not policy.startswith("allkeys-"):
        return None
    return UnsafeBackend(
        f"{name} runs with maxmemory-policy={policy}: when its memory is full it throws sagas away",
        "Set maxmemory-policy to noeviction (or to one of volatile-*: nothing of ours that is to last expires), or use a server "
        "of its own",
    )


def _warn_of_loss(name: str, info: Mapping[str, str], has_snapshots: bool | None) -> list[str]:
    if info.get("aof_enabled", "1") != "0":
        return []
    if has_snapshots or (has_snapshots is None and _has_saved(info)):
        loss = "only takes snapshots (appendonly is off): a crash loses what was committed since the last one"
    elif has_snapshots is None:
        loss = f"has appendonly off, and may take no snapshots either: a restart then loses {_LOST}"
    else:
        loss = f"keeps nothing on disk (appendonly is off, and it takes no snapshots): a restart loses {_LOST}"
    return [f"{name.capitalize()} {loss}."]


def _has_saved(info: Mapping[str, str]) -> bool:
    """Return whether a snapshot was taken since the server was started."""
    return info.get("rdb_last_bgsave_time_sec", "-1") != "-1"


def _warn_of_replicas(name: str, info: Mapping[str, str], options: Options) -> list[str]:
    connected = int(info.get("connected_slaves", 0))
    if connected >= options.wait_replicas:
        return []
    return [
        f"wait_replicas is {options.wait_replicas}, and {connected} replicas are connected to {name}: "
        "until there are enough, every message is redelivered later."
    ]
