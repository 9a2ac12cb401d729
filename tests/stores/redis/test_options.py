"""``saga_backend_options`` of a Redis backend."""

import ssl
from pathlib import Path
from typing import Any

import pytest

from celery_sagas.errors import ConfigurationError
from celery_sagas.stores.redis.backend import RedisBackend
from celery_sagas.stores.redis.connection.location import locate
from celery_sagas.stores.redis.connection.options import Options, connection_arguments, read_options

SENTINEL = "sentinel://one;sentinel://two"


def test_defaults() -> None:
    """Nothing is left to redis-py's defaults, which change between its releases."""
    location = locate("redis://host")
    options = read_options({}, location)
    assert options == Options()
    assert connection_arguments(options, location) == {
        "socket_timeout": 5.0,
        "socket_connect_timeout": 2.0,
        "health_check_interval": 0,
        "socket_keepalive": True,
        "db": 0,
        "username": None,
        "password": None,
        "client_name": None,
        "protocol": 2,
    }


def test_the_url_comes_first() -> None:
    location = locate("redis://me:pw@host/3?socket_timeout=2.5&socket_keepalive=no")
    options = read_options({"socket_timeout": 9.5, "db": 1, "retries": 0}, location)
    assert (options.socket_timeout, options.socket_keepalive) == (2.5, False)
    assert (options.db, options.username, options.password, options.retries) == (3, "me", "pw", 0)


def test_what_only_redis_py_would_heed_is_left_aside() -> None:
    url = "redis://host?protocol=3&decode_responses=true&retry_on_timeout=true&encoding=utf-8&timeout=3&max_connections=9"
    assert read_options({}, locate(url)) == Options()


@pytest.mark.parametrize("value", ["none", "CERT_NONE", ssl.CERT_NONE])
def test_tls(tmp_path: Path, value: object) -> None:
    authority = tmp_path / "ca.pem"
    authority.touch()
    location = locate("rediss://host")
    given = {"ssl_cert_reqs": value, "ssl_ca_certs": authority, "ssl_min_version": ssl.TLSVersion.TLSv1_3}
    arguments = connection_arguments(read_options(given, location), location)
    assert arguments["ssl_cert_reqs"] == "none"
    assert arguments["ssl_check_hostname"] is False
    assert arguments["ssl_ca_certs"] == str(authority)
    assert arguments["ssl_min_version"] == ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize("value", ["771", "TLSv1_2", 771])
def test_oldest_tls(value: object) -> None:
    assert read_options({"ssl_min_version": value}, locate("rediss://host")).ssl_min_version is ssl.TLSVersion.TLSv1_2


def test_tls_is_strict_unless_told_otherwise() -> None:
    location = locate("rediss+cluster://host")
    arguments = connection_arguments(read_options({}, location), location)
    assert (arguments["ssl_cert_reqs"], arguments["ssl_check_hostname"]) == ("required", True)


def test_tls_to_a_master_that_sentinels_watch() -> None:
    location = locate(SENTINEL)
    options = read_options({"ssl": True, "master_name": "shop", "ssl_cert_reqs": "none"}, location)
    assert connection_arguments(options, location)["ssl_cert_reqs"] == "none"


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        ("redis://host", {"shard": 2}, "unknown option shard of a Redis backend. Known are shards, wait_replicas"),
        ("redis://host?shard=2", {}, "unknown option shard"),
        ("redis://host", {1: 2}, "a name in saga_backend_options is no text"),
        ("redis://host", {"client_name": "a b"}, "client_name"),
        ("redis://host", {"total_timeout": 61}, "total_timeout: .*60"),
        ("redis://host", {"shards": 0}, "shards: .*greater than or equal to 1"),
        ("redis://host", {"shards": True}, "shards: a number is wanted, not a bool"),
        ("redis://host", {"socket_timeout": "soon"}, "socket_timeout: .*number"),
        ("redis://host", {"socket_timeout": 0}, "socket_timeout: .*greater than 0"),
        ("redis://host", {"wait_replicas": 1, "wait_timeout": 5}, "wait_timeout must be less than socket_timeout"),
        ("redis://host", {"socket_timeout": 11}, "total_timeout must not be less than socket_timeout"),
        ("redis://host/first", {}, "db: .*integer"),
        ("redis://host", {"ssl_cert_reqs": "none"}, "the option ssl_cert_reqs is set.*Begin the URL with rediss://"),
        ("redis://host", {"ssl": True}, "Begin the URL with rediss://"),
        ("rediss://host?ssl_ca_certs=/nowhere/ca.pem", {}, "ssl_ca_certs: .*file"),
        ("rediss://host?ssl_min_version=SSLv9", {}, "ssl_min_version: "),
        ("rediss://host?ssl_cert_reqs=perhaps", {}, "ssl_cert_reqs: .*'none', 'optional' or 'required'"),
        ("redis://host", {"master_name": "shop"}, "only for Sentinels. Begin the URL with sentinel://"),
        (SENTINEL, {}, r'Set saga_backend_options = \{"master_name": "mymaster"\}'),
        (SENTINEL, {"master_name": "shop", "ssl_cert_reqs": "none"}, r'saga_backend_options\["ssl"\] to True'),
        (SENTINEL, {"master_name": "shop", "sentinel_kwargs": {"pasword": "s3cret"}}, "sentinel_kwargs.*pasword"),
        ("redis+cluster://host/1", {}, "a Redis Cluster has no database 1"),
    ],
)
def test_what_is_wrong_is_refused(url: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text) as caught:
        RedisBackend(url, prefix="", options=options)
    assert "s3cret" not in str(caught.value)


def test_secrets_are_not_shown() -> None:
    given = {"password": "s3cret", "ssl_password": "s3cret", "sentinel_kwargs": {"password": "s3cret"}}
    options = Options(**given)
    assert "s3cret" not in repr(options)
    with pytest.raises(ConfigurationError) as caught:
        read_options({**given, "password": ["s3cret"]}, locate("redis://host"))
    assert "s3cret" not in str(caught.value)


def test_wrong_secrets_are_not_repeated() -> None:
    backend = RedisBackend("redis://me:s3%63ret@host", prefix="", options={})
    assert "s3" not in f"{backend!r}{backend.url}{backend.client!r}{backend.options!r}"
