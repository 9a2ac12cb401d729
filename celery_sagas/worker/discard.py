"""Discarding a dead letter: its message is never handled, as an operator decides."""

from celery import Celery

from celery_sagas.stores.records import DeadLetter
from celery_sagas.worker.replay import withdrawal_of
from celery_sagas.worker.runtime import runtime_of


def discard_letter(app: Celery, letter: DeadLetter) -> bool:
    """Remove a letter; if its instance waits for the message, a timeout or what came of a request, it no longer does.

    The letter goes last: whoever dies in between discards it again.

    Returns:
        Whether an instance waited for it.

    Raises:
        StoreError: The letter is kept.
    """
    runtime, withdrawal = runtime_of(app), withdrawal_of(letter)
    waited = withdrawal is not None and withdrawal.perform(runtime.backend, runtime.settings.conflict_retries)
    runtime.backend.dead.remove(letter.id)
    return waited
