"""The commit of one run: everything that it writes, as one operation of the store."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Protocol

from pydantic_core import PydanticSerializationError, to_json

from celery_sagas.core.changes import changes_of
from celery_sagas.core.codec import dump
from celery_sagas.core.context import StepContext
from celery_sagas.core.history import digests_of, keep_message, shown_fields
from celery_sagas.core.ids import row_id
from celery_sagas.core.nesting import LEVELS, is_deeper
from celery_sagas.core.pending import NOTHING, TIMEOUTS, Keys, Pending
from celery_sagas.core.requests.requests import REQUESTS, Addressed, Request
from celery_sagas.core.requests.undo import MOST
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.sending import Sending, Serialize, SerializedMessage
from celery_sagas.core.state import State
from celery_sagas.core.step import StepDefinition
from celery_sagas.core.timeouts import Timeout
from celery_sagas.engine.final_states import FINAL, final_state
from celery_sagas.engine.instance import (
    ReadOutcomes,
    alternate_keys_of,
    context_of,
    difference,
    key_of,
    tags_of,
    unknown_outcomes,
)
from celery_sagas.engine.outcomes import Kind
from celery_sagas.engine.results import QUESTION
from celery_sagas.engine.session import Attempt, Delivery
from celery_sagas.errors import InvalidState
from celery_sagas.stores.operations import Commit, Delete, Insert, Update, Write
from celery_sagas.stores.records import SERIES, Change, Effects, Entry, NewRecord, Outgoing, Record

#: How many messages one commit sends: more would block all other users of the store.
MESSAGES = 1_000
#: The maximum size of all messages of one commit together, as a multiple of the maximum size of a state.
STATES_IN_MESSAGES = 8
#: How many levels of the pending map are left for a signature that it keeps: it lies deeper once it is being undone.
_LEVELS_LEFT: Final = 8
#: What the journal's details say of outgoing rows, and of which kinds.
_DETAILED: Final = {"sent": ("sent",), "scheduled": ("scheduled", SERIES), "deadline": ("deadline",)}
#: Why a message was ignored or deferred: the instance was in another status, or an operator has paused it.
WRONG_STATUS: Final = "status"
PAUSED: Final = "paused"
NOTHING_ELSE: Final[Mapping[str, object]] = MappingProxyType({})

#: Encodes the message that answers a request, given its return address.
SerializeAnswer = Callable[[Mapping[str, Any], object], SerializedMessage | None]


class Outcomes(Protocol):
    """What the library itself does with the outcomes of requests; it sends messages."""

    def note(self, context: StepContext, request: Request, came: str, value: Any) -> None:
        """Keep what an outcome, which a step handles, has made undoable."""

    def settle(self, saga: SagaDefinition, context: StepContext, request: Request, addressed: Addressed, value: Any) -> None:
        """Handle an outcome that no step handles: of an undo, of a request that is undone, or of one that is sent again.

        Raises:
            UndoFailed: An undo has failed for good.
        """

    def hold_answer(self, context: StepContext, asked_by: Mapping[str, Any], value: Any) -> None:
        """Keep the answer of a step that compensates until everything is undone."""


class DeferredMessages(Protocol):
    """What a deferred message holds, and the message that ends its waiting."""

    def is_admitted(self, step: StepDefinition, state: State, payload: str) -> bool:
        """Return whether a step whose ``when=`` is a function runs on an instance for a message; true if that cannot be told."""

    def message(self, task: str, id: str, bound: Mapping[str, Any]) -> SerializedMessage:
        """Return a message to a step, given its arguments by name, as received."""

    def wake(self, saga: SagaDefinition, instance_id: str, id: str, due_at: int) -> SerializedMessage:
        """Return the message that ends the waiting, at a time in milliseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class WorkTerms:
    """The settings that every unit of work of a process follows."""

    serialize: Serialize
    answer: SerializeAnswer
    outcomes: Outcomes
    deferred: DeferredMessages
    state_bytes: int  #: the maximum size of a state
    owner: str  #: the lease token of this process
    grace_ms: int  #: how long this process has to publish the outgoing messages
    read_outcomes: ReadOutcomes = unknown_outcomes  #: of the members of gathers


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one message."""

    id: str  #: distinguishes a repeated call of the store from another run; also the id of an instance that it creates
    delivery: Delivery
    attempt: Attempt
    terms: WorkTerms
    sending: Sending
    kind: Kind = Kind.HANDLED  #: of its outcome, if the instance goes on
    answer: Mapping[str, object] | None = None  #: what the journal keeps for whoever asks

    @property
    def step(self) -> StepDefinition:
        """The step that handles the message."""
        return self.delivery.step

    def refuse(self, key: str, problem: str, path: str = "") -> InvalidState:
        """Return the error for a state that cannot be committed."""
        return InvalidState(self.step.saga.name, key, [(path, problem)])


def commit_of(run: Run, record: Record | None, state: State) -> Commit:
    """Return the commit that writes an instance as its handler left it.

    Raises:
        InvalidState: It cannot be stored, or sends too many or too large messages.
    """
    context = context_of(state)
    key, is_born = context.view.key, record is None
    if context.completed:
        return _completion_of(run, record, state)
    _check_key(run, key, state)
    rows = _released(run, context.pending)
    keys, tags = alternate_keys_of(run.step.saga, key, state), tags_of(run.step.saga, key, state)
    if run.delivery.trace is not None and is_born:
        context.pending.trace = run.delivery.trace.stored()
    data, pending = dump(run.step.saga, key, state, context.unknown), _pending(run, key, context.pending, keys, tags, rows)
    _check_size(run, key, data, pending)
    changes = _changes_of(run, record, data, state)
    effects = _effects_of(run, Kind.STARTED if is_born else run.kind, state, rows, changes)
    names, version = run.step.saga.names, run.step.saga.schema_version
    if record is None:
        listed = tuple(sorted(keys.items())), tuple(sorted(tags.items()))
        return Insert(NewRecord(context.view.id, names, key, version, data, pending, *listed), effects)
    changed = *difference(context.pending.keys, keys), tuple(context.pending.cancelled), *difference(context.pending.tags, tags)
    return Update(record, Change(names, version, data, pending, *changed), effects)


def _completion_of(run: Run, record: Record | None, state: State) -> Commit:
    context, saga = context_of(state), run.step.saga
    key, kept = context.view.key, dict[str, object]()
    if record is not None or saga.keep_ms is not None:
        _check_key(run, key, state)
    if saga.keep_ms is not None:
        data = dump(saga, key, state, context.unknown)
        _check_size(run, key, data, "")
        kept = {FINAL: final_state(saga, data, context.view.created_at), **_changes_of(run, record, data, state)}
    effects = _effects_of(run, Kind.COMPLETED, state, _released(run, context.pending), kept)
    return Write(effects) if record is None else Delete(record, effects)


def set_aside(run: Run, record: Record, state: State, pending: Pending, wake: SerializedMessage | None = None) -> Update:
    """Return the commit for a message whose step does not run: it leaves the state as it was found.

    Args:
        run: The run, of the kind of the outcome.
        record: The instance as it was found.
        state: Its state.
        pending: Its pending map, with what the message has changed.
        wake: The message that ends the waiting of the last of the deferred messages.

    Raises:
        InvalidState: The pending map is too large.
    """
    rows = _released(run, pending)
    if wake is not None:
        pending.deferred[-1] = pending.deferred[-1]._replace(row=_schedule(run, rows, "scheduled", wake))
    pending.deferred.sort(key=lambda each: each.since)  # one that was released, and has come again, keeps its place
    text = _pending(run, record.key, pending, pending.keys, pending.tags, rows)
    _check_size(run, record.key, record.data, text)
    effects = _effects_of(run, run.kind, state, rows, {"reason": PAUSED if pending.paused else WRONG_STATUS})
    names, version = run.step.saga.names, record.schema_version
    return Update(record, Change(names, version, record.data, text, cancelled=tuple(pending.cancelled)), effects)


def write_of(run: Run, kind: Kind, key: str, instance_id: str, reason: str) -> Write:
    """Return the write that journals a handled message, with what it sends, without an instance."""
    return Write(_effects(run, kind, key, instance_id, 0, [], {"reason": reason} if reason else NOTHING_ELSE))


def _check_key(run: Run, key: str, state: State) -> None:
    if key_of(run.step.saga, key, state) != key:
        raise run.refuse(
            key, "the correlation key was changed; it is the instance's for life", ", ".join(run.step.saga.correlate_by)
        )


def _pending(run: Run, key: str, pending: Pending, keys: Keys, tags: Keys, rows: list[Outgoing]) -> str:
    """Return the text of the pending map, and add the rows of the entries that this step has added."""
    pending.forget_oldest()
    count = len(pending.timeouts) + len(pending.new_timeouts)
    if count > TIMEOUTS:
        raise run.refuse(key, f"it has {count:,} timeouts, and {TIMEOUTS:,} are allowed")
    timeouts, requests = dict(pending.timeouts), dict(pending.requests)
    for name, (message, at, every) in pending.new_timeouts.items():
        row = _schedule(run, rows, SERIES if every else "scheduled", message)
        timeouts[name] = Timeout(message.message_id, row, message.task, at, every)
    for id, (request, deadline) in pending.new_requests.items():
        row = _schedule(run, rows, "deadline", deadline) if deadline else ""
        first = request.member(0) if request.members else id
        sent_row = _row_of(run, first) if request.sent_at or request.members else ""
        requests[id] = replace(request, row=row, sent_row=sent_row) if row or sent_row else request
    if pending.new_then is not None and pending.undo.undoing is not None:
        pending.undo.undoing.then_row = _schedule(run, rows, "scheduled", pending.new_then)
    count = sum(not (request.has_timed_out or request.undoes) for request in requests.values())
    if count > REQUESTS:
        raise run.refuse(key, f"it waits for {count} answers, and {REQUESTS:,} are allowed: use gather() for many of one kind")
    if (count := pending.to_undo) > MOST:
        raise run.refuse(key, f"it has {count} pieces of work to undo, and {MOST:,} are allowed")
    kept = (keys, timeouts, requests, pending.requester, pending.undo, pending.deferred, tags)
    return _readable(run, key, Pending(*kept, pending.paused, pending.trace, pending.more))


def _readable(run: Run, key: str, pending: Pending) -> str:
    """Return the text of the pending map; refuse one that could not be read again."""
    levels = LEVELS if pending.undo.undoing else LEVELS - _LEVELS_LEFT
    try:
        text = pending.text()
    except PydanticSerializationError:  # it is nested more deeply still
        text = ""
    if not text or is_deeper(text, levels):
        problem = "the arguments of what it may send again, or undo, are nested too deeply"
        raise run.refuse(key, f"{problem}: in all {levels} levels are allowed")
    return text


def _row_of(run: Run, message_id: str) -> str:
    """Return the id of the row of a message that is sent."""
    sent = enumerate(run.sending.messages)
    return next((row_id(run.id, number) for number, message in sent if message.answer_id == message_id), "")


def _schedule(run: Run, rows: list[Outgoing], kind: str, message: SerializedMessage) -> str:
    """Add a row that ends with the instance, after those that are sent; return its id."""
    rows.append(_row(run, len(run.sending.messages) + len(rows), kind, message))
    return rows[-1].id


def _check_size(run: Run, key: str, data: str, pending: str) -> None:
    """Refuse a state and a pending map that are too large together."""
    sizes, most = [len(text.encode()) for text in (data, pending)], run.terms.state_bytes
    if sum(sizes) > most:
        waits = f"what it waits for (timeouts, requests, undos, deferred messages, alternate keys) has {sizes[1]}"
        raise run.refuse(key, f"its fields have {sizes[0]} bytes and {waits}; saga_max_state_bytes allows {most} together")


def _released(run: Run, pending: Pending) -> list[Outgoing]:
    """Return the rows of the deferred messages that are sent with this commit, after those that the step sends."""
    if not pending.released:
        return []
    first = len(run.sending.messages)
    return [
        Outgoing(row_id(run.id, number), "sent", each.message_id, each.step, each.payload)
        for number, each in enumerate(pending.released, start=first)
    ]


def _effects_of(
    run: Run, kind: Kind, state: State, rows: Sequence[Outgoing], because: Mapping[str, object] = NOTHING_ELSE
) -> Effects:
    context = context_of(state)
    view, about = context.view, context.pending.to_journal()
    if because:
        about = {**about, **because}
    if run.step.saga.keeps_messages:
        about = {**about, **_history_of(run, state)}
    return _effects(run, kind, view.key, view.id, view.version + 1, rows, about)


def _changes_of(run: Run, record: Record | None, data: str, state: State) -> Mapping[str, object]:
    """Return what the journal keeps of what a step has changed; nothing where no step of the user's has run."""
    if not run.step.saga.changes or run.kind is not Kind.HANDLED:
        return NOTHING_ELSE
    return changes_of(run.step.saga, record.data if record else None, data, state)


def _history_of(run: Run, state: State) -> dict[str, object]:
    """Return what the journal keeps for a replay: the message, and digests of the state after it."""
    delivery = run.delivery
    step, sent_to, asked_by = delivery.step, delivery.addressed, delivery.asked_by
    context = context_of(state)
    message = keep_message(step, delivery.bound, view=context.view, sent_to=sent_to, asked_by=asked_by)
    if run.kind is Kind.DEFERRED:
        message["id"] = delivery.message_id  # that of the entry is another
    kept: dict[str, object] = {"message": message, "state": digests_of(shown_fields(step.saga, state))}
    ids = {name: new.message.message_id for name, new in context.pending.new_timeouts.items()}
    made = {id: name for name, id in ids.items() if name != id}
    return kept | {"names": made} if made else kept


def _effects(
    run: Run, kind: Kind, key: str, instance_id: str, version: int, rows: Sequence[Outgoing], about: Mapping[str, object]
) -> Effects:
    sent = [_row(run, number, "sent", message) for number, message in enumerate(run.sending.messages)]
    outgoing = (*sent, *rows)
    if run.delivery.question:
        about = {**about, QUESTION: run.delivery.question, **(run.answer or {})}
    _check_messages(run, key, outgoing)
    entry = Entry(
        step=run.delivery.task or run.step.name,  # old code finds the entry under the name in the message
        message_id=run.sending.message_id,
        attempt=run.id,
        outcome=kind.value,
        saga=run.step.saga.name,
        key=key,
        instance_id=instance_id,
        version=version,
        detail=_detail(outgoing, about),
    )
    return Effects(entry, outgoing, run.terms.owner, run.terms.grace_ms, run.attempt.lock_owner)


def _check_messages(run: Run, key: str, outgoing: Sequence[Outgoing]) -> None:
    """Refuse a commit that no database accepts: its message would be redelivered again and again."""
    if not outgoing:
        return
    if (count := len(run.sending.messages)) > MESSAGES:  # timeouts and requests have bounds of their own
        raise run.refuse(key, f"it sends {count} messages, and {MESSAGES:,} are allowed: send a task that sends them")
    size, allowed = sum(len(row.payload.encode()) for row in outgoing), run.terms.state_bytes * STATES_IN_MESSAGES
    if size > allowed:
        bound = f"{STATES_IN_MESSAGES} times saga_max_state_bytes, {allowed}, are allowed"
        raise run.refuse(key, f"its messages have {size} bytes in all; {bound}")


def _row(run: Run, number: int, kind: str, message: SerializedMessage) -> Outgoing:
    """Return a row. Its id follows the order of the calls, in which rows are claimed."""
    return Outgoing(row_id(run.id, number), kind, message.message_id, message.task, message.payload, message.due_at)


def _detail(outgoing: Sequence[Outgoing], about: Mapping[str, object]) -> str:
    if not outgoing and not about:
        return NOTHING
    detail = dict(about)
    for name, kinds in _DETAILED.items():
        if rows := [{"task": row.task, "id": row.message_id} for row in outgoing if row.kind in kinds]:
            detail[name] = rows
    return to_json(detail).decode()
