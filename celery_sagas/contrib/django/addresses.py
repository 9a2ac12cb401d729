"""The database of an alias, as Django's settings describe it, and how to connect to it."""

import inspect
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.connection import ConnectionDoesNotExist
from sqlalchemy import URL

from celery_sagas.errors import ConfigurationError
from celery_sagas.stores.secrets import is_secret
from celery_sagas.stores.sql.connection.location import SqlLocation
from celery_sagas.stores.urls import check_driver

#: SQLAlchemy's names of the databases, by Django's.
DRIVERS: Final[Mapping[str, str]] = {
    "postgresql": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "sqlite": "sqlite+pysqlite",
}
#: Arguments of Django's connections that are not about where they lead: how it reads and writes values.
_DJANGOS: Final = frozenset({"client_encoding", "client_flag", "charset", "context", "conv", "cursor_factory", "use_unicode"})
#: mysqlclient's names of arguments, and PyMySQL's.
_RENAMED: Final[Mapping[str, str]] = {"db": "database", "passwd": "password"}


def alias_of(url: str) -> str:
    """Return the alias in ``django://alias``.

    Raises:
        ConfigurationError: There is none.
    """
    scheme, _, alias = url.partition("://")
    if scheme != "django" or not alias.replace("-", "_").isidentifier():
        raise ConfigurationError(f"{url} names no database of Django's", "Write it as django://alias, such as django://default")
    return alias


def locate(alias: str) -> SqlLocation:
    """Return the database of an alias.

    Raises:
        ConfigurationError: Django's settings have no such alias, or it is no database that sagas can be kept in.
    """
    connection = connection_of(alias)
    if connection.vendor not in DRIVERS:
        problem = f"the database {alias!r} of Django's is {connection.display_name}"
        raise ConfigurationError(problem, "Keep sagas in PostgreSQL, MariaDB, MySQL or SQLite, or in Redis")
    if connection.settings_dict["AUTOCOMMIT"] is False:
        problem = f"the database {alias!r} of Django's has AUTOCOMMIT = False, with which Django commits nothing itself"
        raise ConfigurationError(problem, "Remove it: it is True by default")
    check_driver(connection.vendor)
    url, arguments = URL.create(DRIVERS[connection.vendor]), None
    if connection.vendor == "sqlite":
        name = ":memory:" if in_memory(connection) else str(connection.settings_dict["NAME"])
        url = url.set(database=name, query={"uri": "true"} if name.startswith("file:") else {})
    else:
        arguments = partial(arguments_of, alias)
        arguments()
    remedy = f"run `python manage.py migrate --database={alias}`, with celery_sagas.contrib.django in INSTALLED_APPS"
    return SqlLocation(url, f"django://{alias}", _secrets(connection.settings_dict), remedy, arguments)


def connection_of(alias: str) -> Any:
    """Return this thread's connection of an alias, as Django manages it.

    Raises:
        ConfigurationError: There is none.
    """
    try:
        return connections[alias]
    except ConnectionDoesNotExist as exc:
        known = ", ".join(connections)
        raise ConfigurationError(f"DATABASES of Django's has no {alias!r}", f"It has {known}: name one of them") from exc
    except ImproperlyConfigured as exc:
        problem = f"Django is not configured: {next(iter(str(exc).splitlines()), '')}"
        raise ConfigurationError(problem, "Set DJANGO_SETTINGS_MODULE before the Celery app is made") from exc


def in_memory(connection: Any) -> bool:
    """Return whether a database lives and dies with Django's connections, as SQLite's does in tests."""
    return bool(connection.vendor == "sqlite" and connection.is_in_memory_db())


def arguments_of(alias: str) -> dict[str, Any]:
    """Return the arguments with which the library's driver connects to the database of an alias, as it is now.

    Tests give it another name, and a password may change.

    Raises:
        ConfigurationError: Django's settings are not complete, or have an option that the driver has not.
    """
    connection = connection_of(alias)
    try:
        given = connection.get_connection_params()
    except ImproperlyConfigured as exc:
        raise ConfigurationError(f"the database {alias!r} of Django's: {exc}", "Complete DATABASES") from exc
    options = connection.settings_dict["OPTIONS"]
    arguments = {_RENAMED.get(name, name): value for name, value in given.items() if name not in _DJANGOS}
    if connection.vendor == "mysql":
        _check_known(alias, arguments)
    elif role := options.get("assume_role"):
        arguments["options"] = f"{arguments.get('options', '')} -c role={role}".strip()
    if "prepare_threshold" not in options:
        arguments.pop("prepare_threshold", None)
    return arguments


def _check_known(alias: str, arguments: Mapping[str, object]) -> None:
    known = inspect.signature(import_module("pymysql").connect).parameters
    if unknown := sorted(set(arguments) - set(known)):
        problem = f"the database {alias!r} of Django's has the option {', '.join(unknown)}, which PyMySQL has not"
        raise ConfigurationError(problem, "Write it as PyMySQL has it, which mysqlclient takes too: {'ssl': {'ca': …}}")


def _secrets(settings: Mapping[str, Any]) -> tuple[str, ...]:
    values = [settings["PASSWORD"], *(value for name, value in settings["OPTIONS"].items() if is_secret(name))]
    return tuple(value for value in values if isinstance(value, str) and value)
