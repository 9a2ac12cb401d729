"""Trying a step: its handler runs on what is stored, through the unit of work, and nothing is written or sent."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from uuid import uuid4

from pydantic_core import from_json

from celery_sagas import clock
from celery_sagas.core.codec import encoded_fields
from celery_sagas.core.state import State
from celery_sagas.core.step import IfMissing
from celery_sagas.engine.instance import context_of
from celery_sagas.engine.outcomes import Kind
from celery_sagas.engine.session import Deferral, Delivery, Session
from celery_sagas.engine.trying import Trial, run_trial
from celery_sagas.errors import MisuseError, SagaError, SagaNotFound
from celery_sagas.operate.arriving import Arriving
from celery_sagas.operate.outgoing import OutgoingMessage, direct_message, messages_of
from celery_sagas.operate.redact import redacted
from celery_sagas.stores.operations import Commit, Delete, Insert, Update
from celery_sagas.worker.celery_internals import as_current_app
from celery_sagas.worker.deliveries import caller_without_worker
from celery_sagas.worker.isolation import held_back
from celery_sagas.worker.runtime import Runtime
from celery_sagas.worker.sessions import current_session


@dataclass(frozen=True)
class Tried:
    """What would come of a message to a step. Nothing of it was written or sent."""

    saga: str  #: the stored name
    step: str  #: the name of the step
    arrived_as: str  #: "a message", "the timeout delivery", or such as "the answer of shop.charge"
    outcome: Kind | None = None  #: ``None``: there is an error
    ran: bool = False  #: whether the handler, or an ``if_missing`` function, has run, with all that it does by itself
    reason: str = ""  #: why it would be ignored, deferred or dropped, as in ``Outcome``
    key: str = ""
    id: str = ""  #: the instance's; that of one that would be new is another each time
    version: int = 0  #: of the instance after it; 0 without an instance
    before: dict[str, Any] | None = None  #: the state as values of JSON, redacted; ``None``: there is no instance
    after: dict[str, Any] | None = None  #: the state after it; also of an instance that would complete
    changed: tuple[str, ...] = ()  #: the names of the fields that would change, also hidden ones
    messages: tuple[OutgoingMessage, ...] = ()  #: what would be sent
    ended: tuple[str, ...] = ()  #: the timeouts, and the tasks of requests, for which the instance would wait no longer
    #: Raised by the handler, or by another function of the app's: nothing would be written.
    error: Exception | None = field(default=None, compare=False)


def try_message(runtime: Runtime, message: Arriving) -> Tried:
    """Run a message on what is stored; nothing is written or sent, but what its handler does by itself.

    Raises:
        MisuseError: A task runs here; or the step shares a transaction.
        StoreError: The store is away, or the instance cannot be read.
        SagaError: With which the message would fail, other than raised by the handler.
    """
    if current_session() is not None:
        problem = f"{message.step.name} was tried inside a task, which handles messages itself"
        raise MisuseError(problem, "Try it outside of a worker")
    return _Trying(runtime, message).run()


@dataclass
class _Trying:
    """One message that is tried."""

    runtime: Runtime
    message: Arriving
    _state: State | None = None  #: as the handler has left it
    _ran: bool = False
    _raised: Exception | None = None  #: by the handler
    _direct: list[OutgoingMessage] = field(default_factory=list)  #: what the handler has published by itself

    def run(self) -> Tried:
        step, app = self.message.step, self.runtime.app
        services = self.runtime.services_of(step.saga)
        try:
            with as_current_app(app), held_back(self._hold):
                trial = run_trial(services.backend, self._delivery(), services.terms)
        except Exception as exc:
            if exc is self._raised or not isinstance(exc, SagaError):
                return self._failed(exc)
            if isinstance(exc, SagaNotFound) and step.policy is IfMissing.DEFER and exc.saga == step.saga.name:
                return replace(self._begun, outcome=Kind.DEFERRED, reason="missing")
            raise
        return self._tried(trial)

    def _failed(self, error: Exception) -> Tried:
        """Return what is known of a message whose handler has raised an error."""
        tried = replace(self._begun, error=error, messages=tuple(self._direct))
        if self._state is None:
            return tried
        view = context_of(self._state).view
        return replace(tried, key=view.key, id=view.id, version=view.version)

    def _tried(self, trial: Trial) -> Tried:
        outcome, hidden = trial.outcome, self.runtime.settings.hidden
        before = None if trial.record is None else from_json(trial.record.data)
        after = self._after(trial, before)
        sent = messages_of(trial.commit, hidden) if trial.commit else ()
        return replace(
            self._begun,
            outcome=outcome.kind,
            reason=outcome.reason,
            key=outcome.key,
            id=outcome.instance_id,
            version=outcome.version,
            before=redacted(self.message.step.saga, before, hidden),
            after=redacted(self.message.step.saga, after, hidden),
            changed=_changed(before or {}, after or {}),
            messages=(*sent, *self._direct),
            ended=_ended(trial.commit),
        )

    @property
    def _begun(self) -> Tried:
        step = self.message.step
        return Tried(step.saga.name, step.name, self.message.arrived_as, ran=self._ran)

    def _after(self, trial: Trial, before: Any) -> Any:
        if isinstance(trial.commit, Insert):
            return from_json(trial.commit.new.data)
        if isinstance(trial.commit, Update):
            return from_json(trial.commit.change.data)
        return before if self._state is None else encoded_fields(self._state)

    def _delivery(self) -> Delivery:
        step, bound, record, _ = self.message
        id, now = str(uuid4()), int(clock.time_s() * 1000)
        session = Session(id, {step.saga.name: record.id} if record else {})
        again = partial(self.runtime.services_of(step.saga).terms.deferred.message, step.name, id, bound)
        return Delivery(
            step,
            id,
            bound,
            session,
            self._noting(caller_without_worker(self.runtime.app, step, session)),
            self.message.address,
            task=step.name,
            at=clock.now() if step.saga.keeps_messages else None,
            deferral=lambda: Deferral(now, now, again),
        )

    def _noting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def noting(function: Any, first: Any, /, **arguments: Any) -> Any:
            self._ran, self._state = True, first if isinstance(first, State) else None
            try:
                return call(function, first, **arguments)
            except Exception as exc:
                self._raised = exc
                raise

        return noting

    def _hold(self, _: object, body: Any, headers: Mapping[str, Any], *__: object) -> None:
        """Keep a message that the handler publishes by itself."""
        self._direct.append(direct_message(body, headers, self.runtime.settings.hidden))


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(name for name in dict.fromkeys((*before, *after)) if before.get(name) != after.get(name))


def _ended(commit: Commit | None) -> tuple[str, ...]:
    """Return the names of what an instance would wait for no longer; of one that would complete, of all."""
    if not isinstance(commit, Update | Delete):
        return ()
    after = _waits(commit.change.pending) if isinstance(commit, Update) else {}
    return tuple(name for id, name in _waits(commit.record.pending).items() if id not in after)


def _waits(pending: str) -> dict[str, str]:
    """Return the names of timeouts, and the tasks of requests, by their ids."""
    waits = json.loads(pending)
    timeouts = {each["id"]: name for name, each in waits.get("timeouts", {}).items()}
    return timeouts | {id: each["task"] for id, each in waits.get("requests", {}).items() if not each.get("timed_out")}
