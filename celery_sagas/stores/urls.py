"""The adapter for a backend's URL. Adapters, and with them drivers, are imported only when they are opened."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from operator import attrgetter
from typing import Final, Protocol
from urllib.parse import parse_qsl

from celery_sagas.errors import ConfigurationError, needs_extra
from celery_sagas.stores.ports import Backend

#: The entry points of other packages: the name is the scheme, the object is called as ``OpenBackend`` says.
ENTRY_POINTS: Final = "celery_sagas.backends"
#: A URL with the import path of what opens it, as Celery writes backends of one's own: package.module:object+scheme://address.
_IMPORT_PATH = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_][\w.]*)\+(.*)", re.DOTALL)
#: What may be registered as a scheme.
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
#: Between several URLs, as Celery writes Sentinels.
_BETWEEN_URLS = re.compile(r";(?=[a-z+]+://)")
#: Hosts with or without ports, at most a path, and the beginning of a query: name=value. An @ may stand in that value.
_HOSTS_AND_QUERY = r"(?:(?:\[[^]/?#@]*\]|[^][:/?#@,]+)(?::\d{1,5})?(?:,|(?=[/?])))+(?:/[^?#@]*)?\?[\w.-]+="
#: A password that ends the address for Celery, as its / ? or # is not escaped. Digits before that may be a port; in
#: me:12/s3cret@host they begin a password, and are taken for that wherever the @ does not stand in the query: one that is
#: meant in a path can be written as %40, and a password that was shown cannot be taken back.
_UNESCAPED = re.compile(rf"://(?!{_HOSTS_AND_QUERY})[^:/?#]*:[^@/?#]*[/?#].*@", re.DOTALL)
#: A password before a host.
_PASSWORD = re.compile(r"://[^/?#@]*:[^/?#@]+@")
#: The name of a secret in a query; PostgreSQL's passfile is a path.
_SECRET = re.compile(
    r"passw|passphrase|(?:^|[_-])pass(?!file|ive)|(?<!by)(?<!com)pass$|pwd|secret|token|(api|access)[_-]?key(?!_?id)|credential|signature|^auth$",
    re.IGNORECASE,
)


class OpenBackend(Protocol):
    """Opens a backend, most often its class: nothing is connected yet.

    Called with the URL, the settings ``saga_prefix`` and ``saga_backend_options``, and the clock that a test puts in the place of
    the store's own.
    """

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
        with needs_extra(self.extra, f"the driver {self.driver} of the saga backend"):
            import_module(self.driver or self.module)
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
    "django": _Adapter("celery_sagas.contrib.django.backend", "DjangoBackend", driver="django", extra="django"),
    **dict.fromkeys(("redis", "rediss", "unix", "sentinel"), _Adapter(*_REDIS, driver="redis", extra="redis")),
}

#: Schemes that say more than the adapter's.
_VARIANTS = ("redis+socket", "redis+cluster", "rediss+cluster")
#: What to do about something that cannot be called.
_CALLABLE = "Name a class, or a function that opens a backend"
#: What was registered in this process, by its scheme.
_REGISTERED: dict[str, OpenBackend] = {}


def register_backend(scheme: str, open_backend: OpenBackend) -> None:
    """Register your own backend for the URLs of a scheme, in this process.

    Call it in the module that makes the Celery app: every worker, script and command imports that. Registering a scheme again
    replaces what was registered for it, and goes before an entry point of that name.

    Args:
        scheme: What stands before ``://`` in ``saga_backend``.
        open_backend: A function, or a class, that is called as ``OpenBackend`` says.

    Raises:
        ConfigurationError: It is not a scheme, or one of our own; or ``open_backend`` cannot be called.
    """
    if not _SCHEME.fullmatch(scheme):
        raise ConfigurationError(f"{scheme!r} is no scheme of a URL", "Use small letters and digits, a letter first: shelf")
    if scheme.partition("+")[0] in (*_ADAPTERS, "db"):
        raise ConfigurationError(f"{scheme}:// is a scheme of celery_sagas itself", "Register your backend under another one")
    if not callable(open_backend):
        raise ConfigurationError(f"what is registered for {scheme}:// cannot be called", _CALLABLE)
    _REGISTERED[scheme] = open_backend


def open_backend(url: str, *, prefix: str, options: Mapping[str, object], clock: Callable[[], int] | None = None) -> Backend:
    """Open the backend that a URL names; nothing is connected yet.

    Args:
        url: The setting ``saga_backend``; SQL with or without Celery's ``db+``. It may begin with the import path of what opens
            it, ``package.module:object+``. URLs come from settings and commands alone: they may name code.
        prefix: The setting ``saga_prefix``.
        options: The setting ``saga_backend_options``.
        clock: Overrides the backend's clock: returns milliseconds since the epoch.

    Raises:
        ConfigurationError: The URL is malformed, its scheme unknown, its driver or what it names missing, or an option wrong; or
            Celery would show a secret of the URL.
    """
    check_secrets(url)
    if named := _IMPORT_PATH.fullmatch(url):
        module, name, url = named.groups()
        _scheme_of(url)
        return _imported(module, name)(url, prefix=prefix, options=options, clock=clock)
    return _opener_of(_scheme_of(url))(url, prefix=prefix, options=options, clock=clock)


def check_driver(scheme: str) -> None:
    """Check that the driver for the URLs of one of our own schemes can be imported.

    Raises:
        ConfigurationError: It cannot.
    """
    _ADAPTERS[scheme].load()


def check_secrets(url: str) -> None:
    """Check that ``celery report`` hides the secrets of a URL: it hides the password before the first host, and no other.

    Raises:
        ConfigurationError: It would show one. The text does not repeat it.
    """
    first, *others = _BETWEEN_URLS.split(url)
    if any(map(_UNESCAPED.search, (first, *others))):
        raise ConfigurationError(
            "the URL of the saga backend is malformed",
            "Write it as scheme://user:password@host:port/database, with special characters in the password %-escaped",
        )
    if _IMPORT_PATH.match(first) and _PASSWORD.search(first):
        raise ConfigurationError(
            "the URL of the saga backend has an import path and a password, which celery report shows before Celery 5.7",
            "Write the password into saga_backend_options, or register the backend under a scheme of its own: register_backend()",
        )
    if any("@" in other.partition("?")[0] for other in others):
        raise ConfigurationError(
            "the URL of the saga backend names a user or a password more than once",
            "Write them into the first of its URLs, for all hosts: celery report may show the others",
        )
    behind = [part for each in (first, *others) for part in re.split("[?#]", each)[1:]]
    names = [name for part in behind for name, _ in parse_qsl(part, keep_blank_values=True)]
    if secrets := list(dict.fromkeys(filter(_SECRET.search, names))):
        raise ConfigurationError(
            f"the URL of the saga backend has {', '.join(secrets)} in its query, which celery report shows",
            "Write the password before the host, user:password@host, and other secrets into saga_backend_options: "
            '{"connect_args": {...}} in SQL',
        )


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
    if scheme in _REGISTERED:
        return _REGISTERED[scheme]
    others = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if scheme in others:
        return _imported(others[scheme].module, others[scheme].attr)
    known = ", ".join(f"{name}://" for name in (*_ADAPTERS, *_VARIANTS, *sorted({*_REGISTERED, *others})))
    raise ConfigurationError(
        f"no saga backend serves the scheme {scheme}://",
        f"Known are {known}; a backend of your own is named by its import path, package.module:object+{scheme}://, or given to "
        "register_backend() in the module that makes the app",
    )


def _imported(module: str, name: str) -> OpenBackend:
    """Import what opens a backend."""
    path = f"{module}:{name}"
    try:
        imported = import_module(module)
    except Exception as exc:  # whatever its code raises
        raise ConfigurationError(
            f"the saga backend {path} cannot be opened: its module cannot be imported: {type(exc).__name__}: {exc}",
            "Write the path as package.module:object, and install the package, or put it on PYTHONPATH",
        ) from exc
    try:
        found = attrgetter(name)(imported)
    except AttributeError as exc:
        raise ConfigurationError(f"the saga backend {path} cannot be imported ({exc})", f"Name what {module} defines") from exc
    if not callable(found):
        raise ConfigurationError(f"the saga backend {path} cannot be called", _CALLABLE)
    opener: OpenBackend = found
    return opener
