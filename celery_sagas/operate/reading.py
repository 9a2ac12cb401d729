"""Reading: everything that is stored about one instance, as far as it can be read. No call takes a lock or changes anything."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from pydantic import ValidationError

from celery_sagas.clock import LAST_MS
from celery_sagas.core.codec import load
from celery_sagas.core.ids import row_id
from celery_sagas.core.pending import Pending
from celery_sagas.core.registry import registry
from celery_sagas.core.requests.views import MemberOutcomes
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.status import text_of
from celery_sagas.engine.dead_letters.dead_lettering import dead_letter_id_of
from celery_sagas.engine.instance import pending_of
from celery_sagas.engine.listing import read_records
from celery_sagas.engine.outcomes import Kind
from celery_sagas.errors import NewerState, StoreError, UnreadableState, problems_text
from celery_sagas.operate.facts import Facts, detail_of, parts_of
from celery_sagas.operate.switching import held_in
from celery_sagas.stores.instances import Glance
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import ID, KEY, DeadLetter, Entry, Lookup, OutboxGlance, Record
from celery_sagas.stores.switches import Switch
from celery_sagas.worker.runtime import Runtime

#: How many entries of the journal are read, and how many rows of the outbox, dead letters and gathers are looked for. Of rows
#: these are more than an instance may wait for.
ENTRIES: Final = 100
ROWS: Final = 4_000
DEAD_LETTERS: Final = 50
GATHERS: Final = 10
#: How often an instance is read that changes meanwhile.
_TRIES: Final = 3
#: How many problems of a state are named.
_PROBLEMS: Final = 5
#: How many rows are read at once.
_AT_ONCE: Final = 500

Problem: TypeAlias = UnreadableState | NewerState


class _Decoded(NamedTuple):
    """What a record holds."""

    pending: Pending | None
    status: str | None
    problems: Sequence[Problem]


def read_facts(runtime: Runtime, saga: SagaDefinition, lookup: Lookup) -> Facts | None:
    """Read what is stored about an instance, of one version if that does not change each time; ``None`` if there is none.

    Dead letters have no index by key: they are found by the newest entries of the journal, and by the ids of the messages that
    the instance waits for. Of messages that failed before these entries, only those of timeouts and requests are found.

    Raises:
        StoreError: The store is away.
    """
    sagas, facts = runtime.backends.of(saga).sagas, None
    try:
        record = sagas.find(lookup).record
        for _ in range(_TRIES):
            if record is None:
                return None
            facts, before = _facts_of(runtime, saga, record), record
            record = sagas.find(lookup).record
            if record is not None and record.version == before.version:
                break
    except UnreadableState as exc:
        return _facts_of_damaged(runtime, saga, lookup, exc)
    return facts


def facts_on(backend: Backend, saga: SagaDefinition, page: Sequence[Glance], now: int) -> Iterator[tuple[Glance, Facts]]:
    """Yield what a page says of its instances that are still there: what they wait for, and nothing that is kept elsewhere.

    Args:
        backend: Stores them. It is asked at once for what the page does not have.
        saga: Their saga.
        page: The instances.
        now: The store's time.
    """
    unread = [glance.id for glance in page if not glance.version or glance.pending is None]
    read = read_records(backend, saga, unread) if unread else {}
    for glance in page:
        record = read.get(glance.id) if glance.pending is None or not glance.version else _record_of(glance, glance.pending)
        if record is not None:
            yield glance, _facts_at(saga, glance, record, now)


def _record_of(glance: Glance, pending: str) -> Record:
    """Return the record of an instance on a page, without its state."""
    about = (glance.id, glance.saga, glance.key, glance.version, glance.schema_version)
    return Record(*about, "", pending, glance.created_at, glance.updated_at)


def _facts_at(saga: SagaDefinition, glance: Glance, record: Record | UnreadableState, now: int) -> Facts:
    pending, problems = None, list[Problem]()
    try:
        if isinstance(record, UnreadableState):
            raise record
        pending = _checked(pending_of(record), record)
    except (UnreadableState, NewerState) as exc:
        problems.append(exc)
    if glance.schema_version > saga.schema_version:
        problems.append(NewerState(saga.name, glance.key, glance.schema_version, saga.schema_version))
    return Facts(saga, glance.key, glance.id, now, pending=pending, problems=problems, steps=list(registry.steps_of(saga)))


def _facts_of(runtime: Runtime, saga: SagaDefinition, record: Record) -> Facts:
    backend = runtime.backends.of(saga)
    decoded, now = _decoded(saga, record), backend.outbox.time()
    entries = _entries(backend, saga, record.key, record.id)
    pending = decoded.pending or Pending()
    return Facts(
        saga,
        record.key,
        record.id,
        now,
        record=record,
        pending=decoded.pending,
        problems=decoded.problems,
        status=decoded.status,
        entries=entries,
        rows=_rows(backend, pending, entries),
        dead_letters=_dead_letters(runtime, saga, entries, _expected(pending, now)),
        members=_members(runtime, saga, record.id, pending),
        steps=list(registry.steps_of(saga)),
        held=_held(backend, saga),
    )


def _held(backend: Backend, saga: SagaDefinition) -> list[Switch]:
    """Return what operators hold of a saga."""
    names = {*saga.names, *(name for step in registry.steps_of(saga) for name in step.names)}
    return [switch for switch in held_in(backend) if switch.name in names]


def _facts_of_damaged(runtime: Runtime, saga: SagaDefinition, lookup: Lookup, problem: UnreadableState) -> Facts:
    """Return what the journal knows of an instance whose record is damaged."""
    backend = runtime.backends.of(saga)
    key = lookup.value if lookup.property == KEY else ""
    history = backend.journal.history(saga.names, key, ENTRIES) if key else []
    newest = next((entry.instance_id for entry in reversed(history) if entry.instance_id), "")
    id = lookup.value if lookup.property == ID else newest
    entries = [entry for entry in history if entry.instance_id == id]
    letters, steps = _dead_letters(runtime, saga, entries, ()), list(registry.steps_of(saga))
    now = backend.outbox.time()
    return Facts(saga, key, id, now, problems=[problem], entries=entries, dead_letters=letters, steps=steps)


def _decoded(saga: SagaDefinition, record: Record) -> _Decoded:
    problems, pending, status = list[Problem](), None, None
    try:
        pending = _checked(pending_of(record), record)
    except (UnreadableState, NewerState) as exc:
        problems.append(exc)
    try:
        state, _ = load(saga, record.key, record.data, record.schema_version)
        status = text_of(getattr(state, saga.status_by, None)) if saga.status_by else None
    except (UnreadableState, NewerState) as exc:
        problems.append(_without_values(exc))
    except Exception as exc:  # of upgrade(), or of a validator: what a worker would dead-letter
        problems.append(UnreadableState(saga.name, record.key, f"its code raised {type(exc).__name__}"))
    return _Decoded(pending, status, problems)


def _without_values(problem: Problem) -> Problem:
    """Return a problem without the texts of a validation, which may have hidden values: with the kind of each instead."""
    cause = problem.__cause__
    if not isinstance(cause, ValidationError):
        return problem
    found = cause.errors(include_url=False, include_context=False, include_input=False)
    kinds = [(".".join(map(str, each["loc"])), each["type"].replace("_", " ")) for each in found[:_PROBLEMS]]
    return UnreadableState(problem.saga, problem.key, problems_text(kinds))


def _checked(pending: Pending, record: Record) -> Pending:
    """Refuse a pending map with a value that no code has written."""
    requests, timeouts = pending.requests.values(), pending.timeouts.values()
    numbers = [number for each in timeouts for number in (each.at, each.handled_at)]
    numbers += [number for each in requests for number in (each.at, each.sent_at, each.members, each.at_least)]
    texts = [text for each in timeouts for text in (each.id, each.row, each.step)]
    texts += [text for each in requests for text in (each.task, each.then, each.otherwise, each.row, each.sent_row)]
    if pending.paused:
        numbers.append(pending.paused.at)
        texts += [pending.paused.actor, pending.paused.reason]
    if all(isinstance(each, int) and 0 <= each <= LAST_MS for each in numbers) and all(isinstance(each, str) for each in texts):
        return pending
    raise UnreadableState(record.saga, record.key, "the pending map is not of its form")


def _entries(backend: Backend, saga: SagaDefinition, key: str, id: str) -> list[Entry]:
    return [entry for entry in backend.journal.history(saga.names, key, ENTRIES) if entry.instance_id == id]


def _rows(backend: Backend, pending: Pending, entries: Sequence[Entry]) -> Mapping[str, OutboxGlance]:
    """Return the rows that an instance's commits have written, of those that are still there."""
    ids = list(islice(dict.fromkeys(filter(None, _row_ids(pending, entries))), ROWS))
    parts = (ids[first : first + _AT_ONCE] for first in range(0, len(ids), _AT_ONCE))
    return {row.id: row for part in parts for row in backend.outbox.read(part)}


def _row_ids(pending: Pending, entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the ids of the rows that an instance waits for, and of what its last messages have sent."""
    yield from (timeout.row for timeout in sorted(pending.timeouts.values(), key=lambda timeout: timeout.at))
    for request in pending.requests.values():
        yield from (request.row, request.sent_row)
    yield from (deferred.row for deferred in pending.deferred)
    yield pending.undo.undoing.then_row if pending.undo.undoing else ""
    for entry in reversed(entries):  # the rows of what is sent at once come first in a commit
        yield from (row_id(entry.attempt, number) for number in range(len(parts_of(detail_of(entry), "sent"))))


def _expected(pending: Pending, now: int) -> Iterator[str]:
    """Yield the ids that dead letters of what an instance waits for have, if there are any."""
    due = [timeout for timeout in pending.timeouts.values() if timeout.at <= now]
    for timeout in sorted(due, key=lambda timeout: timeout.at):
        step = registry.step_named(timeout.step)
        yield dead_letter_id_of(step.name if step else timeout.step, timeout.id)
    yield from (dead_letter_id_of(request.task, request.id) for request in pending.requests.values())


def _dead_letters(runtime: Runtime, saga: SagaDefinition, entries: Sequence[Entry], expected: Iterable[str]) -> list[DeadLetter]:
    """Return the dead letters that are still kept, newest first."""
    failed = (detail_of(entry).get("dead_letter") for entry in reversed(entries) if entry.outcome == Kind.FAILED)
    ids = dict.fromkeys(id for part in (failed, expected) for id in part if isinstance(id, str) and id)
    # that of a message whose task no worker knows belongs to no saga
    backends = list(dict.fromkeys((runtime.backends.of(saga), runtime.backend)))
    found = [next(filter(None, (backend.dead.get(id) for backend in backends)), None) for id in islice(ids, DEAD_LETTERS)]
    return sorted(filter(None, found), key=lambda dead_letter: -dead_letter.at)


def _members(runtime: Runtime, saga: SagaDefinition, id: str, pending: Pending) -> Mapping[str, MemberOutcomes]:
    """Return what has come of the members of the first gathers; without those of which it cannot be read."""
    gathers = (request for request in pending.requests.values() if request.members and not request.has_timed_out)
    known: dict[str, MemberOutcomes] = {}
    for gather in islice(gathers, GATHERS):
        try:
            known[gather.id] = runtime.read_outcomes(saga, id, gather)
        except StoreError:  # they are kept beside the instance, perhaps in another backend
            continue
    return known
