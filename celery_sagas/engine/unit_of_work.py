"""The unit of work: find, policy, handler, commit, and the messages to publish. It performs no operation itself.

It is a generator that yields the backend operations that it needs, and is sent their results, or thrown their errors. It has
no store, no clock and no thread. A driver may therefore perform the operations of one message or of many, and a test may
interrupt it at any of them. An attempt without its ``Commit`` leaves behind at most a lock, or a count of deliveries.
"""

import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

from celery_sagas.core.context import MessageView, StepContext
from celery_sagas.core.correlation import Address, check_own_key
from celery_sagas.core.pending import Pending
from celery_sagas.core.requests.answers import NO_VALUE
from celery_sagas.core.requests.requests import Addressed, Request
from celery_sagas.core.sending import Sending
from celery_sagas.core.state import State
from celery_sagas.core.status import IfNot
from celery_sagas.core.step import Decision, StepDefinition
from celery_sagas.engine.commit import PAUSED, WRONG_STATUS, Run, WorkTerms, commit_of, write_of
from celery_sagas.engine.deferring import release, turn_away
from celery_sagas.engine.instance import (
    alternate_keys_of,
    context_of,
    create,
    difference,
    load_instance,
    lookup_in,
    pending_of,
    shown_property,
    unannotated_in,
)
from celery_sagas.engine.outcomes import Kind, Missing, Outcome
from celery_sagas.engine.results import STATUS, kept_result
from celery_sagas.engine.session import Attempt, Delivery
from celery_sagas.engine.sharing import call, undone_for_others
from celery_sagas.errors import (
    InvalidMessage,
    InvalidState,
    KeyTaken,
    RevisionConflict,
    SagaAlreadyExists,
    SagaNotFound,
    TooManyDeliveries,
    UnreadableState,
)
from celery_sagas.stores.operations import Begin, Commit, CountDelivery, Find, Lock, Operation, OutcomeOf
from celery_sagas.stores.records import ID, KEY, Entry, Found, Handling, Lookup, Outgoing, Record

#: Why the answer of an instance that ends without a reply is dropped, if it comes late to a step that accepts no ``None``.
NO_VALUE_LATE = "late, and without a value"
#: Conflicts over a key without an owner, before it counts as left behind by a manual edit.
ORPHANED_AFTER = 10

logger = logging.getLogger("celery_sagas")

T = TypeVar("T")
#: Yields operations, is sent their results, and returns a value.
Steps: TypeAlias = Generator[Operation, Any, T]


class Handled(NamedTuple):
    """The work that remains after a message was handled."""

    outcome: Outcome
    outgoing: tuple[Outgoing, ...] = ()  #: committed messages; those that are due at once must be published
    handled_before: Entry | None = None  #: the messages that it has left in the outbox must be published
    cancelled: tuple[Request, ...] = ()  #: requests whose tasks need not begin any more
    unbegun: tuple[str, ...] = ()  #: ids of other tasks that need not


def handle_once(delivery: Delivery, terms: WorkTerms, attempt: Attempt) -> Steps[Handled]:
    """Handle a message.

    Raises:
        RevisionConflict: Another message of the instance committed first: make another attempt.
        AlreadyHandled: Another attempt of this message committed.
        SagaError: See the class; nothing was written.
        Exception: Raised by the handler; nothing was written.
    """
    step, addressed = delivery.step, delivery.addressed
    address, arguments = correlate(step, delivery.bound, delivery.session.causation, addressed)
    lookup = lookup_in(step.saga, address.property, address.text)
    found = yield from _find(delivery, attempt, lookup)
    if found.handled is not None:
        return _repeated(delivery, found.handled)
    sending = Sending(step.name, delivery.message_id, terms.serialize)
    run = Run(found.new_id, delivery, attempt, terms, sending)
    message = MessageView(delivery.message_id, step.name, at=delivery.at)
    if addressed:
        return (yield from _handle_addressed(run, found.record, message, addressed))
    decision = step.decide(found.record is not None)
    if decision is Decision.BEGIN:
        state = create(step.saga, run.id, address, message, sending, delivery.asked_by)
    elif decision is Decision.CONTINUE and found.record is not None:
        state = load_instance(step.saga, found.record, message, sending, None, terms.read_outcomes)
        if not _runs(run, state, arguments):
            return (yield from _set_aside(run, found.record, state))
    else:
        return (yield from _without_instance(run, decision, found.record, lookup, arguments))
    return (yield from _handle(run, found.record, state, arguments))


def correlate(
    step: StepDefinition, bound: Mapping[str, Any], causation: Mapping[str, str], addressed: Addressed | None = None
) -> tuple[Address, dict[str, Any]]:
    """Return the lookup of a message's instance, and its validated arguments: none of an addressed message, which needs none.

    Raises:
        MessageError: It does not fit, or names no instance: it fails in the same way each time.
    """
    if addressed:
        return Address(ID, addressed.instance_id, {}), {}
    arguments = step.arguments.validate(bound)
    return step.rule.correlate(arguments, causation), arguments


def _find(delivery: Delivery, attempt: Attempt, lookup: Lookup) -> Steps[Found]:
    """Find the instance, and lock it if the attempt follows many conflicts."""
    find = Find(lookup, Handling(delivery.step.names, delivery.message_id))
    found: Found = yield find
    record, writes = found.record, delivery.addressed or delivery.step.decide(exists=True) is Decision.CONTINUE
    if record is None or found.handled is not None or not writes:
        return found
    if attempt.lock_owner and record.locked_by != attempt.lock_owner:
        if not (yield Lock(record, attempt.lock_owner, attempt.lock_ms)):
            raise RevisionConflict(record.saga, record.key, "locked")
        found = yield find
    elif record.locked_by not in ("", attempt.lock_owner):
        raise RevisionConflict(record.saga, record.key, "locked")
    return found


def _repeated(delivery: Delivery, entry: Entry) -> Handled:
    """Answer a message that was handled before.

    The messages that follow its task (``link``, the next of a chain) may still be unsent: they belong to the same instance.
    """
    step = delivery.step
    if entry.instance_id:
        delivery.session.belongs_to(step.saga.name, entry.instance_id)
    kind = Kind.FAILED if entry.outcome == Kind.FAILED else Kind.DUPLICATE
    outcome = Outcome(kind, step.saga.name, step.name, delivery.message_id, entry.key, entry.instance_id, entry.version)
    return Handled(outcome, handled_before=entry)


def _handle_addressed(run: Run, record: Record | None, message: MessageView, addressed: Addressed) -> Steps[Handled]:
    """Run the handler if the instance still waits for the message; policies do not apply."""
    step, delivery = run.step, run.delivery
    if record is None:
        return _dropped(delivery, addressed, "", "completed")
    pending = pending_of(record)
    if pending.is_overtaken(addressed, step.names, delivery.message_id):
        return _dropped(delivery, addressed, record.key, "overtaken")
    request = pending.requests.get(addressed.id) if addressed.came else None
    is_settled = request is not None and request.is_settled(step.names, addressed)
    if request is not None and is_settled and pending.paused is None:
        return (yield from _settle(run, record, message, addressed, request, pending))
    is_awaited, is_late = pending.take(addressed, step.names) if not is_settled else (True, False)
    if not is_awaited:
        is_overtaken = not addressed.came and pending.has_series(addressed.id)
        return _dropped(delivery, addressed, record.key, "overtaken" if is_overtaken else "cancelled")
    state = load_instance(step.saga, record, message._replace(late=is_late), run.sending, pending, run.terms.read_outcomes)
    if pending.paused is not None:
        return (yield from _set_aside(run, record, state))
    try:
        arguments = step.arguments.validate(delivery.bound)
    except InvalidMessage:
        if addressed.has_value or not is_late:
            raise
        if request is None or request.undo is None:
            return _dropped(delivery, addressed, record.key, NO_VALUE_LATE)
        note = partial(run.terms.outcomes.note, context_of(state), request, addressed.came, None)
        return (yield from _handle(replace(run, kind=Kind.UNDONE), record, state, {}, note))  # no step takes it, but its undo
    check_own_key(step.rule, arguments, record.saga, record.key)
    if request is not None and request.early:
        context_of(state).leave_out(request, request.without_outcome(delivery.first_argument))
    if request is not None and request.undo is not None:
        run.terms.outcomes.note(context_of(state), request, addressed.came, delivery.first_argument)
    if not _runs(run, state, arguments):
        return (yield from _set_aside(run, record, state))
    return (yield from _handle(run, record, state, arguments))


def _runs(run: Run, state: State, arguments: Mapping[str, Any]) -> bool:
    """Return whether the step runs on the instance now, and the message does not wait with it already."""
    context, step = context_of(state), run.step
    if context.pending.paused is not None:
        return False
    if not step.status.is_conditional:
        return True
    if context.pending.deferred and context.pending.is_deferred(step.names, run.delivery.message_id):
        return False
    if step.status.condition is None:  # then no code of the user's runs
        return step.admits(state, arguments)
    return context.ask(step.admits, state, arguments)


def _set_aside(run: Run, record: Record, state: State) -> Steps[Handled]:
    """Ignore or defer a message whose step does not run on the instance now, for its status or since it is paused.

    Raises:
        WrongStatus: The policy is to raise, or the message has been deferred for long enough.
    """
    step, delivery, context = run.step, run.delivery, context_of(state)
    about = (delivery.message_id, record.key, record.id)
    is_paused = context.pending.paused is not None
    reason = PAUSED if is_paused else WRONG_STATUS
    if context.pending.is_deferred(step.names, delivery.message_id):
        return Handled(Outcome(Kind.DEFERRED, step.saga.name, step.name, *about, record.version, reason=reason))
    if (is_paused or step.is_deferred) and (to := delivery.addressed) and context.pending.has_deferred_occurrence(to.id):
        return _dropped(delivery, to, record.key, "overtaken")  # what is missed of a series is not made up for
    is_ignored = step.status.if_not is IfNot.IGNORE and not is_paused
    if is_ignored:
        _send_answer(run, delivery.asked_by, NO_VALUE)
        run = replace(run, answer={STATUS: step.status_of(state)})
    commit = turn_away(run, record, state)
    yield commit
    handled = _handled(run, commit, reason=reason)
    handled = handled._replace(outcome=handled.outcome._replace(message_id=delivery.message_id))
    return _with_requests(handled, context) if is_ignored else handled


def _settle(
    run: Run, record: Record, message: MessageView, addressed: Addressed, request: Request, pending: Pending
) -> Steps[Handled]:
    """Handle an outcome that no step of the user's handles: it belongs to an undo, or its request is sent again."""
    saga, is_undo = run.step.saga, request.undoes or request.is_undone
    run = replace(run, kind=Kind.UNDONE if is_undo else Kind.RETRIED)
    state = load_instance(saga, record, message, run.sending, pending)
    value = run.delivery.first_argument
    settle = partial(run.terms.outcomes.settle, saga, context_of(state), request, addressed, value)
    return (yield from _handle(run, record, state, {}, settle))


def _dropped(delivery: Delivery, addressed: Addressed, key: str, reason: str) -> Handled:
    step = delivery.step
    instance_id = addressed.instance_id
    return Handled(Outcome(Kind.DROPPED, step.saga.name, step.name, delivery.message_id, key, instance_id, reason=reason))


def _handle(
    run: Run,
    record: Record | None,
    state: State,
    arguments: Mapping[str, Any],
    instead: Callable[[], object] | None = None,
) -> Steps[Handled]:
    """Run the handler, or what runs instead of it, and commit the instance as it was left."""
    step, delivery = run.step, run.delivery
    session, leaves_in = delivery.session, step.status.to if instead is None else ()
    status = step.status_of(state) if leaves_in else None
    with session.on_behalf_of(step.saga.name, context_of(state).view.id):
        yield from _check_deliveries(delivery)
        shared = (yield Begin(step.transaction)) if step.transaction is not None and instead is None else None
        with nullcontext() if shared is None else undone_for_others(shared, step, context_of(state).view.key):
            with session.running(run.sending):
                result = call(delivery, state, arguments, shared) if instead is None else instead()
            if leaves_in:
                step.leave(state, context_of(state).view.key, status)
            if delivery.question:
                run = replace(run, answer=kept_result(step, result))
            _answer(run, state, result, is_born=record is None)
            commit = _commit_of(run, record, state, arguments)
            try:
                yield commit
            except RevisionConflict as conflict:
                if conflict.reason == "unique" and run.attempt.unique:
                    yield from _refuse_taken_keys(run, state)
                raise
    handled, context = _handled(run, commit, result, is_new=record is None), context_of(state)
    is_more = context.cancelled or context.unbegun or context.compensated
    return _with_requests(handled, context) if is_more else handled


def _with_requests(handled: Handled, context: StepContext) -> Handled:
    """Add what becomes of the instance's requests."""
    outcome = handled.outcome._replace(compensated=context.compensated)
    return handled._replace(outcome=outcome, cancelled=tuple(context.cancelled.values()), unbegun=tuple(context.unbegun))


def _check_deliveries(delivery: Delivery) -> Steps[None]:
    """Count a delivery just before its function runs: a delivery that fails earlier ends no worker, however often it comes.

    Raises:
        TooManyDeliveries: There were more than allowed.
    """
    if delivery.max_deliveries is None:
        return
    count = 1 + (yield CountDelivery(delivery.step.name, delivery.message_id))  # the first one was not counted
    if count > delivery.max_deliveries:
        raise TooManyDeliveries(delivery.step.name, delivery.message_id, count, delivery.max_deliveries)


def _answer(run: Run, state: State, result: Any, *, is_born: bool) -> None:
    """Answer the message, unless it creates the instance, which replies later; and the requester of one that completes."""
    context = context_of(state)
    asked_by = run.delivery.asked_by
    if not is_born and asked_by and context.compensates and not context.compensated:
        run.terms.outcomes.hold_answer(context, asked_by, result)
    elif not is_born:
        _send_answer(run, asked_by, result)
    if context.completed:
        _send_last_answer(run, context.pending.requester)
        context.pending.requester = None


def _send_last_answer(run: Run, to: Mapping[str, Any] | None) -> None:
    """Answer with ``None`` if there was no reply; the instance completes even if that answer cannot be encoded."""
    try:
        _send_answer(run, to, NO_VALUE)
    except InvalidMessage as exc:
        logger.warning("%s completes, and whoever started it gets no answer: %s", run.step.saga.name, exc)


def _send_answer(run: Run, to: Mapping[str, Any] | None, value: Any) -> None:
    """Send an answer with the commit: a Celery ``link`` would also be sent for a repeat, which has no result."""
    message = run.terms.answer(to, value) if to else None
    if message is not None:
        run.sending.messages.append(message)


def _commit_of(run: Run, record: Record | None, state: State, arguments: Mapping[str, Any]) -> Commit:
    if context_of(state).pending.deferred:
        release(run, state)
    try:
        return commit_of(run, record, state)
    except InvalidState as exc:
        if not (names := unannotated_in(run.step, state, arguments, exc)):
            raise
        has, come, them = ("has", "comes", "it") if len(names) == 1 else ("have", "come", "them")
        remedy = f"{' and '.join(names)} of {run.step.name} {has} no annotation, and {come} as JSON has it: annotate {them}"
        raise InvalidState(exc.saga, exc.key, exc.problems, remedy) from exc


def _refuse_taken_keys(run: Run, state: State) -> Steps[None]:
    """Raise ``KeyTaken`` if a key that could not be inserted twice belongs to another live instance."""
    saga, context = run.step.saga, context_of(state)
    added, _ = difference(context.pending.keys, alternate_keys_of(saga, context.view.key, state))
    for name, value in added:
        other = (yield Find(Lookup(saga.names, name, value))).record
        if other is not None and other.id != context.view.id:
            raise KeyTaken(saga.name, name, value, other.id, other.key)
        if other is None and run.attempt.unique >= ORPHANED_AFTER:
            problem = f"the store keeps {name}={value!r} for an instance that is gone: delete what it keeps"
            raise UnreadableState(saga.name, context.view.key, problem)


def _without_instance(
    run: Run, decision: Decision, record: Record | None, lookup: Lookup, arguments: Mapping[str, Any]
) -> Steps[Handled]:
    """Apply the step's policy for an instance that is missing, or that exists already."""
    saga, delivery = run.step.saga, run.delivery
    shown = (shown_property(saga, lookup), lookup.value)
    if record is not None:
        if decision is Decision.ALREADY_EXISTS:
            raise SagaAlreadyExists(saga.name, *shown, record.id)
        return (yield from _ignore(run, record.key, record.id, "exists"))
    key = lookup.value if lookup.property == KEY else ""
    instance_id = lookup.value if lookup.property == ID else ""
    has_waited = delivery.deferral is not None and delivery.deferral().has_waited
    completed = has_waited or (bool(key) and (yield OutcomeOf(saga.names, key)) is not None)
    if decision is Decision.NOT_FOUND or (decision is Decision.DEFER and not completed):
        raise SagaNotFound(saga.name, *shown, completed)
    reason = "completed" if completed else "missing"
    if (if_missing := run.step.missing_function) is None:
        return (yield from _ignore(run, key, instance_id, reason))
    missing = Missing(saga.name, run.step.name, *shown, completed, arguments, run.sending)
    given = arguments if run.step.if_missing is not None else {}  # that of its saga has them in the Missing
    yield from _check_deliveries(delivery)
    with delivery.session.running(run.sending):
        result = delivery.call(if_missing, missing, **given)
    _send_answer(run, delivery.asked_by, result)
    write = write_of(run, Kind.MISSING, key, instance_id, reason)
    yield write
    return _handled(run, write, result, reason)


def _ignore(run: Run, key: str, instance_id: str, reason: str) -> Steps[Handled]:
    _send_answer(run, run.delivery.asked_by, NO_VALUE)
    write = write_of(run, Kind.IGNORED, key, instance_id, reason)
    yield write
    return _handled(run, write, reason=reason)


def _handled(run: Run, commit: Commit, result: Any = None, reason: str = "", *, is_new: bool = False) -> Handled:
    entry: Entry = commit.effects.entry
    kind, name = Kind(entry.outcome), run.step.name
    about = (entry.message_id, entry.key, entry.instance_id, entry.version)
    return Handled(Outcome(kind, entry.saga, name, *about, is_new, reason, result), commit.effects.outgoing)
