"""The sessions of the running tasks: each is stored on the request that Celery keeps for its task, and ends with it.

So a task has no overhead unless it is a step or publishes something, and sessions nest as tasks do: in eager mode, in
direct calls.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any
from uuid import uuid4

from kombu.exceptions import EncodeError, OperationalError
from kombu.utils.json import dumps

from celery_sagas.core.ids import derived_id
from celery_sagas.engine.session import Session
from celery_sagas.worker.celery_internals import current_app, running_requests
from celery_sagas.worker.headers import (
    headers_of,
    id_of,
    is_stamped,
    read_message_id,
    read_publication,
    read_retries,
    stamped_causation,
    task_of,
)

_SESSION = "_celery_sagas_session"
#: Marks the request of a task that has returned; a header may have this name, but not this value.
_OVER, _IS_OVER = "_celery_sagas_over", object()
#: Marks the request of a message that is handled with others; a header may have this name, but not this value.
_BATCHED, _IS_BATCHED = "_celery_sagas_batched", object()
#: Celery's task that publishes the messages that follow a chord, after its retries.
_CHORD_UNLOCK = "celery.chord_unlock"
#: Mark the error of a task that may have answered before it, or cannot have; the main process receives the mark with it.
_MAY_BE_ANSWERED, _NOT_ANSWERED = "_celery_sagas_may_be_answered", "_celery_sagas_not_answered"
#: Celery also raises them after a task has returned, as if the task had: over its result, or the messages that follow it.
_OF_CELERY = (EncodeError, OperationalError)
#: The request of a task that has failed outside of its process, while Celery handles the failure.
_failed: ContextVar[Any] = ContextVar("failed", default=None)
#: The session of a handler that is called as a function, and whose messages are collected.
_collecting: ContextVar[Session | None] = ContextVar("collecting", default=None)


def current_session() -> Session | None:
    """Return the session of the running task, if any, or of the one whose failure is being handled.

    A plain task that is called as a function is part of its caller.
    """
    if (collecting := _collecting.get()) is not None:
        return collecting
    session = _first_session(running_requests())
    if session is None and (failed := _failed.get()) is not None:
        return session_of(failed)
    return session


def session_of_failed(request: Any) -> AbstractContextManager[None]:
    """Have messages that are published meanwhile, such as a ``link_error``, published on behalf of a task that no longer runs."""
    return _setting(_failed, request)


def collecting_session(session: Session) -> AbstractContextManager[None]:
    """Have the messages of a handler that is called as a function belong to a session of its own."""
    return _setting(_collecting, session)


@contextmanager
def _setting(variable: ContextVar[Any], value: object) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def open_sessions() -> Iterator[Session]:
    """Yield the sessions of the running tasks, the innermost first."""
    if (collecting := _collecting.get()) is not None:
        yield collecting
    for request in running_requests():
        session = _session_in(request)
        if session is not None:
            yield session


def running_sessions() -> Iterator[tuple[Session, str]]:
    """Yield the sessions of the running tasks, the innermost first, each with the name of its step or task; open none."""
    if (collecting := _collecting.get()) is not None and collecting.sending is not None:
        yield collecting, collecting.sending.step
    for request in running_requests():
        session = _session_in(request)
        if session is not None:
            yield session, session.sending.step if session.sending is not None else str(task_of(request))


def session_of(request: Any) -> Session:
    """Return the session of a task's request, opened on first use."""
    session = _session_in(request)
    if session is None:
        session = request.__dict__[_SESSION] = Session(
            read_message_id(request), _causation_of(request), str(request.id), _publication_of(request)
        )
    return session


def _session_in(request: Any) -> Session | None:
    session = request.__dict__.get(_SESSION)
    return session if isinstance(session, Session) else None  # a header may have its name


def new_message_id(session: Session | None, task: str, arguments: object) -> str:
    """Return the id of a message to publish; in a task, the same id when the task is redelivered.

    Args:
        session: The session of the running task, if any.
        task: The receiving task.
        arguments: The message's arguments, encoded.
    """
    if session is None:
        return str(uuid4())
    if _is_over(session):
        return new_publication(f"{task}/{dumps(arguments)}", session)
    session.published += 1
    return derived_id(session.message_id + session.publication, f"{task}/{_retries()}/{session.published}/{dumps(arguments)}")


def new_publication(id: str, session: Session | None = None) -> str:
    """Return an id that distinguishes messages of the same id; in a task, the same when the task is redelivered.

    It does not depend on the task's other publications. Messages that follow the task are published once, despite retries.
    """
    if session is None:
        return uuid4().hex
    which = f"{'next' if _is_over(session) else _retries()}/{id}"
    count = session.publications[which] = session.publications.get(which, 0) + 1
    return derived_id(session.message_id + session.publication, f"publication/{which}/{count}")


def mark_over(request: Any) -> None:
    """Note that a task has returned: messages published from now on follow it, such as the next of its chain, or a ``link``."""
    request.__dict__[_OVER] = _IS_OVER


def mark_batched(request: Any) -> None:
    """Note that a message is handled with others: if it fails it runs once more, as a task, which may retry or be replaced."""
    request.__dict__[_BATCHED] = _IS_BATCHED


def is_batched(request: Any) -> bool:
    """Return whether a message is handled with others."""
    return request.__dict__.get(_BATCHED) is _IS_BATCHED


def _is_over(session: Session) -> bool:
    for request in running_requests():
        if _session_in(request) is session:
            return request.__dict__.get(_OVER) is _IS_OVER or task_of(request) == _CHORD_UNLOCK
    return False


def marking_as_unanswered() -> AbstractContextManager[None]:
    """Mark errors that the task itself raises, of classes that Celery also raises after a task has returned."""
    return _marking(_NOT_ANSWERED, *_OF_CELERY)


def marking_as_perhaps_answered(*errors: type[Exception]) -> AbstractContextManager[None]:
    """Mark the errors that are raised when an answer may be on its way."""
    return _marking(_MAY_BE_ANSWERED, *errors)


@contextmanager
def _marking(mark: str, *errors: type[Exception]) -> Iterator[None]:
    try:
        yield
    except errors as exc:
        exc.__dict__[mark] = True
        raise


def may_be_answered(error: BaseException) -> bool:
    """Return whether a task whose error the worker's main process receives may have answered nevertheless."""
    return hasattr(error, _MAY_BE_ANSWERED) or (isinstance(error, _OF_CELERY) and not hasattr(error, _NOT_ANSWERED))


def replacing_publication(session: Session) -> str:
    """Return the publication of a message that replaces a task's; the same each time the task is redelivered."""
    return derived_id(session.message_id + session.publication, "replace")


def _retries() -> int:
    """Return how often the running task was retried: a task that retries itself, to poll, publishes again each time."""
    running = current_app().current_worker_task
    return 0 if running is None else read_retries(running.request)


@contextmanager
def direct_session(request: Any) -> Iterator[Session]:
    """Open a session for a step that is called as a function; its request may outlive the call."""
    try:
        yield session_of(request)
    finally:
        request.__dict__.pop(_SESSION, None)


def _causation_of(request: Any) -> dict[str, str]:
    """Return the causation of a task's message.

    A direct call, or an eager task, was not published, and so has no causation headers: it has the causation of the task that
    runs around it.
    """
    if (request.called_directly or request.is_eager) and not is_stamped(headers_of(request)):
        around = _first_session(_requests_around(request))
        return dict(around.causation) if around else {}
    return stamped_causation(request)


def _publication_of(request: Any) -> str:
    """Return the publication of a task's message; with ``apply`` and in eager mode, without publishing, each call is one.

    A message of a commit is an exception: its id is unique.
    """
    publication = read_publication(request)
    if not publication and request.is_eager and not is_stamped(headers_of(request)):
        return new_publication(id_of(request), _first_session(_requests_around(request)))
    return publication


def _requests_around(inner: Any) -> list[Any]:
    requests = list(running_requests())
    for position, request in enumerate(requests):
        if request is inner:
            return requests[position + 1 :]
    return requests


def _first_session(requests: Iterable[Any]) -> Session | None:
    for request in requests:
        if not request.called_directly or _session_in(request) is not None:
            return session_of(request)
    return None
