"""Discarding a dead letter: its message is never handled, as an operator decides."""

from celery import Celery

from celery_sagas.core.conversation import Addressed
from celery_sagas.core.registry import registry
from celery_sagas.engine.withdrawal import Withdrawal
from celery_sagas.errors import InvalidMessage, MisuseError
from celery_sagas.stores.records import DeadLetter
from celery_sagas.worker.headers import read_address
from celery_sagas.worker.replay import request_in
from celery_sagas.worker.runtime import runtime_of


def discard_letter(app: Celery, letter: DeadLetter) -> bool:
    """Remove a letter; if its instance waits for the message, a timeout or what came of a request, it no longer does.

    The letter goes last: whoever dies in between discards it again.

    Returns:
        Whether an instance waited for it.

    Raises:
        StoreError: The letter is kept.
    """
    runtime, addressed = runtime_of(app), _addressed(letter)
    waited = False
    if addressed is not None:
        waited = Withdrawal(letter, _saga_names(letter), addressed).perform(runtime.backend, runtime.settings.conflict_retries)
    runtime.backend.dead.remove(letter.id)
    return waited


def _addressed(letter: DeadLetter) -> Addressed | None:
    """Return where the message of a letter is addressed to, if it is one that an instance waits for."""
    try:
        return read_address(request_in(letter, letter.task))
    except (MisuseError, InvalidMessage):  # it holds no message, or an address that no instance has
        return None


def _saga_names(letter: DeadLetter) -> tuple[str, ...]:
    """Return the names of the saga to whose step a message went, also if nobody knows the step any more."""
    known = {letter.saga, letter.task.rpartition(".")[0]}
    saga = next((saga for saga in registry.sagas.values() if known.intersection(saga.names)), None)
    return saga.names if saga else (letter.saga,)
