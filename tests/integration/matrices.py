"""On which combinations of engine, broker and pool a test runs: on as few as have each of them, or on all in ``tox -e chaos``."""

import os
from itertools import product

IS_FULL = os.environ.get("CELERY_SAGAS_TEST_MATRIX") == "full"


def matrix(*rows: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return these combinations, or every combination of their values if the whole matrix is asked for."""
    return list(product(*map(dict.fromkeys, zip(*rows, strict=True)))) if IS_FULL else list(rows)
