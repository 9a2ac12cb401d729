"""One instance, as an operator looks at it and acts on it."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final
from uuid import uuid4

from celery_sagas import signals
from celery_sagas.core.ids import derived_id
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.signatures import AnySignature
from celery_sagas.engine.acts import verbs
from celery_sagas.engine.acts.acting import REASON_CHARACTERS, Act, Done, Plan, Planner, Subject, perform
from celery_sagas.engine.instance import shown_property
from celery_sagas.errors import SagaNotFound
from celery_sagas.operate.actors import Actor, checked_text
from celery_sagas.operate.answering import Sent, answer_to, end_for_requester, failure_to
from celery_sagas.operate.arriving import meant_for, message_to
from celery_sagas.operate.changes import Changed, read_changes
from celery_sagas.operate.explain import explain
from celery_sagas.operate.facts import detail_of
from celery_sagas.operate.patching import patched
from celery_sagas.operate.reading import read_facts
from celery_sagas.operate.trying import Tried, try_message
from celery_sagas.operate.view import view_of
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import Lookup
from celery_sagas.worker.runtime import Runtime, runtime_of
from celery_sagas.worker.step import Step
from celery_sagas.worker.targets import step_of

logger = logging.getLogger("celery_sagas")

#: How many of the newest entries of an instance may have an answer that was given in the place of a task.
_ENTRIES: Final = 50
#: How many of them are read for what they have changed.
_MOST_READ: Final = 10_000
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True)
class OperatedInstance:
    """An instance as an operator acts on it: ``operator.instance(Order, "42")``.

    Each act is one commit, with who acts, and why: ``reason``, at most 2,000 characters. If the instance changes at the same
    time, the act is decided again on what it is then.

    All acts raise these errors:

    * ``SagaNotFound``: There is no such instance.
    * ``MisuseError``: It has another version than ``expected_version``, or the act does not fit it.
    * ``NewerState``, ``UnreadableState``: Newer code has written it, or it cannot be read.
    * ``RevisionConflict``: It was changed each time, or is locked.
    * ``StoreError``: It is unknown whether it was done.
    """

    _operator: Actor
    saga: SagaDefinition
    lookup: Lookup
    _is_first: bool = False  #: whether nothing was done to it before in the operator's batch

    def show(self) -> dict[str, Any] | None:
        """Return what is known of it, redacted: what ``celery sagas show --json`` prints; ``None`` if it is gone.

        Raises:
            StoreError: The store is away.
        """
        facts = read_facts(self._runtime, self.saga, self.lookup)
        return None if facts is None else view_of(facts, explain(facts), self._runtime.settings.hidden)

    def changes(self, limit: int = 50) -> list[Changed]:
        """Return what its newest messages, and acts of operators, have changed of its state, oldest first; redacted.

        The journal says it of a patch, and of messages if the saga has ``history="names"`` or ``"values"``, for as long as
        ``saga_journal_retention``: by its key also of an instance that has ended, of the newest with this key. It is an empty
        list if nothing is known.

        Args:
            limit: How many entries of the journal are read, from 1 to 10,000.

        Raises:
            StoreError: The store is away, or the record is damaged.
            ValueError: The limit is none.
        """
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= _MOST_READ:
            raise ValueError(f"limit={limit!r} is no number from 1 to {_MOST_READ:,}")
        return read_changes(self._backend, self.saga, self.lookup, self._runtime.settings.hidden, limit)

    def pause(self, reason: str, *, expected_version: int | None = None) -> Done:
        """Have all messages to it wait until it is resumed, also timeouts and answers; at most 100, others are redelivered later.

        A message that is being handled at this moment is handled before, or waits. A pause stops no clock: what is due meanwhile
        comes when it is resumed.
        """
        return self._act("pause", reason, verbs.pause, expected_version)

    def resume(self, reason: str, *, expected_version: int | None = None) -> Done:
        """Have it go on: the messages that waited are sent, in the order of their arrival."""
        return self._act("resume", reason, verbs.resume, expected_version)

    def terminate(
        self, reason: str, *, as_completed: bool = False, leave_undone: bool = False, expected_version: int | None = None
    ) -> Done:
        """End it where it stands: none of its steps runs.

        Its timeouts end with it. Its ``Outcome`` is ``COMPLETED``, with the reason ``"terminated"``. Whoever waits for its answer
        gets a ``Failure`` of the kind ``"terminated"``; or the answer ``None``, if no step takes a failure.

        Args:
            reason: Why.
            as_completed: Whether it ends as if a step had completed it without a reply: its ``Outcome`` has no reason, and
                whoever waits for its answer gets the answer ``None``.
            leave_undone: Whether it may end although something that it has done could be undone.
            expected_version: The version that it must have.
        """

        def plan(subject: Subject) -> Plan:
            end = partial(end_for_requester, self._runtime, subject, as_completed=as_completed)
            return verbs.terminate(subject, end, leave_undone=leave_undone, as_completed=as_completed)

        return self._act("terminate", reason, plan, expected_version, ["completed"] * as_completed)

    def patch(
        self,
        reason: str,
        *,
        values: Mapping[str, Any] = _NOTHING,
        removed: Sequence[str] = (),
        change: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        expected_version: int | None = None,
    ) -> Done:
        """Change its state, which must be valid then.

        Args:
            reason: Why.
            values: Values of JSON by their paths, such as ``{"lines.0.sku": "x"}``.
            removed: The paths of what is removed.
            change: Instead, a function that returns the changed fields, given the stored ones, as values of JSON.
            expected_version: The version that it must have.

        Raises:
            InvalidState: The state would not be valid; nothing was written.
            KeyTaken: An alternate key belongs to another instance.
            ValueError: A path leads nowhere.
        """
        changed = change or partial(patched, values=values, removed=removed)
        most_bytes = self._runtime.settings.max_state_bytes
        about = None if change else [dict(values), list(removed)]
        return self._act("patch", reason, lambda subject: verbs.patch(subject, changed, most_bytes), expected_version, about)

    def fire(self, name: str, reason: str, *, expected_version: int | None = None) -> Done:
        """Have a timeout, or the deadline of a request, come now: the first time, or again.

        It is handled once, however often it comes. Of a series it is the next occurrence.

        Args:
            name: Of the timeout; or the id of the request, or its task.
            reason: Why.
            expected_version: The version that it must have.
        """
        return self._act("fire", reason, partial(verbs.fire, name=name, message_in=self._message_in), expected_version, [name])

    def skip(self, name: str, reason: str, *, expected_version: int | None = None) -> Done:
        """Have it no longer wait for a timeout, or for the answer to a request.

        Args:
            name: Of the timeout; or the id of the request, or its task.
            reason: Why.
            expected_version: The version that it must have.
        """
        return self._act("skip", reason, partial(verbs.skip, name=name), expected_version, [name])

    def answer(
        self,
        request: str,
        value: Any,
        reason: str,
        *,
        arguments: Mapping[str, Any] = _NOTHING,
        expected_version: int | None = None,
    ) -> Done:
        """Answer a request in the place of the task that was asked, whose own answer changes nothing any more.

        Args:
            request: Its id, or its task.
            value: The answer, as values of JSON.
            reason: Why.
            arguments: What the step takes besides: ``then=`` had it in its message, and the instance does not keep it.
            expected_version: The version that it must have.

        Raises:
            InvalidMessage: The step does not accept the value, or lacks an argument.
        """
        message = partial(answer_to, request=request, value=value, arguments=arguments)
        return self._send("answer", reason, message, expected_version, [request, value, dict(arguments)])

    def fail(
        self,
        request: str,
        text: str,
        reason: str,
        *,
        arguments: Mapping[str, Any] = _NOTHING,
        expected_version: int | None = None,
    ) -> Done:
        """Have a request fail, with a ``Failure`` of the kind ``"revoked"``, which is not retried.

        Args:
            request: Its id, or its task.
            text: Of the failure.
            reason: Why.
            arguments: What the step takes besides: ``otherwise=`` had it in its message, and the instance does not keep it.
            expected_version: The version that it must have.

        Raises:
            InvalidMessage: The step lacks an argument.
        """
        message = partial(failure_to, request=request, text=text, arguments=arguments)
        return self._send("fail", reason, message, expected_version, [request, text, dict(arguments)])

    def try_step(self, step: Step[Any, ..., Any] | AnySignature | str, *, awaited: str | None = None) -> Tried:
        """Run a step on what is stored of the instance, as ``Operator.try_step`` does; nothing is written or sent.

        If the instance waits for a timeout, or an outcome of a request, that goes to the step, the message is taken for that.

        Args:
            step: A signature of the step; or the step, or its name, if it takes no arguments. Those that name the instance may
                be left out; the answer is the first one.
            awaited: The name of the timeout; or the id of the request, or its task. It is needed if several go to the step.

        Raises:
            TypeError: ``step`` is of another type.
            SagaNotFound: There is no such instance.
            MisuseError: The step is none of the saga's, or does not fit what is awaited, or its arguments name another instance;
                it shares a transaction; or a task runs here.
            NewerState: Newer code has written it.
            SagaError: With which the message would fail. An error of the handler is in the result.
        """
        record = self._backend.sagas.find(self.lookup).record
        if record is None:
            raise SagaNotFound(self.saga.name, shown_property(self.saga, self.lookup), self.lookup.value, False)
        step_of(self.saga, step, "a trial")
        return try_message(self._runtime, meant_for(message_to(step), record, awaited))

    def reindex(self, reason: str, *, expected_version: int | None = None) -> Done:
        """Have it be found and listed by the fields that its saga names today in ``also_by`` and ``search_by``.

        A commit of a message does the same: this is for an instance to which none comes soon. Its state stays as it is stored.

        Raises:
            InvalidState: A value cannot be indexed.
            KeyTaken: An alternate key belongs to another instance.
        """
        return self._act("reindex", reason, verbs.reindex, expected_version)

    def upgrade(self, reason: str, *, always: bool = False, expected_version: int | None = None) -> Done:
        """Have it stored as today's code would: its state, and the fields by which it is found and listed.

        A commit of a message does the same: this is for an instance to which none comes soon.

        Args:
            reason: Why.
            always: Whether it is stored again if nothing would change, too: as ``saga_codec`` encodes it now.
            expected_version: The version that it must have.

        Raises:
            InvalidState: Today's code could not store it.
            KeyTaken: An alternate key belongs to another instance.
        """
        plan = partial(verbs.upgrade, most_bytes=self._runtime.settings.max_state_bytes, always=always)
        return self._act("upgrade", reason, plan, expected_version, [always])

    @property
    def _runtime(self) -> Runtime:
        return runtime_of(self._operator.app)

    @property
    def _backend(self) -> Backend:
        return self._runtime.backends.of(self.saga)

    def _send(
        self, verb: str, reason: str, message: Callable[..., Sent], expected_version: int | None, about: Sequence[Any]
    ) -> Done:
        def plan(subject: Subject) -> Plan:
            sent = message(self._runtime, subject)
            return verbs.settle(subject, sent.request, sent.message, self._rival(subject, sent.request.id))

        return self._act(verb, reason, plan, expected_version, about)

    def _message_in(self, row: str) -> str:
        return next((each.message_id for each in self._backend.outbox.read([row])), "")

    def _rival(self, subject: Subject, request: str) -> str:
        """Return who has answered a request in the place of its task before; empty: nobody has."""
        history = self._backend.journal.history(self.saga.names, subject.record.key, _ENTRIES)
        acts = (
            detail_of(each) for each in reversed(history) if (each.instance_id, each.step) == (subject.record.id, subject.step)
        )
        return next((act["actor"] for act in acts if act.get("request") == request), "")

    def _act(self, verb: str, reason: str, plan: Planner, expected_version: int | None, about: Sequence[Any] | None = ()) -> Done:
        """Act on it; what the act is about tells it from others of its verb, and is ``None`` if that cannot be said."""
        operator = self._operator
        is_once = bool(operator.batch) and about is not None
        id = derived_id(operator.batch, json.dumps([verb, about], default=str)) if is_once else str(uuid4())
        may_be_done = is_once and not self._is_first
        act = Act(verb, operator.actor, checked_text("reason", reason, REASON_CHARACTERS), id, may_be_done=may_be_done)
        services = self._runtime.services_of(self.saga)
        done = perform(services, self.saga, self.lookup, act, plan, expected_version=expected_version, dry_run=operator.dry_run)
        if done.changed:
            logger.info("%s %r %s: %r, by %r: %r", done.saga, done.key, act.name, done.text, act.actor, act.reason)
            signals.instance_operated.send(sender=operator.app, act=act, done=done)
        return done
