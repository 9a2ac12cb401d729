"""The deferral of a running message: what its instance needs to keep it, and how it waits while there is no instance."""

import logging
from collections.abc import Mapping
from typing import Any

from celery.canvas import Signature
from celery.exceptions import Ignore

from celery_sagas.clock import time_s
from celery_sagas.core.sending import SerializedMessage
from celery_sagas.engine.deferring import park
from celery_sagas.engine.session import Deferral, Session
from celery_sagas.errors import SagaNotFound, StoreError, TooManyDeferred
from celery_sagas.observers import observers
from celery_sagas.worker.celery_internals import longest_redelivery_s
from celery_sagas.worker.failures.dead_letters import lookup_of, options_of
from celery_sagas.worker.failures.redelivery import (
    below_redelivery_s,
    may_publish_again,
    publish_again_or_requeue,
    redeliver_if_it_helps,
)
from celery_sagas.worker.headers import (
    CAUSATION,
    DEFERRED_SINCE,
    LOOKS,
    STEP,
    WAITED,
    is_stamped,
    read_deferred_since,
    read_looks,
    read_waited,
)
from celery_sagas.worker.runtime import Runtime
from celery_sagas.worker.serialization import serialized_again

logger = logging.getLogger("celery_sagas")

#: Seconds before the first look for a missing instance; each pause is twice as long as the one before.
_FIRST_PAUSE_S = 0.1
#: Seconds for which a message waits in workers; after that it waits in the backend.
_IN_WORKERS_S = 15.0
#: The part of the time that a message has waited after which it looks again, and the longest such pause in seconds.
_OF_WAITED, _LONGEST_PAUSE_S = 1 / 3, 300.0


def deferral_of(task: Any, request: Any, session: Session, bound: Mapping[str, Any]) -> Deferral:
    """Return what is needed to defer the message of a task's request."""
    now = int(time_s() * 1000)
    since = read_deferred_since(request, now)
    headers = {DEFERRED_SINCE: since, WAITED: True}
    return Deferral(since, now, lambda: _again(task, request, session, bound, headers), read_waited(request))


def _again(task: Any, request: Any, session: Session, bound: Mapping[str, Any], headers: Mapping[str, Any]) -> SerializedMessage:
    """Return the message of a request, to be published again: with its id, and what follows it."""
    is_message = not request.called_directly
    options: dict[str, Any] = options_of(request) | _destination_of(request) if is_message else {"task_id": session.message_id}
    own = options.get("headers") or {}
    if not is_stamped(own):  # else it would belong to the instances of whichever message releases it
        own[CAUSATION] = dict(session.causation)
    options["headers"] = {STEP: True, **own, **headers}
    return serialized_again(task.app, Signature(task.name, (), dict(bound), options, app=task.app))


def _destination_of(request: Any) -> dict[str, str]:
    """Return the options that send a message where it has come from, as ``Task.signature_from_request`` does."""
    info = request.delivery_info or {}
    exchange, routing_key = info.get("exchange"), info.get("routing_key")
    if not routing_key or request.is_eager:
        return {}
    return {"exchange": exchange, "routing_key": routing_key} if exchange else {"queue": routing_key}


def keep_out(task: Any, runtime: Runtime, error: TooManyDeferred) -> None:
    """Redeliver the running message, which its instance cannot keep, later; its time counts from its first arrival.

    Raises:
        Ignore: It was published again.
        Reject: The broker keeps this delivery.
    """
    since = read_deferred_since(task.request, int(time_s() * 1000))
    redeliver_if_it_helps(task, runtime.publisher, error, {DEFERRED_SINCE: since})


def defer_missing(task: Any, runtime: Runtime, session: Session, bound: Mapping[str, Any], error: SagaNotFound) -> None:
    """Have the running message look again for its instance later, if there is a message and time left; else return.

    Raises:
        Ignore: It will; this delivery is acknowledged.
        Reject: It could not be published; the broker keeps this delivery.
    """
    request, publisher, now = task.request, runtime.publisher, int(time_s() * 1000)
    since, looks = read_deferred_since(request, now), read_looks(request)
    waited_s = (now - since) / 1000
    left_s = task.saga_step.defer_for_s - waited_s
    if left_s <= 0 or not may_publish_again(publisher, task):
        return
    headers = {DEFERRED_SINCE: since, LOOKS: looks + 1}
    is_soon = waited_s < _IN_WORKERS_S
    pause_s = min(left_s, _in_workers_s(task, waited_s, looks) if is_soon else min(waited_s * _OF_WAITED, _LONGEST_PAUSE_S))
    logger.info("%s[%s] is deferred, and looks again in %.1f s: %s", task.name, request.id, pause_s, error)
    if is_soon:
        publish_again_or_requeue(task, publisher, pause_s, headers)
    else:
        try:
            _park(task, runtime, session, bound, headers, now + int(pause_s * 1000))
        except StoreError as exc:
            redeliver_if_it_helps(task, publisher, exc)
            raise
    for observer in observers:
        observer.redelivered(task.name, type(error).__name__)
    raise Ignore()


def _in_workers_s(task: Any, waited_s: float, looks: int) -> float:
    """Return for how long a worker keeps a message before its next look: a broker may redeliver it if that is too long."""
    pause_s = min(_FIRST_PAUSE_S * 2.0 ** min(looks, 20), _IN_WORKERS_S - waited_s)
    return below_redelivery_s(pause_s, longest_redelivery_s(task.app))


def _park(
    task: Any, runtime: Runtime, session: Session, bound: Mapping[str, Any], headers: Mapping[str, Any], due_at: int
) -> None:
    """Store the running message in the outbox, until it is due."""
    step, message = task.saga_step, _again(task, task.request, session, bound, headers)
    lookup, looks = lookup_of(step, task.request), headers[LOOKS]
    park(runtime.backends.of(step.saga).sagas, step, lookup, session.message_id, looks, message, due_at)
