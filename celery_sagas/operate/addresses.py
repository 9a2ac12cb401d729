"""The keys by which operators name instances."""

import json
from collections.abc import Sequence

from celery_sagas.core.keys import text_of
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.engine.query import lookup_of
from celery_sagas.errors import CorrelationError, DefinitionError


def key_of(saga: SagaDefinition, words: Sequence[str]) -> str:
    """Return the canonical text of a key; one that is no key in today's code may be one of an instance that is stored.

    Args:
        saga: Its saga.
        words: One for each part; or one, which is the JSON array of several parts.

    Raises:
        ValueError: No instance can have this key.
    """
    given = words[0] if len(words) == 1 else json.dumps(words, ensure_ascii=False, separators=(",", ":"))
    try:
        parts = json.loads(given) if len(saga.correlate_by) > 1 else given
        return lookup_of(saga, tuple(parts) if isinstance(parts, list) else parts, {}).value
    except (ValueError, RecursionError, CorrelationError, DefinitionError):
        return text_of(given)
