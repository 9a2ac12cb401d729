"""Sending from plain code, with a transaction of its own: the transactional outbox for views, scripts and plain tasks."""

import logging
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from celery.exceptions import SoftTimeLimitExceeded

from celery_sagas.core.delays import Delay
from celery_sagas.core.ids import derived_id, row_id, time_ordered_id
from celery_sagas.core.sending import SerializedMessage
from celery_sagas.core.signatures import Piped, SignatureOf
from celery_sagas.engine.session import Session as MessageSession
from celery_sagas.errors import InvalidMessage, MisuseError
from celery_sagas.stores.ports import shared_of
from celery_sagas.stores.records import Outgoing
from celery_sagas.stores.shared import SEND, sent_by
from celery_sagas.worker.celery_internals import current_app
from celery_sagas.worker.headers import is_name
from celery_sagas.worker.runtime import Runtime, runtime_of
from celery_sagas.worker.serialization import as_json, serialized
from celery_sagas.worker.sessions import current_session, new_message_id
from celery_sagas.worker.timeouts import due_time, waiting

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session, scoped_session

    #: What a transaction is known by.
    Using = Session | scoped_session[Any] | Connection | str

logger = logging.getLogger("celery_sagas")

R = TypeVar("R")


def send(signature: SignatureOf[R] | Piped, *, using: "Using", after: Delay | None = None, id: str | None = None) -> str:
    """Send a message with a transaction of the caller's: if and only if that commits.

    The message is written into the outbox over the caller's own connection. It is published right after the commit of a
    ``Session``, or of Django's; and by the relay of a worker, within ``saga_relay_interval``, after any other commit, or if this
    process ends before. Inside a step, use ``order.send``.

    Args:
        signature: A signature of any task, or a chain of tasks. It is encoded now. A ``countdown`` or ``eta`` in its options has
            the effect of ``after``.
        using: The transaction: a ``Session`` or a ``Connection`` of SQLAlchemy's, or the alias of a database of Django's, inside
            ``atomic()``. An ``AsyncSession`` gives its ``Session`` to ``run_sync``. A savepoint that is rolled back takes the
            message with it.
        after: How long it waits in the outbox, not in the broker: a ``timedelta`` or seconds.
        id: The message's id, at most 255 characters; for a chain, its first task's. A step drops a message whose id it has
            handled before, so that sending under the same id again has no further effect.

    Returns:
        The message's id; for a chain, its last task's.

    Raises:
        TypeError: The message is a group or a chord, or not a signature; or ``using`` is of another type.
        InvalidMessage: It cannot be encoded as JSON, is larger than ``saga_max_state_bytes``, or its task does not accept these
            arguments; or ``id`` is no id. Nothing was written.
        ConfigurationError: The transaction is not one of the database that ``saga_outbox_backend``, or ``saga_backend``, names,
            or that is no SQL database.
        MisuseError: A step runs; or there is no transaction, or it can only be rolled back.
    """
    app, session = current_app(), current_session()
    if session is not None and session.sending is not None:
        problem = f"a transaction was given to send with inside the step {session.sending.step}, whose commit sends"
        raise MisuseError(problem, "Use order.send(…), or publish(…) without using=")
    runtime = runtime_of(app)
    shared = shared_of(runtime.outbox, "saga_outbox_backend, or saga_backend,")
    due_at = None if after is None else waiting(due_time(after))
    message = serialized(app, signature, _ids(session, signature, id).__next__, runtime.settings.max_state_bytes)
    shared.add(using, [_row_of(message, due_at)], partial(_publish, runtime))
    return message.answer_id


def _ids(session: MessageSession | None, signature: Any, first: str | None) -> Iterator[str]:
    """Yield the ids of a message: in a task the same ones when the task is redelivered."""
    task = str(getattr(signature, "task", ""))
    if first is not None and not is_name(first):
        raise InvalidMessage(task, [("id", "it is no text of 1 to 255 printable characters")])
    if first is None:
        given = [getattr(signature, "args", ()), getattr(signature, "kwargs", {})]
        arguments = "" if session is None else as_json(task, given)  # which are a part of the id in a task alone
        first = new_message_id(session, task, arguments)
    yield first
    number = 0
    while True:
        number += 1
        yield derived_id(first, f"{SEND}/{number}")


def _row_of(message: SerializedMessage, due_at: int | None) -> Outgoing:
    if due_at is not None and message.due_at:
        raise TypeError("send() was given after=, and a signature with a countdown or eta: use one of them")
    when = message.due_at if due_at is None else due_at
    return Outgoing(row_id(time_ordered_id(), 0), "sent", message.message_id, message.task, message.payload, when)


def _publish(runtime: Runtime, cause: str) -> None:
    """Publish what a transaction has sent; what this cannot is left to a relay."""
    try:
        runtime.dispatcher_of(runtime.outbox).dispatch_committed(sent_by(cause))
    except Exception as exc:
        if runtime.publisher.inline or isinstance(exc, SoftTimeLimitExceeded):  # the task's own, or that of the one that sends
            raise
        logger.warning("messages that were sent with a transaction are left to a relay: %r", exc)
