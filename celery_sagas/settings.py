"""The ``saga_*`` settings of the Celery app's configuration."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Annotated, Any, Final, Literal, Protocol

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    StringConstraints,
    ValidationError,
)

from celery_sagas.connections import place_of
from celery_sagas.core.delays import Backoff, checked_backoff
from celery_sagas.core.saga import BACKEND_NAME
from celery_sagas.errors import ConfigurationError

PREFIX = "saga_"
#: The backend of an app that names none: the first run needs no server.
DEFAULT_BACKEND = "sqlite:///celery-sagas.sqlite3"
DEFAULT_FILE = DEFAULT_BACKEND.removeprefix("sqlite:///")
#: The form of a backend in ``saga_backends``.
_BACKEND: Final = '{"backend": "postgresql://…", "options": {}}'
#: After 1, 5 and 25 seconds. What a number of times, or a ``dict``, does not say is taken from it.
STEP_RETRIES = Backoff(3, 1.0, factor=5.0)
#: Of names whose values operators do not see.
HIDDEN: Final = ("*password*", "*secret*", "*token*", "card*", "authorization")


def _number(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a number is wanted, not a bool")  # noqa: TRY004  # pydantic takes no TypeError
    return value.total_seconds() if isinstance(value, timedelta) else value


class Subscription(BaseModel):
    """A task that the settings subscribe to an event."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    task: Annotated[str, StringConstraints(min_length=1)]
    #: Without one Celery routes the message, like every other message to this task.
    queue: Annotated[str, StringConstraints(min_length=1)] | None = None


def _backoff(value: object) -> Backoff:
    """Return a backoff that is given as one, as its parts, or as a number of times."""
    given: object = value
    try:
        if isinstance(value, int) and not isinstance(value, bool):
            given = STEP_RETRIES._replace(times=value)
        elif isinstance(value, Mapping):
            given = STEP_RETRIES._replace(**value)
        elif isinstance(value, list | tuple):
            given = Backoff(*value)
        return checked_backoff("step_retries", given)
    except (TypeError, ValueError) as exc:  # pydantic takes no TypeError
        raise ValueError(f"{exc}; write Backoff(3, 1, factor=5), {{'times': 3, 'first': 1, 'factor': 5}}, or 0 for none") from exc


def _event(value: object) -> object:
    if not isinstance(value, str) or "." not in value.strip("."):
        raise ValueError("name the event by the path of its class: 'shop.events.OrderPlaced'")
    return value


def _subscription(value: object) -> object:
    if not isinstance(value, str | Mapping | Subscription):
        raise ValueError("name a task: 'crm.on_order', or {'task': 'crm.on_order', 'queue': 'crm'}")  # noqa: TRY004
    return {"task": value} if isinstance(value, str) else value


def _listed(value: object) -> object:
    if not isinstance(value, list | tuple):
        raise ValueError("list the tasks that get the event: ['crm.on_order']")  # noqa: TRY004
    return value


def _each_once(value: tuple[Subscription, ...]) -> tuple[Subscription, ...]:
    tasks = [each.task for each in value]
    if twice := sorted({task for task in tasks if tasks.count(task) > 1}):
        raise ValueError(f"list each task once; there twice: {', '.join(twice)}")
    return value


def _address(value: str) -> str:
    place_of(value)
    return value


def _patterns(value: object) -> object:
    if not isinstance(value, list | tuple):
        raise ValueError("list patterns of names: ['*password*', 'card*']")  # noqa: TRY004
    return value


Seconds = Annotated[float, BeforeValidator(_number)]
Count = Annotated[int, BeforeValidator(_number)]
Event = Annotated[str, BeforeValidator(_event)]
Patterns = Annotated[tuple[Annotated[str, StringConstraints(min_length=1)], ...], BeforeValidator(_patterns)]
#: The name of a backend; no URL is one.
Name = Annotated[str, StringConstraints(pattern=rf"^{BACKEND_NAME.pattern}$")]
Subscriptions = Annotated[
    tuple[Annotated[Subscription, BeforeValidator(_subscription)], ...], BeforeValidator(_listed), AfterValidator(_each_once)
]


class BackendSettings(BaseModel):
    """A backend: its URL, under the name with which ``celery report`` hides a password, and its options."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    backend: str = Field(repr=False)
    options: dict[str, Any] = Field(default_factory=dict, repr=False)


def _backend(value: object) -> object:
    if not isinstance(value, Mapping):  # which alone celery report looks into
        raise ValueError(f"write {_BACKEND}")  # noqa: TRY004
    return value


NamedBackend = Annotated[BackendSettings, BeforeValidator(_backend)]


class Settings(BaseModel):
    """Every setting, without its prefix ``saga_``; times are seconds, as numbers or ``timedelta``."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    #: URL of the backend that keeps the state: SQLite, PostgreSQL, MariaDB or MySQL, with or without Celery's ``db+``; Redis, its
    #: Sentinels or its Cluster; or ``memory://``.
    backend: str = Field(default=DEFAULT_BACKEND, repr=False)
    #: Options of ``backend``; they are listed on the pages of stores and of Redis.
    backend_options: dict[str, Any] = Field(default_factory=dict, repr=False)
    #: Further backends, by the names under which sagas choose them, ``class Order(Saga, backend="orders")``:
    #: ``{"orders": {"backend": "postgresql://…", "options": {…}}}``.
    backends: dict[Name, NamedBackend] = Field(default_factory=dict)
    #: The backend that keeps what aggregators buffer, if that is another one: its URL, or its name in ``backends``. Answers that
    #: ``gather`` collects are kept there if the saga's own backend is one without aggregators.
    aggregator_backend: str | None = Field(default=None, repr=False)
    #: The database in whose transactions plain code sends, ``send(…, using=session)``, if that is not the one of ``backend``: its
    #: URL, or its name in ``backends``. For models in SQL beside sagas in Redis.
    outbox_backend: str | None = Field(default=None, repr=False)
    #: Partitions the backend: applications with different prefixes never see each other's rows.
    prefix: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]*$", max_length=64)] = ""
    #: Whether a starting worker creates the tables that are missing.
    create_schema: bool = True
    #: Runs of a step after conflicts, before the instance is locked for the next run.
    conflict_retries: Count = Field(default=5, ge=0, le=1000)
    #: How often, and after which pauses, a message runs again whose step has raised; 0: it becomes a dead letter at once.
    step_retries: Annotated[Backoff, PlainValidator(_backoff)] = STEP_RETRIES
    #: The most messages of steps that a process of a worker's pool handles together; 1: each runs as a task.
    batch: Count = Field(default=50, ge=1, le=500)
    #: How many messages may follow one another in the process that commits them, where a step sends to a step; 0: none.
    hand_over: Count = Field(default=10, ge=0, le=100)
    #: Seconds for which handled messages are remembered, longer than the broker takes to deliver one again; without it, as long
    #: as the backend says: 7 days in SQL, one day in Redis.
    journal_retention: Seconds | None = Field(default=None, gt=0)
    #: Seconds for which it is remembered what operators have done.
    audit_retention: Seconds = Field(default=7_776_000.0, gt=0)
    #: Whether a worker publishes what is due: timeouts, and messages that their sender left behind.
    relay: bool = True
    #: Seconds between two polls for what is due.
    relay_interval: Seconds = Field(default=1.0, ge=0.01, le=3600)
    #: Seconds after which a timeout, or the deadline of a request, that was published and not handled is published again: the
    #: broker may have lost it. Each time it is twice as long, up to a day. Without it an hour, or twice the broker's visibility
    #: time-out if that is more.
    resend_after: Seconds | None = Field(default=None, ge=1, le=2_592_000)
    #: Seconds for which a worker's lease on what it has claimed lasts; it stops publishing at half of them.
    lease_ttl: Seconds = Field(default=60.0, ge=1, le=86_400)
    #: Deliveries of a message that ended its worker each time, or attempts to publish one, before it becomes a dead letter.
    #: RabbitMQ's quorum queues silently drop a message after 20.
    max_deliveries: Count = Field(default=10, ge=1, le=19)
    #: What happens if a step publishes directly, with ``task.delay()`` instead of ``order.send()``: ``"warn"``, or ``"allow"``.
    direct_publish: Literal["warn", "allow"] = "warn"
    #: Seconds that the worker which committed a message has to publish what it sends; it stops at half of them.
    dispatch_grace: Seconds = Field(default=30.0, gt=0, le=3600)
    #: Where the spans of steps are: ``"links"``: each in the trace of its message, with a link to the step that has created the
    #: instance; ``"parent"``: below that step, all in one trace.
    trace: Literal["links", "parent"] = "links"
    #: Whether spans have the correlation key of their instance.
    trace_keys: bool = False
    #: The largest state, and the largest message that a step sends. Bytes of JSON, before ``codec`` encodes it.
    max_state_bytes: Count = Field(default=1_000_000, ge=1_000, le=100_000_000)
    #: The import path, ``package.module:object``, of what encodes the values of users before they are stored, and decodes them:
    #: see ``celery_sagas.stores.encoded.Codec``. ``celery_sagas.contrib.fernet:codec`` encrypts them.
    codec: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")] | None = None
    #: What a worker does on a backend that cannot keep the promise: ``"refuse"`` to start, or ``"warn"``.
    unsafe_backend: Literal["refuse", "warn"] = "refuse"
    #: Tasks, of other services, that receive an event besides the steps and tasks that subscribe to it: by the path of its class.
    subscriptions: dict[Event, Subscriptions] = Field(default_factory=dict)
    #: The values of states and messages that ``celery sagas show`` and ``dead`` do not show, besides those that their
    #: declarations hide: by patterns of names, at any depth, in which ``*`` stands for any text. Upper and lower case are the
    #: same.
    hidden: Patterns = HIDDEN
    #: Where a worker serves the metrics of its processes to Prometheus: ``":9558"``, or ``"HOST:PORT"``.
    metrics: Annotated[str, AfterValidator(_address)] | None = None
    #: The beginning of the paths of two files for probes, ``.alive`` and ``.ready``: ``"/run/celery-sagas"``.
    heartbeat: Annotated[str, StringConstraints(min_length=1)] | None = None

    def backend_named(self, given: str | None, subject: str = "a setting") -> BackendSettings:
        """Return a backend by its URL, or by its name in ``backends``; ``None`` names that of ``backend``.

        Args:
            given: The URL or name.
            subject: What names it, for an error.

        Raises:
            ConfigurationError: It is no URL, and ``backends`` has no such name.
        """
        default = BackendSettings(backend=self.backend, options=self.backend_options)
        if given is None:
            return default
        if "://" in given:
            known = (default, *self.backends.values())
            return next((each for each in known if each.backend == given), BackendSettings(backend=given))
        if given not in self.backends:
            raise no_backend(given, self.backends, subject)
        return self.backends[given]

    def all_backends(self) -> list[BackendSettings]:
        """Return every backend once, that of ``backend`` first.

        Raises:
            ConfigurationError: A setting names a backend that ``backends`` does not have.
        """
        others = [
            self.backend_named(self.aggregator_backend, "saga_aggregator_backend"),
            self.backend_named(self.outbox_backend, "saga_outbox_backend"),
        ]
        found: list[BackendSettings] = []
        for each in (self.backend_named(None), *self.backends.values(), *others):
            if each not in found:
                found.append(each)
        return found


class Configuration(Protocol):
    """Celery's ``app.conf``, as far as it is read."""

    @property
    def prefix(self) -> str | None: ...
    def keys(self) -> Iterable[object]: ...
    def get(self, key: str, default: Any, /) -> Any: ...
    def __getitem__(self, key: str, /) -> Any: ...


def read_settings(conf: Configuration) -> Settings:
    """Read the settings of an app.

    Args:
        conf: The app's configuration, with Celery's namespace of all its settings (``CELERY_`` under Django) as ``prefix``.

    Raises:
        ConfigurationError: A value is wrong, or a ``saga_*`` name is unknown.
    """
    given = _given(conf)
    if unknown := sorted(given.keys() - Settings.model_fields.keys()):
        known = ", ".join(PREFIX + name for name in Settings.model_fields)
        raise ConfigurationError(f"unknown setting {', '.join(PREFIX + name for name in unknown)}", f"Known: {known}.")
    try:
        return Settings.model_validate(given)
    except ValidationError as exc:
        problems = [f"{PREFIX}{_path(problem)}: {problem['msg']}" for problem in exc.errors(include_input=False)]
        raise ConfigurationError("; ".join(problems), "The settings page lists every setting with its values.") from None


def is_default_backend(conf: Configuration) -> bool:
    """Return whether the app names no backend."""
    return "backend" not in _given(conf)


def backend_urls(conf: Configuration) -> list[str]:
    """Return the URLs of backends that the app names, whatever else is wrong with its settings.

    Raises:
        ConfigurationError: One stands where ``celery report`` would show its password.
    """
    given = _given(conf)
    named = given.get("backends") or {}
    if not isinstance(named, Mapping) or not all(isinstance(each, Mapping) for each in named.values()):
        raise ConfigurationError("saga_backends has a wrong form", f'Write {{"orders": {_BACKEND}}}')
    urls = [given.get(name) for name in ("backend", "aggregator_backend", "outbox_backend")]
    return [url for url in (*urls, *(each.get("backend") for each in named.values())) if isinstance(url, str) and "://" in url]


def no_backend(name: str, known: Iterable[str], subject: str) -> ConfigurationError:
    """Return the error about the name of a backend that the settings do not have."""
    if not BACKEND_NAME.fullmatch(name):  # it may be a URL without its scheme, with a password
        remedy = "Write it as scheme://address, or name one of saga_backends"
        return ConfigurationError(f"{subject} is neither the URL of a backend nor its name", remedy)
    has = ", ".join(known) or "none"
    remedy = f'Add it: saga_backends = {{"{name}": {_BACKEND}}}'
    return ConfigurationError(f"{subject} names the backend {name!r}, and saga_backends has {has}", remedy)


def _given(conf: Configuration) -> dict[str, Any]:
    """Return the app's ``saga_*`` settings without their prefix: ``saga_backend``, or ``CELERY_SAGA_BACKEND`` under Django."""
    keys = list(map(str, conf.keys()))  # first of all: the namespace is not known before the app is configured
    given: dict[str, Any] = {}
    for key in keys:
        if key.startswith(PREFIX):
            given[key.removeprefix(PREFIX)] = conf[key]
        elif key.startswith(namespaced := _namespaced(conf.prefix or "")):
            name = key.removeprefix(namespaced).lower()
            given[name] = conf.get(PREFIX + name, conf[key])
    return given


def _namespaced(namespace: str) -> str:
    """Return the prefix of the settings under a namespace, in its case, as Celery does."""
    return namespace + PREFIX if namespace and namespace.islower() else (namespace + PREFIX).upper()


def _path(problem: Mapping[str, Any]) -> str:
    return ".".join(str(part) for part in problem["loc"])
