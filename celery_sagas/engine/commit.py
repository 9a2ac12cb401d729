"""The commit of one run: what is written, made ready and handed to the store in one call."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from secrets import token_hex
from types import MappingProxyType
from typing import Any, Final

from pydantic_core import to_json

from celery_sagas.core.codec import dump
from celery_sagas.core.conversation import REQUESTS
from celery_sagas.core.ids import placed_id
from celery_sagas.core.pending import NOTHING, TIMEOUTS, Keys, Pending, Timeout
from celery_sagas.core.sending import Frozen, Sending
from celery_sagas.core.steps import StepDefinition
from celery_sagas.engine.alternates import alternates_of, difference, key_of
from celery_sagas.engine.instance import Instance
from celery_sagas.engine.outcomes import Kind, Outcome
from celery_sagas.errors import InvalidState
from celery_sagas.stores.ports import SagaStore
from celery_sagas.stores.records import Change, Effects, Entry, NewRecord, Outgoing, Record

#: How many messages one commit sends: more would hold up everybody else who uses the store.
MESSAGES = 1_000
#: All messages of one commit together may be so many times as large as the largest state.
STATES_IN_MESSAGES = 8
NOTHING_ELSE: Final[Mapping[str, object]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of one commit."""

    state_bytes: int
    grace_ms: int  #: how long this process has to publish the outgoing rows


@dataclass(slots=True)
class Commit:
    """What one run of one message writes; its attempt id tells a replay of it from another run."""

    step: StepDefinition
    named: str  #: as the message names the step: in the journal it is found by old code too
    sending: Sending
    limits: Limits
    owner: str  #: the lease token of this process
    holder: str  #: of the reservation, if there is one
    place: str  #: where the store keeps all of it
    scheduled: list[Outgoing] = field(default_factory=list)  #: the rows of new timeouts
    outgoing: tuple[Outgoing, ...] = ()
    attempt: str = field(default_factory=partial(token_hex, 16))
    began: float = 0.0  #: when the store was called: the lease on the outgoing rows began later

    def instance(self, store: SagaStore, instance: Instance, result: Any) -> Outcome:
        """Write the instance as its handler left it: insert, update, delete, or nothing of it."""
        self._check_key(instance)
        if instance.context.completed:
            kind = Kind.COMPLETED
            self._complete(store, instance)
        elif instance.record is None:
            kind = Kind.STARTED
            self._insert(store, instance)
        else:
            kind = Kind.HANDLED
            self._update(store, instance, instance.record)
        return self._outcome(kind, instance.key, instance.id, _next_version(instance), instance.record is None, result=result)

    def without_instance(
        self, store: SagaStore, kind: Kind, key: str, instance_id: str, reason: str, result: Any = None
    ) -> Outcome:
        """Write that the message was handled, and what it sends, without a handler having run."""
        store.record(self._effects(kind, key, instance_id, 0, reason))
        return self._outcome(kind, key, instance_id, 0, False, reason, result)

    def _insert(self, store: SagaStore, instance: Instance) -> None:
        keys = alternates_of(instance.saga, instance.key, instance.state)
        pending = self._pending(instance, keys)
        record = NewRecord(
            id=instance.id,
            names=instance.saga.names,
            key=instance.key,
            schema_version=instance.saga.schema_version,
            data=self._data(instance),
            pending=pending,
            keys=tuple(sorted(keys.items())),
        )
        store.insert(record, self._effects_of(Kind.STARTED, instance))

    def _update(self, store: SagaStore, instance: Instance, record: Record) -> None:
        keys = alternates_of(instance.saga, instance.key, instance.state)
        added, removed = difference(instance.indexed, keys)
        change = Change(
            names=instance.saga.names,
            schema_version=instance.saga.schema_version,
            data=self._data(instance),
            pending=self._pending(instance, keys),
            added_keys=added,
            removed_keys=removed,
            withdrawn=(*instance.context.timeouts.withdrawn, *instance.context.conversation.withdrawn),
        )
        store.update(record, change, self._effects_of(Kind.HANDLED, instance))

    def _complete(self, store: SagaStore, instance: Instance) -> None:
        effects = self._effects_of(Kind.COMPLETED, instance)
        if instance.record is None:
            store.record(effects)
        else:
            store.delete(instance.record, effects)

    def _pending(self, instance: Instance, keys: Keys) -> str:
        """Return the text of the pending map, and add the rows of new timeouts to those that are sent."""
        timeouts = instance.context.timeouts
        if len(timeouts.kept) + len(timeouts.added) > TIMEOUTS:
            problem = f"it has {len(timeouts.kept) + len(timeouts.added)} timeouts, and {TIMEOUTS:,} are allowed"
            raise InvalidState(instance.saga.name, instance.key, [("", problem)])
        conversation = instance.context.conversation
        pending = Pending(keys, timeouts.kept, conversation.remembered(), conversation.originator, timeouts.more)
        for name, (message, at) in timeouts.added.items():
            row = self._schedule("scheduled", message)
            pending.timeouts[name] = Timeout(message.message_id, row, message.task, at)
        for id, (request, deadline) in conversation.added.items():
            row = self._schedule("deadline", deadline) if deadline else ""
            pending.requests[id] = replace(request, row=row)
        self._check_requests(instance, pending)
        return pending.text()

    def _schedule(self, kind: str, message: Frozen) -> str:
        """Add a row that ends with the instance; return its id."""
        row = self._row_id(len(self.sending.messages) + len(self.scheduled))
        self.scheduled.append(_row(row, kind, message))
        return row

    def _check_requests(self, instance: Instance, pending: Pending) -> None:
        count = sum(not request.is_overdue for request in pending.requests.values())
        if count > REQUESTS:
            problem = f"it waits for {count} answers, and {REQUESTS:,} are allowed: use gather() for many of one kind"
            raise InvalidState(instance.saga.name, instance.key, [("", problem)])

    def _data(self, instance: Instance) -> str:
        data = dump(instance.saga, instance.key, instance.state, instance.unknown)
        size = len(data.encode())
        if size > self.limits.state_bytes:
            problem = f"it has {size} bytes, saga_max_state_bytes allows {self.limits.state_bytes}"
            raise InvalidState(instance.saga.name, instance.key, [("", problem)])
        return data

    def _check_key(self, instance: Instance) -> None:
        if instance.context.completed and instance.record is None:
            return
        if key_of(instance.saga, instance.key, instance.state) != instance.key:
            problem = "the correlation key was changed; it is the instance's for life"
            raise InvalidState(instance.saga.name, instance.key, [(", ".join(instance.saga.correlate_by), problem)])

    def _effects_of(self, kind: Kind, instance: Instance) -> Effects:
        version, about = _next_version(instance), instance.context.conversation.told()
        return self._effects(kind, instance.key, instance.id, version, about=about)

    def _check_size_of_messages(self, key: str) -> None:
        """A commit that no database takes would be put off for ever."""
        if not self.outgoing:
            return
        if len(self.sending.messages) > MESSAGES:  # timeouts and requests have bounds of their own
            problem = f"it sends {len(self.sending.messages)} messages, and {MESSAGES:,} are allowed: send a task that sends them"
            raise InvalidState(self.step.saga.name, key, [("", problem)])
        size = sum(len(message.payload.encode()) for message in self.outgoing)
        allowed = self.limits.state_bytes * STATES_IN_MESSAGES
        if size > allowed:
            problem = (
                f"its messages have {size} bytes in all; {STATES_IN_MESSAGES} times saga_max_state_bytes, {allowed}, are allowed"
            )
            raise InvalidState(self.step.saga.name, key, [("", problem)])

    def _effects(
        self, kind: Kind, key: str, instance_id: str, version: int, reason: str = "", about: Mapping[str, object] = NOTHING_ELSE
    ) -> Effects:
        sent = [_row(self._row_id(number), "sent", message) for number, message in enumerate(self.sending.messages)]
        self.outgoing = (*sent, *self.scheduled)
        self._check_size_of_messages(key)
        entry = Entry(
            step=self.named,
            message_id=self.sending.message_id,
            attempt=self.attempt,
            outcome=kind.value,
            saga=self.step.saga.name,
            key=key,
            instance_id=instance_id,
            version=version,
            detail=_detail(self.outgoing, {**about, "reason": reason} if reason else about),
        )
        self.began = time.monotonic()
        return Effects(entry, self.outgoing, self.owner, self.limits.grace_ms, self.holder, self.place)

    def _row_id(self, number: int) -> str:
        """Return an id that stands in the order of the calls, in which rows are claimed."""
        return placed_id(f"{self.attempt}-{number:05}", self.place)

    def _outcome(
        self, kind: Kind, key: str, instance_id: str, version: int, is_new: bool, reason: str = "", result: Any = None
    ) -> Outcome:
        return Outcome(
            kind, self.step.saga.name, self.step.name, self.sending.message_id, key, instance_id, version, is_new, reason, result
        )


def _row(id: str, kind: str, message: Frozen) -> Outgoing:
    return Outgoing(id, kind, message.message_id, message.task, message.payload, message.due_at)


def _next_version(instance: Instance) -> int:
    return 1 if instance.record is None else instance.record.version + 1


def _detail(outgoing: Sequence[Outgoing], about: Mapping[str, object]) -> str:
    if not outgoing and not about:
        return NOTHING
    detail = dict(about)
    for kind in ("sent", "scheduled", "deadline"):
        if rows := [{"task": row.task, "id": row.message_id} for row in outgoing if row.kind == kind]:
            detail[kind] = rows
    return to_json(detail).decode()
