"""The history of an instance, as its journal has kept it."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from pydantic_core import from_json

from celery_sagas.clock import utc_time
from celery_sagas.core.encoding import check_decoded
from celery_sagas.core.history import HandledMessage, History, message_of
from celery_sagas.core.saga import VALUES, SagaDefinition
from celery_sagas.engine.commit import PAUSED
from celery_sagas.engine.outcomes import Kind
from celery_sagas.errors import HistoryError
from celery_sagas.stores.journal import Journal
from celery_sagas.stores.records import Entry

#: The most messages of a history.
MESSAGES = 10_000
#: The problem where there is no history at all.
NO_INSTANCE = "the journal knows no instance"
_OPERATED = "here an operator has acted on it"
_PAUSED = "here it was paused by an operator, and the message has waited"
_DISCARDED = "here an operator discarded a dead letter, so that the instance no longer waited for it"


def history_of(journal: Journal, saga: SagaDefinition, key: str) -> History:
    """Return the history of the newest instance with a key.

    Args:
        journal: The journal.
        saga: The saga.
        key: The canonical text of the key.

    Raises:
        HistoryError: There is none, or it is not whole.
        StoreError: The journal cannot be read.
    """
    entries = journal.history(saga.names, key, MESSAGES)
    instance_id = next((entry.instance_id for entry in reversed(entries) if has_changed_it(entry)), "")
    if not instance_id:
        raise HistoryError(saga.name, key, NO_INSTANCE, "The key is its canonical text, as in the log")
    own = [entry for entry in entries if entry.instance_id == instance_id and has_changed_it(entry)]
    found = list(_messages(saga, sorted(own, key=lambda entry: entry.version)))
    _check_whole(saga, key, found, is_cut=len(entries) == MESSAGES)
    return History(saga=saga.name, key=key, instance=instance_id, messages=found)


def has_changed_it(entry: Entry) -> bool:
    """Return whether the instance has another version since then: a message that was ignored, or has failed, changes nothing."""
    return bool(entry.instance_id and entry.version) and entry.outcome != Kind.FAILED


def _messages(saga: SagaDefinition, entries: Sequence[Entry]) -> Iterator[HandledMessage]:
    for entry in entries:
        try:
            check_decoded(entry.detail)
            detail = from_json(entry.detail)
        except ValueError as exc:
            problem = f"the journal's entry of version {entry.version} cannot be read ({exc})"
            raise HistoryError(saga.name, entry.key, problem) from exc
        if "dead_letter" in detail:
            detail["message"] = {"omitted": _DISCARDED}
        elif "act" in detail:
            detail["message"] = {"omitted": _OPERATED}
        elif detail.get("reason") == PAUSED:
            detail["message"] = {"omitted": _PAUSED}
        if "message" in detail:
            about = {"step": entry.step, "id": entry.message_id, "outcome": entry.outcome, "version": entry.version}
            yield message_of(detail, at=utc_time(entry.at), **about)
        else:
            raise HistoryError(saga.name, entry.key, f"the journal has no message of version {entry.version}", _remedy(saga))


def _remedy(saga: SagaDefinition) -> str:
    if not saga.keeps_messages:
        kept = '("messages", "values")' if saga.changes == VALUES else '"messages"'
        declared = f"class {saga.cls.__name__}(Saga, …, history={kept})"
        return f"Declare {declared}; instances that begin from then on have a history"
    return 'It was handled by code without history="messages": instances that began later have a whole history'


def _check_whole(saga: SagaDefinition, key: str, messages: Sequence[HandledMessage], *, is_cut: bool) -> None:
    versions = [message.version for message in messages]
    if versions[0] != 1:
        problem = f"its journal begins with version {versions[0]}: what came before was purged"
        if is_cut:
            problem = f"it has handled more than {MESSAGES:,} messages"
        raise HistoryError(saga.name, key, problem, "A replay begins at version 1; saga_journal_retention keeps more")
    for before, after in pairwise(versions):
        if after != before + 1:
            raise HistoryError(saga.name, key, f"its journal goes from version {before} to version {after}")
