"""The verbs: what an operator may do to an instance."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pydantic_core import from_json, to_json

from celery_sagas.core.changes import is_same
from celery_sagas.core.codec import dump, load
from celery_sagas.core.pending import NOTHING, PAUSED, Pause, Pending
from celery_sagas.core.requests.requests import Request
from celery_sagas.core.sending import SerializedMessage
from celery_sagas.core.state import State
from celery_sagas.core.timeouts import Timeout
from celery_sagas.engine.acts.acting import Plan, Subject
from celery_sagas.engine.final_states import FINAL, FinalState
from celery_sagas.engine.forms import form_of, listed
from celery_sagas.engine.instance import key_of
from celery_sagas.engine.outcomes import Kind
from celery_sagas.errors import InvalidState, MisuseError, UnreadableState
from celery_sagas.stores.operations import Delete, Update

#: Why an instance has completed: an operator has ended it.
TERMINATED: Final = "terminated"
#: How many names an error lists.
_NAMED: Final = 10
_OTHER_VALUES: Final = "give it other values"


def pause(subject: Subject) -> Plan:
    """Have all messages to the instance wait until it is resumed."""
    pending, act = subject.pending, subject.act
    if before := pending.paused:
        return Plan(None, f"{before.actor} has paused it already: {before.reason}")
    pending.paused = Pause(subject.now(), act.actor, act.reason)
    return Plan(subject.update(tags={**pending.tags, **dict([PAUSED])}), "is paused: its messages wait until it is resumed")


def resume(subject: Subject) -> Plan:
    """End a pause, and send what has waited; what is still too early waits again."""
    pending = subject.pending
    if pending.paused is None:
        return Plan(None, "it is not paused")
    pending.paused = None
    _release_all(pending)
    tags = {name: value for name, value in pending.tags.items() if name != PAUSED[0]}
    text = f"goes on{_with_messages(len(pending.released))}"
    return Plan(subject.update(tags=tags), text)


def terminate(
    subject: Subject, end: Callable[[], SerializedMessage | None], *, leave_undone: bool, as_completed: bool = False
) -> Plan:
    """End the instance where it stands: no step of it runs.

    Args:
        subject: The instance.
        end: Returns the message to whoever waits for its answer, if anybody does.
        leave_undone: Whether it may end although something of it could be undone.
        as_completed: Whether its outcome is that of an instance that a step has completed.

    Raises:
        MisuseError: Something of it could be undone.
    """
    record, saga = subject.record, subject.saga
    try:
        pending = subject.pending
    except UnreadableState:
        pending = subject.__dict__["pending"] = Pending()  # what waits with it cannot be read, and goes with it
    if count := (0 if leave_undone else pending.to_undo):
        pieces = "1 piece of work" if count == 1 else f"{count:,} pieces of work"
        problem = f"{subject.name} has {pieces} that could be undone, and terminate does not undo anything"
        raise MisuseError(problem, "Have a step call compensate(), or say that it is left as it is: --leave-undone")
    _release_all(pending)
    kept: dict[str, Any] = {"as": "completed"} if as_completed else {"as": "failed", "reason": TERMINATED}
    if saga.keep_ms is not None:
        kept[FINAL] = FinalState(
            data=record.data, schema_version=record.schema_version, created_at=record.created_at
        ).model_dump()
    told = end()
    effects = subject.effects(Kind.COMPLETED, [told] if told else [], **kept)
    what = "is terminated as completed" if as_completed else "is terminated"
    return Plan(Delete(record, effects), f"{what}{_with_messages(len(pending.released))}")


def patch(subject: Subject, change: Callable[[dict[str, Any]], dict[str, Any]], most_bytes: int) -> Plan:
    """Change the state, which must be valid then, as the state is that a step leaves.

    Args:
        subject: The instance.
        change: Returns the changed fields, given the stored ones, as JSON values.
        most_bytes: The maximum size of a state.

    Raises:
        InvalidState: It would not be valid, or too large, or have another key.
        KeyTaken: An alternate key belongs to another instance.
        NewerState: Newer code wrote it.
    """
    saga, record, pending = subject.saga, subject.record, subject.pending
    before = _upgraded(subject)
    stored = from_json(before)
    state, unknown = _loaded(subject, to_json(change(from_json(before))).decode())
    if names := sorted(unknown.keys() - stored.keys()):
        problems = [(name, "there is no such field") for name in names]
        raise InvalidState(saga.name, record.key, problems, f"the fields are {', '.join(saga.fields)}")
    if key_of(saga, record.key, state) != record.key:
        fields = ", ".join(saga.correlate_by)
        raise InvalidState(saga.name, record.key, [(fields, "the correlation key is the instance's for life")], _OTHER_VALUES)
    after = dump(saga, record.key, state, unknown)
    if after == before and record.schema_version == saga.schema_version:
        return Plan(None, "its state is like that already", before, after)
    if not pending.paused:
        _release_all(pending)  # it may be in another status
    keys, tags = listed(saga, record.key, state, pending)
    paths = _changed(stored, from_json(after))
    commit = subject.update(data=after, schema_version=saga.schema_version, keys=keys, tags=tags, fields=paths)
    _check_size(subject, commit, most_bytes)
    return Plan(commit, f"has changed: {_what_changes(paths, record.schema_version, saga.schema_version)}", before, after)


def reindex(subject: Subject) -> Plan:
    """Have the instance be found, and listed, by the fields that its saga names today; its state stays as it is stored.

    Raises:
        InvalidState: A value cannot be indexed.
        KeyTaken: An alternate key belongs to another instance.
        NewerState: Newer code wrote it.
        UnreadableState: Today's code cannot read its state.
    """
    record, pending = subject.record, subject.pending
    state, _ = load(subject.saga, record.key, record.data, record.schema_version)
    keys, tags = listed(subject.saga, record.key, state, pending)
    names = list(dict.fromkeys([*_changed(pending.keys, keys), *_changed(pending.tags, tags)]))
    if not names:
        return Plan(None, "it is indexed as its saga says")
    return Plan(subject.update(keys=keys, tags=tags, fields=names), f"is indexed again by {', '.join(names)}")


def upgrade(subject: Subject, most_bytes: int, *, always: bool) -> Plan:
    """Store the instance as today's code would: its state, and the keys and fields by which it is found and listed.

    Args:
        subject: The instance.
        most_bytes: The maximum size of a state.
        always: Whether it is also stored if that is how it is stored: with the key that ``saga_codec`` has now.

    Raises:
        InvalidState: Today's code could not store it.
        KeyTaken: An alternate key belongs to another instance.
        NewerState: Newer code wrote it.
        UnreadableState: Today's code cannot read it.
    """
    saga, record, pending = subject.saga, subject.record, subject.pending
    form = form_of(saga, record, pending)
    is_current = form.is_that_of(record, pending)
    if is_current and not always:
        return Plan(None, "it is stored as this code would store it")
    fields = _changed(from_json(record.data), from_json(form.data))
    if fields and not pending.paused:
        _release_all(pending)  # it may be in another status
    data, schema_version, keys, tags = form
    commit = subject.update(data=data, schema_version=schema_version, keys=keys, tags=tags, fields=fields)
    _check_size(subject, commit, most_bytes)
    return Plan(commit, "is stored again as it is" if is_current else "is stored as this code stores it")


def skip(subject: Subject, name: str) -> Plan:
    """Have the instance no longer wait for a timeout, or for what comes of a request.

    Args:
        subject: The instance.
        name: Of the timeout; or the id of the request, or of its task if it is the only one.

    Raises:
        MisuseError: It waits for nothing of that name, or what it has asked for is, or could be, undone.
    """
    awaited, pending = awaited_by(subject.pending, subject.name, name), subject.pending
    if isinstance(awaited, Timeout):
        pending.unschedule(name)
        return Plan(subject.update(skipped=name), f"waits no longer for the timeout {name}")
    if awaited.undoes or awaited.is_undone:
        problem = f"{subject.name} is being undone, and goes on only with an outcome of {awaited.task}"
        raise MisuseError(problem, "Answer it in the place of the task: celery sagas answer")
    if awaited.undo:
        problem = f"what {awaited.task} does for {subject.name} can be undone, which it could not if nobody waited for it"
        raise MisuseError(problem, "Have its deadline come now: celery sagas fire")
    pending.remove(awaited)
    _leave_unsent(pending, awaited)
    return Plan(subject.update(skipped=awaited.id), f"waits no longer for {awaited.task}")


def fire(subject: Subject, name: str, message_in: Callable[[str], str]) -> Plan:
    """Have a timeout, or the deadline of a request, come now: the first time, or again.

    Args:
        subject: The instance.
        name: Of the timeout; or the id of the request, or of its task if it is the only one.
        message_in: Returns the id of the message in a row of the outbox; empty: the row is not there.

    Raises:
        MisuseError: It waits for nothing of that name, or that cannot come, or come again.
    """
    awaited = awaited_by(subject.pending, subject.name, name)
    if not awaited.row:
        raise MisuseError(f"the request {name} of {subject.name} has no deadline that could come", "Answer it, or skip it")
    message = message_in(awaited.row)
    if not message:
        problem = f"the outbox does not have {name} of {subject.name} any more: it was published, and is not published again"
        raise MisuseError(problem, "If it does not come, have the instance wait for it no longer: celery sagas skip")
    return Plan(subject.update(fired=name, row=awaited.row, message=message), f"{name} comes now")


def settle(subject: Subject, request: Request, message: SerializedMessage, rival: str = "") -> Plan:
    """Send the outcome of a request in the place of the task that was asked; if that was not sent yet, it never is.

    Args:
        subject: The instance.
        request: It waits for this.
        message: To the step that gets the outcome.
        rival: Who has sent one before, which has not come yet.
    """
    pending = subject.pending
    if request.sent_row:
        _leave_unsent(pending, request)
        pending.requests[request.id] = replace(request, sent_row="", sent_at=0)
    text = f"{message.task} gets it" + (f", unless the answer that {rival} has given comes first" if rival else "")
    return Plan(subject.update(messages=[message], request=request.id), text)


def awaited_by(pending: Pending, whose: str, name: str) -> Timeout | Request:
    """Return the timeout of a name, or the open request with an id, or to a task.

    Args:
        pending: What an instance waits for.
        whose: The instance, for errors.
        name: Of the timeout, or the request.

    Raises:
        MisuseError: There is none, or there are several.
    """
    if name in pending.timeouts:
        return pending.timeouts[name]
    requests = [each for each in pending.requests.values() if not each.has_timed_out]
    found = [each for each in requests if name in (each.id, each.first)] or [each for each in requests if each.task == name]
    if len(found) == 1:
        return found[0]
    if found:
        ids = ", ".join(each.id for each in found[:_NAMED])
        raise MisuseError(f"{whose} waits for {len(found):,} answers of {name}", f"Name one of them: {ids}")
    names = [*pending.timeouts, *(each.task for each in requests)]
    known = ", ".join(names[:_NAMED]) or "nothing"
    raise MisuseError(f"{whose} does not wait for {name}", f"It waits for {known}")


def _leave_unsent(pending: Pending, request: Request) -> None:
    """Cancel the message of a request that waits for its time, if it does."""
    if request.sent_row and not request.members:
        pending.cancelled.append(request.sent_row)


def _release_all(pending: Pending) -> None:
    for deferred in list(pending.deferred):
        pending.release(deferred)


def _check_size(subject: Subject, commit: Update, most_bytes: int) -> None:
    change = commit.change
    if (size := sum(len(text.encode()) for text in (change.data, change.pending))) > most_bytes:
        problem = f"with what it waits for it has {size:,} bytes; saga_max_state_bytes allows {most_bytes:,}"
        raise InvalidState(subject.saga.name, subject.record.key, [("", problem)], _OTHER_VALUES)


def _what_changes(fields: Sequence[str], before: int, after: int) -> str:
    """Return what a patch changes, in words: fields, and the version of the schema."""
    names = ", ".join(fields)
    if before == after:
        return names or "only how it is written"
    schema = f"its schema from {before} to {after}, so workers of older code leave it alone"
    return f"{names}, and {schema}" if names else f"only {schema}"


def _with_messages(count: int) -> str:
    if not count:
        return ""
    return ", and 1 message that waited is sent" if count == 1 else f", and {count:,} messages that waited are sent"


def _upgraded(subject: Subject) -> str:
    """Return the state as today's code stores it; as it is, if that code cannot read it; without a field, if it is no object."""
    saga, record = subject.saga, subject.record
    try:
        return dump(saga, record.key, *load(saga, record.key, record.data, record.schema_version))
    except (UnreadableState, InvalidState):
        pass
    try:
        return record.data if isinstance(from_json(record.data), dict) else NOTHING
    except ValueError:
        return NOTHING


def _loaded(subject: Subject, data: str) -> tuple[State, dict[str, Any]]:
    """Return the state that JSON text has.

    Raises:
        InvalidState: It is not valid.
    """
    saga, record = subject.saga, subject.record
    try:
        return load(saga, record.key, data, saga.schema_version)
    except UnreadableState as exc:
        raise InvalidState(saga.name, record.key, [("", exc.problem)], _OTHER_VALUES) from exc


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the names of the fields that differ."""
    return [name for name in dict.fromkeys((*before, *after)) if not is_same(before.get(name), after.get(name))]
