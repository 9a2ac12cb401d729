"""What stands in the place of a port that a backend has not set."""

from collections.abc import Callable
from inspect import getattr_static
from typing import Any, Final

from celery_sagas.errors import ConfigurationError


class Unset:
    """A port that a backend has not set: reading it raises ``ConfigurationError``.

    Args:
        error: Returns the error, given the backend's URL.
    """

    def __init__(self, error: Callable[[str], ConfigurationError]) -> None:
        self._error = error

    def __get__(self, backend: Any, owner: type[object]) -> Any:
        """Return itself, of the class alone."""
        if backend is None:
            return self
        raise self._error(backend.url)


def is_set(backend: object, port: str) -> bool:
    """Return whether a backend has set a port."""
    return not isinstance(getattr_static(backend, port), Unset)


def no_aggregators(url: str, what: str = "the items of aggregators") -> ConfigurationError:
    """Return the error about something that a backend without aggregators cannot keep."""
    problem = f"{what} cannot be kept in {url}, a backend without aggregators"
    return ConfigurationError(problem, "Set saga_aggregator_backend to the URL of a backend that has them")


def no_instances(url: str, what: str = "instances") -> ConfigurationError:
    """Return the error about something that a backend without ``Instances`` cannot list."""
    problem = f"{what} cannot be listed in {url}, a backend without Instances"
    return ConfigurationError(problem, "Keep them in another backend, or find them one by one")


def no_audit(url: str, what: str = "what operators do") -> ConfigurationError:
    """Return the error about something that a backend without ``Audit`` cannot record."""
    problem = f"{what} cannot be recorded in {url}, a backend without Audit"
    return ConfigurationError(problem, "Keep the saga in another backend")


def no_switches(url: str, what: str = "sagas and steps") -> ConfigurationError:
    """Return the error about something that a backend without ``Switches`` cannot hold."""
    problem = f"{what} cannot be held in {url}, a backend without Switches"
    return ConfigurationError(problem, "Keep the saga in another backend, or stop its workers")


NOT_KEPT: Final[Any] = Unset(no_aggregators)
NOT_LISTED: Final[Any] = Unset(no_instances)
NOT_AUDITED: Final[Any] = Unset(no_audit)
NOT_SWITCHED: Final[Any] = Unset(no_switches)
