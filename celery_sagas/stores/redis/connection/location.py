"""The server, Sentinels or cluster that a URL names, and the URL as it may be shown."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from celery_sagas.errors import ConfigurationError
from celery_sagas.stores.secrets import HIDDEN, is_secret

Endpoint: TypeAlias = tuple[str, int]


class Topology(StrEnum):
    """The kind of server that a URL names."""

    SERVER = "server"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class _Scheme:
    """The meaning of a scheme."""

    kind: Topology
    port: int = 6379  #: where the URL names none
    is_tls: bool = False
    is_socket: bool = False


_SCHEMES: Final[Mapping[str, _Scheme]] = {
    "redis": _Scheme(Topology.SERVER),
    "rediss": _Scheme(Topology.SERVER, is_tls=True),
    "unix": _Scheme(Topology.SERVER, is_socket=True),
    "redis+socket": _Scheme(Topology.SERVER, is_socket=True),
    "sentinel": _Scheme(Topology.SENTINEL, port=26379),
    "redis+cluster": _Scheme(Topology.CLUSTER),
    "rediss+cluster": _Scheme(Topology.CLUSTER, is_tls=True),
}
#: Celery's name of the database in the query.
_ALIASES: Mapping[str, str] = {"virtual_host": "db"}
#: Several URLs, as Celery writes the Sentinels; a password may hold a semicolon.
_BETWEEN_URLS = re.compile(r";(?=[a-z+]+://)")
#: The values of a query: the only place behind the address where an @ is not the end of a password.
_VALUES = re.compile("=[^&]*")


@dataclass(frozen=True, slots=True)
class RedisLocation:
    """An address; only ``shown`` may be shown."""

    kind: Topology
    hosts: tuple[Endpoint, ...]  #: one or more; meaningless for a socket
    path: str  #: of a socket, else empty
    is_tls: bool
    arguments: Mapping[str, str]  #: the URL's options besides the address, by name
    shown: str  #: as it was written, but for secrets
    secrets: tuple[str, ...]

    def __repr__(self) -> str:
        return f"RedisLocation({self.shown})"


def locate(url: str) -> RedisLocation:
    """Parse a URL: that of one server, or of several Sentinels or nodes of a cluster.

    Several are separated by semicolons, each a whole URL (Celery's form), or by commas between the hosts of one URL.

    Raises:
        ConfigurationError: It is not a URL, or contradicts itself. The text does not repeat the URL, nor does an exception
            behind it: it may hold a password.
    """
    parts = [_split(part) for part in _BETWEEN_URLS.split(url)]
    names = {part.scheme for part in parts}
    scheme = _SCHEMES.get(parts[0].scheme)
    if scheme is None:
        raise ConfigurationError(f"no Redis is reached by {parts[0].scheme}://", f"Known are {', '.join(map(_named, _SCHEMES))}")
    if len(names) > 1:
        raise ConfigurationError(f"the URL mixes {' and '.join(map(_named, sorted(names)))}", "Begin all of its parts alike")
    hosts = tuple(host for part in parts for host in _hosts(part, scheme.port))
    if scheme.kind is Topology.SERVER and (len(hosts) > 1 or len(parts) > 1):
        raise ConfigurationError(
            f"{_named(parts[0].scheme)} names one server, and the URL names several",
            "Begin it with sentinel:// or redis+cluster://, or name one server",
        )
    return RedisLocation(
        kind=scheme.kind,
        hosts=hosts,
        path=_socket_path(parts[0]) if scheme.is_socket else "",
        is_tls=scheme.is_tls,
        arguments=_merged([_arguments(part, is_socket=scheme.is_socket) for part in parts]),
        shown=";".join(map(_shown, parts)),
        secrets=tuple(dict.fromkeys(secret for part in parts for secret in _secrets(part))),
    )


def _named(scheme: str) -> str:
    return f"{scheme}://"


def _malformed() -> ConfigurationError:
    return ConfigurationError(
        "the URL of the saga backend is malformed",
        "Write it as redis://user:password@host:port/database, with special characters in the password %-escaped",
    )


def _split(part: str) -> SplitResult:
    try:
        split = urlsplit(part)
    except ValueError:
        raise _malformed() from None
    beside = split.path + _VALUES.sub("", split.query)
    if not part.partition("://")[1] or split.fragment or "@" in beside:  # a #, / or ? in a password
        raise _malformed()
    return split


def _hosts(part: SplitResult, default_port: int) -> list[Endpoint]:
    return [_address(host, default_port) for host in part.netloc.rpartition("@")[2].split(",")]


def _address(text: str, default_port: int) -> Endpoint:
    try:
        split = urlsplit(f"//{text}")
        return unquote(split.hostname or "localhost"), split.port or default_port
    except ValueError:
        raise _malformed() from None


def _socket_path(part: SplitResult) -> str:
    path = unquote(part.path)
    if not path or part.netloc.rpartition("@")[2]:
        raise ConfigurationError("the URL names no socket", f"Write it as {part.scheme}:///path/to/redis.sock?db=0")
    return path


def _arguments(part: SplitResult, *, is_socket: bool) -> dict[str, str]:
    """Return the options in a URL besides its address; of one that is given twice, the value that redis-py uses."""
    query = dict(reversed(parse_qsl(part.query)))  # the first one counts
    arguments = {_ALIASES.get(name, name): value for name, value in query.items()}
    database = "" if is_socket else unquote(part.path).strip("/")
    if database:
        arguments.setdefault("db", database)
    user, separator, password = _user_info(part).partition(":")
    given = {"username": unquote(user), "password": unquote(password) if separator else ""}
    return arguments | {name: value for name, value in given.items() if value}


def _merged(all_arguments: list[dict[str, str]]) -> dict[str, str]:
    merged: dict[str, str] = {}
    for arguments in all_arguments:
        for name, value in arguments.items():
            if merged.setdefault(name, value) != value:
                raise ConfigurationError(f"the URLs differ in {name}", "Say it once, in the first of them")
    return merged


def _user_info(part: SplitResult) -> str:
    return part.netloc.rpartition("@")[0]


def _shown(part: SplitResult) -> str:
    user, has_password, _ = _user_info(part).partition(":")
    who = f"{user}:{HIDDEN}@" if has_password else f"{user}@" if user else ""
    query = "&".join(f"{name}={HIDDEN if is_secret(name) else value}" for name, value in parse_qsl(part.query))
    return f"{part.scheme}://{who}{part.netloc.rpartition('@')[2]}{part.path}{f'?{query}' if query else ''}"


def _secrets(part: SplitResult) -> list[str]:
    """Return the secrets as they are and as they were written."""
    pairs = (pair.partition("=") for pair in part.query.split("&"))
    written = [_user_info(part).partition(":")[2], *(value for name, _, value in pairs if is_secret(name))]
    plain = [value for name, value in parse_qsl(part.query) if is_secret(name)]
    return [text for text in (*written, *map(unquote, written), *plain) if text]
