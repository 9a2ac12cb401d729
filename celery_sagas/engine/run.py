"""One run of a message: find → policy → handler → commit. Nothing but the commit leaves a trace."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from celery_sagas.core.answers import NO_VALUE
from celery_sagas.core.comparison import parts_of
from celery_sagas.core.context import MessageView
from celery_sagas.core.conversation import Addressed, ReturnAddress
from celery_sagas.core.correlation import Address, check_own_key
from celery_sagas.core.sending import Frozen, Sending, TypeOfFreeze
from celery_sagas.core.state import State
from celery_sagas.core.steps import Decision, StepDefinition
from celery_sagas.engine.alternates import alternates_of, difference
from celery_sagas.engine.commit import Commit, Limits
from celery_sagas.engine.conflicts import ORPHANED_AFTER, Conflicts
from celery_sagas.engine.deliveries import Redelivery
from celery_sagas.engine.dispatch import Dispatcher
from celery_sagas.engine.instance import Instance, begin, revive
from celery_sagas.engine.outcomes import Kind, Missing, Outcome
from celery_sagas.engine.session import Session
from celery_sagas.errors import (
    InvalidMessage,
    InvalidState,
    KeyTaken,
    MessageError,
    RevisionConflict,
    SagaAlreadyExists,
    SagaNotFound,
    StoreError,
    UnreadableState,
)
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import ID, KEY, Entry, Found, Handling, Lookup, Record

#: Encodes the message that answers a request, given its return address.
TypeOfAnswer = Callable[[Mapping[str, Any], object], Frozen | None]

#: Why the answer of an instance that ends without a reply is dropped, if it comes late to a step that takes no ``None``.
NO_VALUE_LATE = "late, and without a value"

logger = logging.getLogger("celery_sagas")


@dataclass(frozen=True, slots=True)
class Services:
    """What every run needs, open in this process."""

    backend: Backend
    dispatcher: Dispatcher
    freeze: TypeOfFreeze
    answer: TypeOfAnswer
    limits: Limits
    conflict_retries: int  #: runs after conflicts before the instance is reserved


class Delivery(NamedTuple):
    """One delivery of a message to a step."""

    message_id: str
    bound: Mapping[str, Any]  #: the arguments by name, as they came
    session: Session
    call: Callable[..., Any]  #: calls a function with what comes first, and the arguments by name
    addressed: Addressed | None = None  #: for a timeout, or what came of a request
    redelivery: Redelivery | None = None  #: if the broker has delivered it before
    task: str = ""  #: the name of the step that it bears, if that is a former one
    return_address: ReturnAddress | None = None  #: if it asks for an answer


@dataclass(slots=True)
class Run:
    """One run of one delivery; a conflict makes another one."""

    services: Services
    step: StepDefinition
    delivery: Delivery
    conflicts: Conflicts
    arguments: dict[str, Any] = field(init=False)
    lookup: Lookup = field(init=False)
    sending: Sending = field(init=False)
    commit: Commit = field(init=False)

    def execute(self) -> Outcome:
        """Run the message once.

        Raises:
            RevisionConflict: Another message of the instance committed first: make another run.
            AlreadyHandled: Another run of this message committed.
            SagaError: See the class; nothing was written.
            Exception: What the handler raised; nothing was written.
        """
        step, message_id = self.step, self.delivery.message_id
        address = self._correlate()
        self.lookup = Lookup(step.saga.names, address.property, address.text, step.saga.is_spread)
        found = self._find()
        if found.handled is not None:
            self._end_reservation(found.record)
            return self._duplicate(found.handled, found.place)
        self.sending = Sending(step.name, message_id, self.services.freeze)
        dispatcher, holder = self.services.dispatcher, self.conflicts.holder
        named = self.delivery.task or step.name
        self.commit = Commit(step, named, self.sending, self.services.limits, dispatcher.owner, holder, found.place)
        message = MessageView(message_id, step.name)
        if self.delivery.addressed:
            return self._handle_addressed(found.record, message, self.delivery.addressed)
        decision = step.decide(found.record is not None)
        if decision is Decision.BEGIN:
            return self._handle(begin(step.saga, address, message, self.sending, found.place, self._asked_by))
        if decision is Decision.CONTINUE and found.record is not None:
            return self._handle(self._revive(found.record, message))
        return self._without_handler(decision, found.record)

    def _correlate(self) -> Address:
        addressed = self.delivery.addressed
        if addressed:
            return Address(ID, addressed.instance_id, {})
        self.arguments = self.step.arguments.validate(self.delivery.bound)
        return self.step.rule.correlate(self.arguments, self.delivery.session.causation)

    def _handle_addressed(self, record: Record | None, message: MessageView, addressed: Addressed) -> Outcome:
        """Run the handler if the instance still waits for the message; policies are not asked."""
        if record is None:
            return self._dropped("", "completed")
        instance = self._revive(record, message, addressed)
        if instance.is_withdrawn:
            self._end_reservation(record)
            return self._dropped(record.key, "withdrawn")
        try:
            self._check_addressed(record)
        except InvalidMessage:
            if addressed.has_value or not instance.is_late:
                raise
            return self._dropped(record.key, NO_VALUE_LATE)
        return self._handle(instance)

    def _check_addressed(self, record: Record) -> None:
        """Read the arguments of what is waited for: nobody need read the others."""
        try:
            self.arguments = self.step.arguments.validate(self.delivery.bound)
            check_own_key(self.step.rule, self.arguments, record.saga, record.key)
        except MessageError:
            self._end_reservation(record)
            raise

    def _dropped(self, key: str, reason: str) -> Outcome:
        message_id, instance_id = self.delivery.message_id, self.lookup.value
        return Outcome(Kind.DROPPED, self.step.saga.name, self.step.name, message_id, key, instance_id, reason=reason)

    def _duplicate(self, handled: Entry, place: str) -> Outcome:
        """Answer a message that was handled before: publish what its earlier run left behind.

        What follows the task (``link``, the next of a chain) may not have been sent yet: it belongs to the same instance.
        """
        if handled.instance_id:
            self.delivery.session.belongs_to(self.step.saga.name, handled.instance_id)
        self.services.dispatcher.dispatch_leftovers(Handling(self.step.names, self.delivery.message_id, place))
        return Outcome(
            Kind.FAILED if handled.outcome == Kind.FAILED else Kind.DUPLICATE,
            self.step.saga.name,
            self.step.name,
            self.delivery.message_id,
            handled.key,
            handled.instance_id,
            handled.version,
        )

    def _find(self) -> Found:
        sagas, conflicts = self.services.backend.sagas, self.conflicts
        handling = Handling(self.step.names, self.delivery.message_id)
        found = sagas.find(self.lookup, handling)
        record = found.record
        writes = self.delivery.addressed or self.step.decide(exists=True) is Decision.CONTINUE
        if record is None or found.handled is not None or not writes:
            return found  # nothing of the instance will be written
        if conflicts.reserving and record.reserved_by != conflicts.holder:
            if not sagas.reserve(record, conflicts.holder, conflicts.reservation_ms):
                raise RevisionConflict(record.saga, record.key, "reserved")
            return sagas.find(self.lookup, handling)
        if record.reserved_by not in ("", conflicts.holder):
            raise RevisionConflict(record.saga, record.key, "reserved")
        return found

    def _revive(self, record: Record, message: MessageView, addressed: Addressed | None = None) -> Instance:
        try:
            return revive(self.step.saga, record, message, self.sending, addressed, self.step.names)
        except StoreError:
            self._end_reservation(record)
            raise

    def _handle(self, instance: Instance) -> Outcome:
        session = self.delivery.session
        inherited = dict(session.causation)
        session.belongs_to(self.step.saga.name, instance.id)
        committed = False
        try:
            self._count_delivery()
            with session.running(self.sending):
                result = self.delivery.call(self.step.function, instance.state, **self.arguments)
            self._answer(instance, result)
            outcome = self._commit(instance, result)
            committed = True
        finally:
            if not committed:
                session.causation = inherited
                self._end_reservation(instance.record)
        return self._dispatch(outcome)

    def _answer(self, instance: Instance, result: Any) -> None:
        """Answer the message, unless the instance that it creates does so by itself; and whom that leaves unanswered."""
        if instance.record is not None:
            self._send_answer(self._asked_by, result)
        if instance.context.completed:
            self._send_last_answer(instance.context.conversation.originator)
            instance.context.conversation.originator = None

    def _send_last_answer(self, to: Mapping[str, Any] | None) -> None:
        """Answer with nothing whoever has none yet; who cannot be answered does not keep the instance from its end."""
        try:
            self._send_answer(to, NO_VALUE)
        except InvalidMessage as exc:
            logger.warning("%s completes, and whoever started it gets no answer: %s", self.step.saga.name, exc)

    def _send_answer(self, to: Mapping[str, Any] | None, value: Any) -> None:
        """Send an answer with the commit: what follows a task in Celery would be sent for a repeat, too, which has no result."""
        message = self.services.answer(to, value) if to else None
        if message is not None:
            self.sending.messages.append(message)

    def _count_delivery(self) -> None:
        """Count a delivery whose function is about to run: one that cannot come so far ends no worker, however often it comes."""
        if self.delivery.redelivery:
            deliveries = self.services.backend.deliveries
            self.delivery.redelivery.check(deliveries, self.step.name, self.delivery.message_id)

    def _commit(self, instance: Instance, result: Any) -> Outcome:
        try:
            return self.commit.instance(self.services.backend.sagas, instance, result)
        except RevisionConflict as conflict:
            if conflict.reason == "unique" and self.conflicts.unique:
                self._refuse_taken_keys(instance)
            raise
        except InvalidState as exc:
            if unannotated := self._unannotated_in(instance.state, exc):
                one = len(unannotated) == 1
                remedy = (
                    f"{' and '.join(unannotated)} of {self.step.name} {'has' if one else 'have'} no annotation, and "
                    f"{'comes' if one else 'come'} as JSON has it: annotate {'it' if one else 'them'}"
                )
                raise InvalidState(exc.saga, exc.key, exc.problems, remedy) from exc
            raise

    def _unannotated_in(self, state: State, error: InvalidState) -> list[str]:
        """Return the arguments without annotation that the handler has put where the state cannot be stored."""
        paths = {path.partition(".")[0] for path, _ in error.problems}
        fields = [value for name, value in state.__dict__.items() if name in paths]
        parts = [part for field in fields for part in (parts_of(field) or {}).values()]
        unannotated = sorted(self.step.arguments.unannotated & self.arguments.keys())
        for held in (fields, parts):  # another argument may be the same object by chance as a part, a short text above all
            if names := [name for name in unannotated if any(value is self.arguments[name] for value in held)]:
                return names
        return []

    def _refuse_taken_keys(self, instance: Instance) -> None:
        """Raise ``KeyTaken`` if a key that could not be inserted twice belongs to another live instance."""
        saga = instance.saga
        added, _ = difference(instance.indexed, alternates_of(saga, instance.key, instance.state))
        for name, value in added:
            holder = self.services.backend.sagas.find(Lookup(saga.names, name, value)).record
            if holder is not None and holder.id != instance.id:
                raise KeyTaken(saga.name, name, value, holder.id, holder.key)
            if holder is None and self.conflicts.unique >= ORPHANED_AFTER:
                problem = f"the store keeps {name}={value!r} for an instance that is gone: delete what it keeps"
                raise UnreadableState(saga.name, instance.key, problem)

    def _end_reservation(self, record: Record | None) -> None:
        if record is None or not record.reserved_by or record.reserved_by != self.conflicts.holder:
            return
        try:
            self.services.backend.sagas.reserve(record, self.conflicts.holder, 0)
        except StoreError as exc:
            logger.warning(
                "%s %r stays reserved for at most %d ms: %s", record.saga, record.key, self.conflicts.reservation_ms, exc
            )

    def _without_handler(self, decision: Decision, record: Record | None) -> Outcome:
        if record is None:
            return self._dispatch(self._missing(decision))
        if decision is Decision.ALREADY_EXISTS:
            raise SagaAlreadyExists(self.step.saga.name, self._property, self.lookup.value, record.id)
        sagas = self.services.backend.sagas
        self._send_answer(self._asked_by, NO_VALUE)
        return self._dispatch(self.commit.without_instance(sagas, Kind.IGNORED, record.key, record.id, "exists"))

    def _missing(self, decision: Decision) -> Outcome:
        sagas, step = self.services.backend.sagas, self.step
        key = self.lookup.value if self.lookup.property == KEY else ""
        instance_id = self.lookup.value if self.lookup.property == ID else ""
        completed = bool(key) and self.services.backend.journal.outcome_of(step.saga.names, key) is not None
        if decision is Decision.NOT_FOUND:
            raise SagaNotFound(step.saga.name, self._property, self.lookup.value, completed)
        reason = "completed" if completed else "missing"
        if step.if_missing is None:
            self._send_answer(self._asked_by, NO_VALUE)
            return self.commit.without_instance(sagas, Kind.IGNORED, key, instance_id, reason)
        missing = Missing(step.saga.name, self._property, self.lookup.value, completed, self.sending)
        self._count_delivery()
        with self.delivery.session.running(self.sending):
            result = self.delivery.call(step.if_missing, missing, **self.arguments)
        self._send_answer(self._asked_by, result)
        return self.commit.without_instance(sagas, Kind.MISSING, key, instance_id, reason, result)

    def _dispatch(self, outcome: Outcome) -> Outcome:
        """Publish what the commit sends at once; what is due later, a relay publishes."""
        self.services.dispatcher.dispatch([row for row in self.commit.outgoing if not row.due_at], self.commit.began)
        return outcome

    @property
    def _asked_by(self) -> dict[str, Any] | None:
        """Where the message's answer goes, if it asks for one."""
        address = self.delivery.return_address
        return address.noted() if address and address.then else None

    @property
    def _property(self) -> str:
        """What the message was correlated by, as the user wrote it."""
        return {KEY: ", ".join(self.step.saga.correlate_by), ID: "id"}.get(self.lookup.property, self.lookup.property)
