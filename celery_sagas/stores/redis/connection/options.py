"""``saga_backend_options`` of a Redis backend, and the arguments of its connections."""

from collections.abc import Mapping
from ssl import TLSVersion, VerifyMode
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, FilePath, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from celery_sagas.errors import ConfigurationError
from celery_sagas.stores.redis.connection.location import RedisLocation, Topology
from celery_sagas.stores.secrets import is_secret

#: What redis-py's URLs may hold about its pool, and how it reads replies and repeats commands, which the backend decides itself.
_REDIS_PYS = (
    *("decode_responses", "encoding", "legacy_responses", "max_connections", "protocol"),
    *("retry_on_error", "retry_on_timeout", "timeout"),
)


def _number(value: object) -> object:
    if isinstance(value, bool):
        raise PydanticCustomError("number", "a number is wanted, not a bool")
    return value


def _verification(value: object) -> object:
    """Take the spellings of redis-py (``none``), of Celery's URLs (``CERT_NONE``) and of the module ``ssl``."""
    if isinstance(value, VerifyMode):
        value = value.name
    return value.lower().removeprefix("cert_") if isinstance(value, str) else value


def _tls_version(value: object) -> object:
    """Take redis-py's spelling in a URL, the number, and the name that ``ssl`` gives it."""
    if not isinstance(value, str):
        return value
    return int(value) if value.isdigit() else getattr(TLSVersion, value, value)


def _text(path: object) -> str:
    return str(path)


Seconds = Annotated[float, BeforeValidator(_number), Field(gt=0, le=3600)]
Count = Annotated[int, BeforeValidator(_number)]
File = Annotated[FilePath, AfterValidator(_text)]


class Options(BaseModel):
    """Every option with its default; times are seconds. What a URL says comes before what the setting says."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    #: Over how many hash tags the instances are spread, so that a cluster's nodes share them.
    shards: Count = Field(default=1, ge=1, le=1024)
    #: How many replicas must confirm a commit before anything is published or acknowledged.
    wait_replicas: Count = Field(default=0, ge=0, le=100)
    #: How long they may take.
    wait_timeout: Seconds = 1.0
    #: How long the server may take to answer.
    socket_timeout: Seconds = 5.0
    #: How long connecting may take.
    socket_connect_timeout: Seconds = 2.0
    #: How long one call may take, with all of its repeats.
    total_timeout: Annotated[Seconds, Field(le=60)] = 10.0
    #: How often a call whose connection was lost is sent again.
    retries: Count = Field(default=3, ge=0, le=100)
    #: After how long unused a connection is tried with a PING before a call; 0: never, a lost call is sent again anyway.
    health_check_interval: Count = Field(default=0, ge=0)
    #: Whether the operating system looks for dead connections.
    socket_keepalive: bool = True
    #: How the connections are called in CLIENT LIST.
    client_name: str = Field(default="", pattern=r"^[!-~]*$")

    db: Count = Field(default=0, ge=0)
    username: str = Field(default="", repr=False)
    password: str = Field(default="", repr=False)

    #: Whether to use TLS with a ``sentinel://`` URL; the other schemes say it themselves.
    ssl: bool = False
    ssl_cert_reqs: Annotated[Literal["none", "optional", "required"], BeforeValidator(_verification)] = "required"
    ssl_check_hostname: bool = True
    ssl_ca_certs: File | None = None
    ssl_ca_path: str | None = None
    ssl_ca_data: str | None = None
    ssl_certfile: File | None = None
    ssl_keyfile: File | None = None
    ssl_password: str | None = Field(default=None, repr=False)
    ssl_min_version: Annotated[TLSVersion | None, BeforeValidator(_tls_version)] = None
    ssl_ciphers: str | None = None

    #: The name under which the Sentinels watch the master.
    master_name: str = ""
    #: How many other Sentinels a Sentinel must know for its answer to count.
    min_other_sentinels: Count = Field(default=0, ge=0)
    #: The arguments of connections to the Sentinels: their own password, TLS and time-outs.
    sentinel_kwargs: dict[str, Any] = Field(default_factory=dict, repr=False)

    @model_validator(mode="after")
    def _check_timeouts(self) -> Self:
        if self.wait_replicas and self.wait_timeout >= self.socket_timeout:
            raise PydanticCustomError("timeouts", "wait_timeout must be less than socket_timeout")
        if self.total_timeout < max(self.socket_timeout, self.socket_connect_timeout):
            raise PydanticCustomError("timeouts", "total_timeout must not be less than socket_timeout and socket_connect_timeout")
        return self

    def secrets(self) -> tuple[str, ...]:
        """Return every value that must not be shown."""
        theirs = (str(value) for name, value in self.sentinel_kwargs.items() if is_secret(name))
        return tuple(secret for secret in (self.password, self.ssl_password, *theirs) if secret)


def read_options(options: Mapping[str, object], location: RedisLocation) -> Options:
    """Check the options, those in the URL included, and fill in the defaults.

    Raises:
        ConfigurationError: One is unknown, wrong, or does not fit the URL.
    """
    if not all(isinstance(name, str) for name in options):
        raise ConfigurationError("a name in saga_backend_options is no text", 'Write {"shards": 2}')
    given = {**options, **{name: value for name, value in location.arguments.items() if name not in _REDIS_PYS}}
    if unknown := sorted(set(given) - set(Options.model_fields)):
        known = ", ".join(Options.model_fields)
        raise ConfigurationError(f"unknown option {', '.join(unknown)} of a Redis backend", f"Known are {known}")
    try:
        read = Options.model_validate(given)
    except ValidationError as exc:
        raise ConfigurationError(_problems(exc), "Set it in saga_backend_options, or in the URL's query") from None
    _check_fit(read, location)
    return read


def _problems(error: ValidationError) -> str:
    problems = error.errors(include_input=False, include_url=False)
    return "; ".join(": ".join(filter(None, (".".join(map(str, each["loc"])), each["msg"]))) for each in problems)


def _check_fit(options: Options, location: RedisLocation) -> None:
    """Refuse options that the URL's kind cannot take, and missing ones that it needs."""
    given, is_sentinel = options.model_fields_set, location.kind is Topology.SENTINEL
    if is_sentinel and not options.master_name:
        raise ConfigurationError(
            "the name of the master that the Sentinels watch is missing",
            'Set saga_backend_options = {"master_name": "mymaster"}',
        )
    if not is_sentinel and (foreign := sorted(given & {"ssl", "master_name", "min_other_sentinels", "sentinel_kwargs"})):
        remedy = "Begin the URL with rediss:// to use TLS" if foreign == ["ssl"] else "Begin the URL with sentinel://"
        raise ConfigurationError(f"the option {', '.join(foreign)} is only for Sentinels", remedy)
    if location.kind is Topology.CLUSTER and options.db:
        raise ConfigurationError(f"a Redis Cluster has no database {options.db}", "Leave the number out, and set saga_prefix")
    if not uses_tls(options, location) and (tls := sorted(name for name in given if name.startswith("ssl_"))):
        remedy = 'Set saga_backend_options["ssl"] to True' if is_sentinel else "Begin the URL with rediss:// or rediss+cluster://"
        raise ConfigurationError(f"the option {', '.join(tls)} is set, and the connection does not use TLS", remedy)


def uses_tls(options: Options, location: RedisLocation) -> bool:
    """Return whether connections to the server are encrypted."""
    return location.is_tls or options.ssl


def connection_arguments(options: Options, location: RedisLocation) -> dict[str, Any]:
    """Return the arguments of redis-py's connections, except the address."""
    names = ["socket_timeout", "socket_connect_timeout", "health_check_interval", "db"]
    if not location.path:
        names.append("socket_keepalive")
    if uses_tls(options, location):
        names += [name for name in Options.model_fields if name.startswith("ssl_")]
    arguments = {name: getattr(options, name) for name in names}
    if options.ssl_cert_reqs == "none" and "ssl_check_hostname" in arguments:
        arguments["ssl_check_hostname"] = False
    who = {name: getattr(options, name) or None for name in ("username", "password", "client_name")}
    return {**arguments, **who, "protocol": 2}
