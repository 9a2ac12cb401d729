"""The engines, brokers and pools that a test runs on: enough for the suite to have each, or all of them in ``tox -e chaos``."""

from itertools import product

from tests.matrices import IS_FULL

__all__ = ["BROKERS", "ENGINES", "IS_FULL", "matrix"]

#: Each with transactions of its own kind.
ENGINES = ("sqlite", "postgresql", "mariadb", "redis")
BROKERS = ("rabbitmq", "redis")


def matrix(*rows: tuple[str, str]) -> list[tuple[str, str]]:
    """Return these combinations of an engine with a broker or a pool, or every combination if the whole matrix is asked for."""
    others = dict.fromkeys(other for _, other in rows)
    return list(product(ENGINES, BROKERS if set(others) <= set(BROKERS) else others)) if IS_FULL else list(rows)
