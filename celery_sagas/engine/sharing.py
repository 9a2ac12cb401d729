"""Handlers that share a transaction with the commit of their message."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from celery_sagas.core.state import State
from celery_sagas.core.step import StepDefinition
from celery_sagas.engine.session import Delivery
from celery_sagas.errors import RevisionConflict
from celery_sagas.stores.shared import SharedTransaction


def call(delivery: Delivery, state: State, arguments: Mapping[str, Any], shared: SharedTransaction | None) -> Any:
    """Call the handler of a message; in a transaction, have the database check what it has written."""
    step = delivery.step
    if shared is None:
        return delivery.call(step.function, state, **arguments)
    result = delivery.call(step.function, state, **step.given(arguments, shared.handle))
    shared.flush()
    return result


@contextmanager
def undone_for_others(shared: SharedTransaction, step: StepDefinition, key: str) -> Iterator[None]:
    """Tell errors of the database, which has undone a transaction or is lost, from those of the handler.

    Raises:
        RevisionConflict: It was undone in favour of another one: the handler runs again.
        StoreUnavailable: The connection was lost.
    """
    try:
        yield
    except Exception as exc:
        if shared.is_conflict(exc):
            raise RevisionConflict(step.saga.name, key, "deadlock") from exc
        if (loss := shared.loss_of(exc)) is not None:
            raise loss from exc
        raise
