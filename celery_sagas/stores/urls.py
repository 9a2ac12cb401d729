"""Which adapter serves a backend's URL. Adapters, and with them drivers, are imported when they are opened, not before."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import Final, Protocol

from celery_sagas.errors import ConfigurationError
from celery_sagas.stores.ports import Backend

#: The entry points of other packages: the name is the scheme, the object is called as ``OpenBackend`` says.
ENTRY_POINTS: Final = "celery_sagas.backends"


class OpenBackend(Protocol):
    """Opens a backend."""

    def __call__(self, url: str, *, prefix: str, options: Mapping[str, object], clock: Callable[[], int] | None) -> Backend: ...


@dataclass(frozen=True, slots=True)
class _Adapter:
    """One of our own adapters."""

    module: str
    name: str
    driver: str = ""  #: the module that must be importable
    extra: str = ""  #: the extra that installs it

    def load(self) -> OpenBackend:
        """Import the adapter and its driver."""
        try:
            import_module(self.driver or self.module)
        except ImportError as exc:
            raise ConfigurationError(
                f"the driver {self.driver} of the saga backend cannot be imported ({exc})",
                f'Run pip install "celery-sagas[{self.extra}]"',
            ) from exc
        opener: OpenBackend = getattr(import_module(self.module), self.name)
        return opener


_SQL = ("celery_sagas.stores.sql.backend", "SqlBackend")
_REDIS = ("celery_sagas.stores.redis.backend", "RedisBackend")
_ADAPTERS: Mapping[str, _Adapter] = {
    "memory": _Adapter("celery_sagas.stores.memory.backend", "MemoryBackend"),
    "sqlite": _Adapter(*_SQL, driver="sqlite3"),
    "postgresql": _Adapter(*_SQL, driver="psycopg", extra="postgresql"),
    "mysql": _Adapter(*_SQL, driver="pymysql", extra="mysql"),
    "mariadb": _Adapter(*_SQL, driver="pymysql", extra="mysql"),
    **dict.fromkeys(("redis", "rediss", "unix", "sentinel"), _Adapter(*_REDIS, driver="redis", extra="redis")),
}

#: Schemes that say more than the adapter's.
_VARIANTS = ("redis+socket", "redis+cluster", "rediss+cluster")


def open_backend(url: str, *, prefix: str, options: Mapping[str, object], clock: Callable[[], int] | None = None) -> Backend:
    """Open the backend that a URL names; nothing is connected yet.

    Args:
        url: The setting ``saga_backend``; SQL with or without Celery's ``db+``.
        prefix: The setting ``saga_prefix``.
        options: The setting ``saga_backend_options``.
        clock: Overrides the backend's clock: returns milliseconds since the epoch.

    Raises:
        ConfigurationError: The URL is malformed, its scheme unknown, its driver missing, or an option wrong.
    """
    return _opener_of(_scheme_of(url))(url, prefix=prefix, options=options, clock=clock)


def _scheme_of(url: str) -> str:
    """Return the scheme without Celery's ``db+`` and without a driver."""
    scheme, separator, _ = url.removeprefix("db+").partition("://")
    if not separator:
        raise ConfigurationError("the URL of the saga backend has no scheme", "Write it as scheme://address")
    return scheme


def _opener_of(scheme: str) -> OpenBackend:
    own = _ADAPTERS.get(scheme.partition("+")[0])
    if own is not None:
        return own.load()
    others = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if scheme in others:
        opener: OpenBackend = others[scheme].load()
        return opener
    known = ", ".join(f"{name}://" for name in (*_ADAPTERS, *_VARIANTS, *sorted(others)))
    raise ConfigurationError(f"no saga backend serves the scheme {scheme}://", f"Known are {known}")
