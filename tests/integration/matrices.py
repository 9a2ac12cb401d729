"""The engines, brokers and pools that a test runs on: enough for the suite to have each, or all of them in ``tox -e chaos``."""

from collections.abc import Sequence
from itertools import product

from tests.matrices import IS_FULL

__all__ = ["BROKERS", "DATABASES", "ENGINES", "IS_FULL", "matrix"]

#: Each with transactions of its own kind.
ENGINES = ("sqlite", "postgresql", "mariadb", "redis")
#: Those of them in which users have rows.
DATABASES = ("sqlite", "postgresql", "mariadb")
BROKERS = ("rabbitmq", "redis")


def matrix(*rows: tuple[str, str], engines: Sequence[str] = ENGINES) -> list[tuple[str, str]]:
    """Return these combinations of an engine with a broker or a pool, or every combination if the whole matrix is asked for."""
    others = dict.fromkeys(other for _, other in rows)
    return list(product(engines, BROKERS if set(others) <= set(BROKERS) else others)) if IS_FULL else list(rows)
