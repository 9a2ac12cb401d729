"""The database that a URL names, and the URL as it may be shown."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from celery_sagas.errors import ConfigurationError
from celery_sagas.stores.secrets import HIDDEN, hide, is_secret

#: SQLAlchemy's name of the dialect, and the one driver that is supported, by the name in the URL.
_DRIVERS = {
    "postgresql": ("postgresql", "psycopg"),
    "mysql": ("mysql", "pymysql"),
    "mariadb": ("mysql", "pymysql"),
    "sqlite": ("sqlite", "pysqlite"),
}


@dataclass(frozen=True, slots=True)
class SqlLocation:
    """A database's address; only ``shown`` may be shown."""

    url: URL  #: with the driver
    shown: str  #: as it was written, but for secrets
    secrets: tuple[str, ...]
    #: What creates the tables, if no worker may: the remedy of errors about missing ones.
    creates_tables: str = ""
    #: Returns arguments of the driver that are not in the URL, before each connection.
    arguments: Callable[[], Mapping[str, Any]] | None = None

    def __repr__(self) -> str:
        return f"SqlLocation({self.shown})"

    @property
    def in_memory(self) -> bool:
        """True if this is an SQLite database that lives and dies with its connection."""
        database = self.url.database or ":memory:"
        return self.url.get_backend_name() == "sqlite" and (":memory:" in database or self.url.query.get("mode") == "memory")

    @property
    def missing_folder(self) -> str:
        """The folder of an SQLite file, if it does not exist; else empty."""
        file = self._file
        return str(file.parent) if file and not file.parent.is_dir() else ""

    @property
    def is_missing_file(self) -> bool:
        """Whether this is an SQLite file that does not exist: connecting would make it."""
        return self._file is not None and not self._file.exists()

    @property
    def _file(self) -> Path | None:
        """The SQLite file, if this is one that is named by its path."""
        database = self.url.database or ""
        is_file = self.url.get_backend_name() == "sqlite" and not self.in_memory and not database.startswith("file:")
        return Path(database).absolute() if is_file else None

    def hide_secrets(self, text: str) -> str:
        """Replace the URL's secrets, should a driver have repeated one in its text."""
        return hide(text, self.secrets)


def locate(url: str) -> SqlLocation:
    """Parse a URL, with or without Celery's ``db+``.

    Raises:
        ConfigurationError: It is not a URL, or names a database or a driver that is not supported. The text does not repeat
            the URL, nor does an exception behind it: it may hold a password.
    """
    try:
        given = make_url(url.removeprefix("db+"))
    except (ArgumentError, ValueError):
        raise ConfigurationError(
            "the URL of the saga backend is malformed",
            "Write it as dialect://user:password@host:port/database, with special characters in the password %-escaped",
        ) from None
    return SqlLocation(given.set(drivername=_driver_name(given)), _shown(given), _secrets(given))


def _driver_name(url: URL) -> str:
    name, _, driver = url.drivername.partition("+")
    if name not in _DRIVERS:
        raise ConfigurationError(f"the database {name} is not supported", f"Supported are {', '.join(_DRIVERS)}")
    dialect, supported = _DRIVERS[name]
    if driver not in ("", supported):
        raise ConfigurationError(f"the driver {driver} is not supported", f"Begin the URL with {name}:// to use {supported}")
    return f"{dialect}+{supported}"


def _shown(url: URL) -> str:
    hidden = {argument: HIDDEN for argument in url.query if is_secret(argument)}
    return url.update_query_dict(hidden).render_as_string(hide_password=True).replace("%2A%2A%2A", HIDDEN)


def _secrets(url: URL) -> tuple[str, ...]:
    values = [url.query[argument] for argument in url.query if is_secret(argument)]
    texts = [text for value in values for text in ((value,) if isinstance(value, str) else value)]
    return tuple(text for text in (str(url.password or ""), *texts) if text)
