"""Which server, Sentinel or cluster a URL names, and how it is shown."""

import traceback

import pytest

from celery_sagas.errors import ConfigurationError
from celery_sagas.stores.redis.connection.location import Endpoint, Topology, locate
from celery_sagas.stores.secrets import hide


@pytest.mark.parametrize(
    ("url", "kind", "hosts"),
    [
        ("redis://", Topology.SERVER, [("localhost", 6379)]),
        ("redis://cache.example:6380/2", Topology.SERVER, [("cache.example", 6380)]),
        ("redis://[::1]:6380", Topology.SERVER, [("::1", 6380)]),
        ("rediss://cache.example", Topology.SERVER, [("cache.example", 6379)]),
        ("sentinel://one:26380/0;sentinel://two", Topology.SENTINEL, [("one", 26380), ("two", 26379)]),
        ("sentinel://one,two:26380/3", Topology.SENTINEL, [("one", 26379), ("two", 26380)]),
        ("redis+cluster://one:7000,two:7001", Topology.CLUSTER, [("one", 7000), ("two", 7001)]),
        ("rediss+cluster://one;rediss+cluster://two:7001", Topology.CLUSTER, [("one", 6379), ("two", 7001)]),
        ("redis+cluster://me:s3;c,ret@one,two", Topology.CLUSTER, [("one", 6379), ("two", 6379)]),
    ],
)
def test_hosts(url: str, kind: Topology, hosts: list[Endpoint]) -> None:
    location = locate(url)
    assert (location.kind, list(location.hosts), location.path) == (kind, hosts, "")
    assert location.is_tls == url.startswith("rediss")


@pytest.mark.parametrize("url", ["unix:///run/redis%20one.sock?db=2", "redis+socket:///run/redis%20one.sock?virtual_host=2"])
def test_sockets(url: str) -> None:
    location = locate(url)
    assert (location.kind, location.path, location.arguments) == (Topology.SERVER, "/run/redis one.sock", {"db": "2"})


@pytest.mark.parametrize(
    ("url", "arguments"),
    [
        ("redis://host/3", {"db": "3"}),
        ("redis://host/3?db=4", {"db": "4"}),  # redis-py's order
        ("redis://me:p%40ss@host", {"username": "me", "password": "p@ss"}),
        ("redis://:p%40ss@host?password=other", {"password": "p@ss"}),
        ("redis://host?socket_timeout=2.5&socket_timeout=3", {"socket_timeout": "2.5"}),
        ("rediss://host?ssl_ca_certs=%2Fetc%2Fca.pem", {"ssl_ca_certs": "/etc/ca.pem"}),
        ("redis://host:6379?client_name=a@b", {"client_name": "a@b"}),
        ("sentinel://:pw@one/2;sentinel://two", {"password": "pw", "db": "2"}),
        ("sentinel://one;sentinel://:pw@two/2", {"password": "pw", "db": "2"}),
        ("unix://me:pw@/run/redis.sock", {"username": "me", "password": "pw"}),
    ],
)
def test_arguments(url: str, arguments: dict[str, str]) -> None:
    assert locate(url).arguments == arguments


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host:6380/3?socket_timeout=2", "redis://host:6380/3?socket_timeout=2"),
        ("redis://me:s3cret%40x@host/3", "redis://me:***@host/3"),
        ("redis://:s3cret%40x@host", "redis://:***@host"),
        ("rediss://host?ssl_password=s3cret%40x&ssl_cert_reqs=none", "rediss://host?ssl_password=***&ssl_cert_reqs=none"),
        ("sentinel://:s3cret%40x@one/2;sentinel://:s3cret%40x@two", "sentinel://:***@one/2;sentinel://:***@two"),
        ("unix://:s3cret%40x@/run/redis.sock?db=1", "unix://:***@/run/redis.sock?db=1"),
    ],
)
def test_secrets_are_never_shown(url: str, shown: str) -> None:
    location = locate(url)
    assert location.shown == shown
    assert repr(location) == f"RedisLocation({shown})"
    told = hide("s3cret@x was refused, and so was s3cret%40x", location.secrets)
    assert ("s3cret" in told) == ("s3cret" not in url)


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("redis://:s3cret/1@host/0", "%-escaped"),
        ("redis://:s3cret#1@host/0", "%-escaped"),
        ("redis://:1#s3cret@host/0", "%-escaped"),
        ("redis://:1?s3cret@host/0", "%-escaped"),
        ("redis://:1/s3cret@host/0", "%-escaped"),
        ("redis://:1?a=b&s3cret@host/0", "%-escaped"),
        ("redis://:s3cret@host:port/0", "%-escaped"),
        ("redis://:s3cret@host:99999/0", "%-escaped"),
        ("redis://:[s3cret@host/0", "%-escaped"),
        ("redis+cloud://:s3cret@host/0", r"Known are redis://, rediss://"),
        ("redis://:s3cret@one,two", "sentinel:// or redis"),
        ("redis://:s3cret@one;redis://two", "sentinel:// or redis"),
        ("sentinel://:s3cret@one;redis://two", "alike"),
        ("sentinel://:s3cret@one/1;sentinel://two/2", "the URLs differ in db"),
        ("sentinel://:s3cret@one;sentinel://:s3cret2@two", "the URLs differ in password"),
        ("unix://:s3cret@", "path/to/redis.sock"),
        ("unix://:s3cret@host/run/redis.sock", "path/to/redis.sock"),
    ],
)
def test_what_is_wrong_is_refused_without_the_password(url: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=remedy) as caught:
        locate(url)
    assert "s3cret" not in "".join(traceback.format_exception_only(caught.value))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
