"""Keys of a state, and how they differ from those that the store has indexed."""

from celery_sagas.core.definition import SagaDefinition
from celery_sagas.core.keys import key_text
from celery_sagas.core.pending import Keys
from celery_sagas.core.state import State
from celery_sagas.errors import InvalidState


def key_of(definition: SagaDefinition, key: str, state: State) -> str:
    """Return the canonical text of the correlation key that the state has now."""
    try:
        return key_text([part.text(part.convert(getattr(state, part.field))) for part in definition.keys.key])
    except (ValueError, AttributeError) as exc:
        raise InvalidState(definition.name, key, [(", ".join(definition.correlate_by), str(exc))]) from exc


def alternates_of(definition: SagaDefinition, key: str, state: State) -> Keys:
    """Return property and canonical text of the alternate keys that the state has now; a null one has none."""
    keys: Keys = {}
    for name, part in definition.keys.alternates.items():
        value = getattr(state, name, None)
        if value is None:
            continue
        try:
            keys[name] = part.text(part.convert(value))
        except ValueError as exc:
            raise InvalidState(definition.name, key, [(name, str(exc))]) from exc
    return keys


def difference(before: Keys, after: Keys) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    """Return the keys to add and those to remove, sorted, so that two commits lock them in one order."""
    if before == after:
        return (), ()
    old, new = set(before.items()), set(after.items())
    return tuple(sorted(new - old)), tuple(sorted(old - new))
