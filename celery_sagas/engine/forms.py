"""The form in which today's code stores an instance."""

from typing import Final, NamedTuple

from celery_sagas.core.codec import dump, load
from celery_sagas.core.pending import PAUSED, Keys, Pending
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.state import State
from celery_sagas.engine.instance import alternate_keys_of, key_of, tags_of
from celery_sagas.errors import InvalidState
from celery_sagas.stores.records import Record

_OTHER_KEY: Final = "this code makes another correlation key of it, and that is the instance's for life"


class Form(NamedTuple):
    """What today's code would store of an instance that it loads and does not change."""

    data: str  #: the state, as JSON text
    schema_version: int
    keys: Keys  #: its alternate keys
    tags: Keys  #: what it is listed by

    def is_that_of(self, record: Record, pending: Pending) -> bool:
        """Return whether the instance is stored in this form."""
        return self == (record.data, record.schema_version, pending.keys, pending.tags)


def form_of(saga: SagaDefinition, record: Record, pending: Pending) -> Form:
    """Return the form in which an instance would be stored.

    Raises:
        InvalidState: Today's code could not store it.
        NewerState: Newer code wrote it.
        UnreadableState: Today's code cannot read it.
    """
    state, unknown = load(saga, record.key, record.data, record.schema_version)
    data = dump(saga, record.key, state, unknown)
    if key_of(saga, record.key, state) != record.key:
        raise InvalidState(saga.name, record.key, [(", ".join(saga.correlate_by), _OTHER_KEY)])
    return Form(data, saga.schema_version, *listed(saga, record.key, state, pending))


def listed(saga: SagaDefinition, key: str, state: State, pending: Pending) -> tuple[Keys, Keys]:
    """Return the alternate keys that an instance has with a state, and what it is listed by."""
    tags = tags_of(saga, key, state) | (dict([PAUSED]) if pending.paused else {})
    return alternate_keys_of(saga, key, state), tags
