"""The sessions of the tasks that run here: each stands with the request that Celery keeps for its task, and ends with it.

So a task costs nothing unless it is a step or publishes something, and sessions nest as tasks do: in eager mode, in direct
calls.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from uuid import uuid4

from kombu.utils.json import dumps

from celery_sagas.core.ids import derived_id
from celery_sagas.engine.session import Session
from celery_sagas.worker.headers import is_stamped, read_message_id, stamped_causation
from celery_sagas.worker.internals import current_app, running_requests

_SESSION = "_celery_sagas_session"
#: The request of a task that has failed outside of its process, while Celery does what follows a failure.
_failed: ContextVar[Any] = ContextVar("failed", default=None)


def current_session() -> Session | None:
    """Return the session of the task that runs here, if one does, or of the one whose failure is seen to.

    A plain task that is called as a function is a part of what calls it.
    """
    session = _first_session(running_requests())
    if session is None and (failed := _failed.get()) is not None:
        return session_of(failed)
    return session


@contextmanager
def session_of_failed(request: Any) -> Iterator[None]:
    """Have what is published meanwhile, such as a ``link_error``, published in the name of a task that runs no more."""
    token = _failed.set(request)
    try:
        yield
    finally:
        _failed.reset(token)


def open_sessions() -> Iterator[Session]:
    """Yield the sessions of the tasks that run here, the innermost first."""
    for request in running_requests():
        session = request.__dict__.get(_SESSION)
        if session is not None:
            yield session


def session_of(request: Any) -> Session:
    """Return the session of a task's request; the first time it is opened."""
    session: Session | None = request.__dict__.get(_SESSION)
    if session is None:
        session = request.__dict__[_SESSION] = Session(read_message_id(request), _causation_of(request), str(request.id))
    return session


def new_message_id(session: Session | None, task: str, arguments: object) -> str:
    """Return the id of a message that is published; in a task, one that it publishes the same under when it is delivered again.

    Args:
        session: Of the task that runs here, if one does.
        task: To which the message goes.
        arguments: What is in it, encoded.
    """
    if session is None:
        return str(uuid4())
    session.published += 1
    running = current_app().current_worker_task
    retries = 0 if running is None else running.request.retries  # a task that retries itself, to poll, publishes anew each time
    return derived_id(session.message_id, f"{task}/{retries}/{session.published}/{dumps(arguments)}")


@contextmanager
def direct_session(request: Any) -> Iterator[Session]:
    """Have a session for a step that is called as a function; its request may outlive the call."""
    try:
        yield session_of(request)
    finally:
        request.__dict__.pop(_SESSION, None)


def _causation_of(request: Any) -> dict[str, str]:
    """Return the causation of the message a task runs for.

    A direct call, or an eager task, was not published, so that nobody could stamp it: it has the causation of the task that
    runs around it.
    """
    if (request.called_directly or request.is_eager) and not is_stamped(request.headers or {}):
        around = _first_session(_requests_around(request))
        return dict(around.causation) if around else {}
    return stamped_causation(request)


def _requests_around(inner: Any) -> list[Any]:
    requests = list(running_requests())
    for position, request in enumerate(requests):
        if request is inner:
            return requests[position + 1 :]
    return requests


def _first_session(requests: Iterable[Any]) -> Session | None:
    for request in requests:
        session: Session | None = request.__dict__.get(_SESSION)
        if session is not None or not request.called_directly:
            return session or session_of(request)
    return None
