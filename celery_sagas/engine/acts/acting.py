"""Operators' acts on instances: what a person decides, and why. Each is one commit, as that of a message is."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

from pydantic_core import from_json, to_json

from celery_sagas.core.ids import derived_id, row_id
from celery_sagas.core.pending import NOTHING, Pending
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.sending import SerializedMessage
from celery_sagas.engine.conflicts import Conflicts, refuse_taken_keys
from celery_sagas.engine.final_states import FINAL
from celery_sagas.engine.handling import Services
from celery_sagas.engine.instance import difference, pending_of, shown_property
from celery_sagas.engine.outcomes import Kind
from celery_sagas.errors import (
    AlreadyHandled,
    MisuseError,
    RevisionConflict,
    SagaNotFound,
)
from celery_sagas.stores.operations import Commit, Update
from celery_sagas.stores.optional import no_audit
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import ID, KEY, AuditEntry, Change, Effects, Entry, Handling, Lookup, Outgoing, Record

#: Ends the name under which the journal keeps acts; no step can have such a name.
OPERATOR: Final = "(operator)"
#: How many characters of the operator's name, and of the reason, are kept.
ACTOR_CHARACTERS: Final = 200
REASON_CHARACTERS: Final = 2_000
_DONE_BEFORE: Final = "it was done before"


class Act(NamedTuple):
    """What an operator does, and why."""

    name: str  #: such as "pause"
    actor: str
    reason: str
    id: str  #: once the act of an id is committed for an instance, it writes nothing more
    may_be_done: bool = False  #: whether it may have been committed before, by another call


class Done(NamedTuple):
    """What has come of an act on one instance."""

    saga: str  #: the stored name
    key: str
    id: str
    version: int  #: of the instance after it
    changed: bool  #: whether anything was written; not if nothing was to be done, or if it is only planned
    text: str  #: what it does, or why there is nothing to be done
    planned: bool = False  #: whether something would be written, if it were not only planned
    before: str = ""  #: of a patch: the state before it, as JSON text
    after: str = ""  #: and after it


class Plan(NamedTuple):
    """What an act writes for an instance as it was found."""

    commit: Commit | None  #: ``None``: there is nothing to be done
    text: str
    before: str = ""
    after: str = ""


@dataclass(frozen=True)
class Subject:
    """An instance, as it was found for an act."""

    saga: SagaDefinition
    record: Record
    act: Act
    run_id: str  #: the ids of the rows of the commit begin with it
    now: Callable[[], int]  #: returns the store's time, in milliseconds since the epoch
    owner: str  #: the lease token of this process
    grace_ms: int

    @cached_property
    def pending(self) -> Pending:
        """Its pending map, which the act changes.

        Raises:
            NewerState: Newer code wrote it.
            UnreadableState: It cannot be decoded.
        """
        return pending_of(self.record)

    def update(
        self,
        *,
        messages: Sequence[SerializedMessage] = (),
        data: str | None = None,
        schema_version: int | None = None,
        keys: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        **about: Any,
    ) -> Update:
        """Return the commit that changes the instance.

        Args:
            messages: What is sent.
            data: Its state as JSON text, if that changes.
            schema_version: And the version of its schema.
            keys: Its alternate keys, if these change.
            tags: What it is listed by, if that changes.
            **about: What the journal keeps of it.
        """
        pending, record = self.pending, self.record
        added_keys, removed_keys = ((), ()) if keys is None else difference(pending.keys, dict(keys))
        added_tags, removed_tags = ((), ()) if tags is None else difference(pending.tags, dict(tags))
        pending.keys = pending.keys if keys is None else dict(keys)
        pending.tags = pending.tags if tags is None else dict(tags)
        effects = self.effects(Kind.OPERATED, messages, **about)
        change = Change(
            self.saga.names,
            record.schema_version if schema_version is None else schema_version,
            record.data if data is None else data,
            pending.text(),
            added_keys,
            removed_keys,
            tuple(pending.cancelled),
            added_tags,
            removed_tags,
        )
        return Update(record, change, effects)

    def effects(self, kind: Kind, messages: Sequence[SerializedMessage] = (), **about: Any) -> Effects:
        """Return the entry of the act, and the messages that are sent with it: these, then the released ones.

        Args:
            kind: Its outcome.
            messages: What is sent, besides the deferred messages that are released.
            **about: What the journal keeps of it.
        """
        sent = [(each.message_id, each.task, each.payload) for each in messages]
        sent += [(each.message_id, each.step, each.payload) for each in self.pending.released]
        rows = tuple(Outgoing(row_id(self.run_id, number), "sent", *each) for number, each in enumerate(sent))
        detail = {"act": self.act.name, "actor": self.act.actor, "because": self.act.reason, **about}
        if rows:
            detail["sent"] = [{"task": row.task, "id": row.message_id} for row in rows]
        entry = Entry(
            step=self.step,
            message_id=self.message_id,
            attempt=self.run_id,
            outcome=kind.value,
            saga=self.saga.name,
            key=self.record.key,
            instance_id=self.record.id,
            version=self.record.version + 1,
            detail=to_json(detail).decode(),
        )
        return Effects(entry, rows, self.owner, self.grace_ms, audit=self._audit(entry, about))

    def _audit(self, entry: Entry, about: Mapping[str, Any]) -> AuditEntry:
        """Return what the audit keeps of the act, which outlives the journal: not the final state, which may be large."""
        act, kept = self.act, {name: value for name, value in about.items() if name != FINAL}
        detail = to_json(kept).decode() if kept else NOTHING
        whose = entry.saga, entry.key, entry.instance_id, entry.version
        return AuditEntry(self.run_id, act.actor, act.name, act.reason, *whose, detail)

    @property
    def step(self) -> str:
        """The name under which the journal keeps the act."""
        return f"{self.saga.name}.{OPERATOR}"

    @property
    def message_id(self) -> str:
        """The id under which it does."""
        return derived_id(self.act.id, self.record.id)

    @property
    def name(self) -> str:
        """The instance, for texts."""
        return f"{self.saga.name} {self.record.key!r}"


#: Returns what an act writes for an instance as it was found.
Planner = Callable[[Subject], Plan]


def perform(
    services: Services,
    saga: SagaDefinition,
    lookup: Lookup,
    act: Act,
    plan: Planner,
    *,
    expected_version: int | None = None,
    dry_run: bool = False,
) -> Done:
    """Act on an instance, even if it changes at the same time; its effect is committed when this function returns.

    Raises:
        SagaNotFound: There is no such instance.
        MisuseError: It has another version than the expected one, or the act does not fit it.
        ConfigurationError: The backend keeps no audit.
        RevisionConflict: It was changed each time, or is locked.
        StoreError: It is unknown whether it was done; repeating the call with the same act completes it.
    """
    backend, conflicts = services.backend, Conflicts(services.conflict_retries)
    if not backend.has_audit:
        raise no_audit(backend.url, f"what operators do to {saga.cls.__qualname__}")
    while True:
        subject = _found(services, saga, lookup, act)
        if act.may_be_done and (entry := _find_entry(backend, subject)):
            if not dry_run:
                _hurry(backend, entry)
            return _done(subject, Plan(None, _DONE_BEFORE))
        _check_version(subject, expected_version)
        planned = plan(subject)
        done = _done(subject, planned)
        if planned.commit is None or dry_run:
            return done._replace(planned=planned.commit is not None)
        try:
            return _commit(services, planned.commit, done)
        except RevisionConflict as conflict:
            if conflict.reason == "unique" and isinstance(planned.commit, Update):
                refuse_taken_keys(backend.sagas, saga, done.id, planned.commit.change.added_keys)
            conflicts.wait(conflict)


def _check_version(subject: Subject, expected: int | None) -> None:
    if expected is not None and subject.record.version != expected:
        problem = f"{subject.name} has version {subject.record.version}, and {expected} was expected"
        raise MisuseError(problem, "See what has changed it, and decide again")


def _done(subject: Subject, planned: Plan) -> Done:
    """Return what has come of an act that has written nothing yet."""
    record = subject.record
    known = (subject.saga.name, record.key, record.id, record.version, False, planned.text)
    return Done(*known, before=planned.before, after=planned.after)


def _commit(services: Services, commit: Commit, done: Done) -> Done:
    """Commit an act, and send its messages; return what has come of it."""
    called_at = time.monotonic()
    try:
        commit.perform(services.backend)
    except AlreadyHandled:
        return done._replace(text=_DONE_BEFORE)
    services.dispatcher.dispatch(commit.effects.outgoing, called_at)
    _hurry(services.backend, commit.effects.entry)
    return done._replace(version=commit.effects.entry.version, changed=True)


def _find_entry(backend: Backend, subject: Subject) -> Entry | None:
    """Return the entry that the act has, if it was committed before."""
    by_id = Lookup(subject.saga.names, ID, subject.record.id, has_alternate_keys=False)
    return backend.sagas.find(by_id, Handling((subject.step,), subject.message_id)).handled


def _hurry(backend: Backend, entry: Entry) -> None:
    """Have the row be due that an act names, if it still holds the message that it held then: that of a series goes on."""
    about = from_json(entry.detail)
    row = about.get("row")
    if row and any(each.message_id == about["message"] for each in backend.outbox.read([row])):
        backend.outbox.hurry([row])


def _found(services: Services, saga: SagaDefinition, lookup: Lookup, act: Act) -> Subject:
    backend, terms = services.backend, services.terms
    found = backend.sagas.find(lookup)
    if found.record is None:
        completed = lookup.property == KEY and backend.journal.outcome_of(saga.names, lookup.value) is not None
        raise SagaNotFound(saga.name, shown_property(saga, lookup), lookup.value, completed)
    return Subject(saga, found.record, act, found.new_id, backend.outbox.time, terms.owner, terms.grace_ms)
