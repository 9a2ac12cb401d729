"""The message headers: which instances caused a message. Plain participants hand them on without knowing of sagas."""

from collections.abc import Mapping
from typing import Any

from celery_sagas.engine.session import MAX_CAUSATION, Session, current_session

#: Saga name to instance id, at most ``MAX_CAUSATION`` of them.
CAUSATION = "saga_causation"
#: The id of the message whose task published this one.
CAUSE = "saga_cause"
#: How often this message was put off because the store could not serve it.
PUT_OFF = "saga_put_off"

_MAX_CHARACTERS = 255


def read_causation(request: Any) -> dict[str, str]:
    """Return the causation of the message a task runs for; what is not of its form is left out.

    A direct call, or an eager task, was not published, so that nobody could stamp it: it has the causation of the task that
    runs around it.
    """
    around = current_session()
    if around is not None and (request.called_directly or request.is_eager) and not _is_stamped(request.headers or {}):
        return dict(around.causation)
    found = _header(request, CAUSATION)
    if not isinstance(found, Mapping):
        return {}
    pairs = list(found.items())[-MAX_CAUSATION:]
    return {saga: instance for saga, instance in pairs if _is_name(saga) and _is_name(instance)}


def read_put_off(request: Any) -> int:
    """Return how often the message was put off."""
    count = _header(request, PUT_OFF)
    return count if isinstance(count, int) and 0 <= count < 1_000_000 else 0


def causation_headers(session: Session) -> dict[str, Any]:
    """Return the headers of a message that is published while a session runs."""
    return {CAUSE: session.message_id} | ({CAUSATION: dict(session.causation)} if session.causation else {})


def stamp(headers: dict[str, Any], session: Session) -> None:
    """Put the causation on a message, unless it has one, or is the session's own message sent again (``retry``, ``replace``)."""
    if headers.get("id") != session.message_id and not _is_stamped(headers):
        headers.update(causation_headers(session))


def _is_stamped(headers: Mapping[str, Any]) -> bool:
    return CAUSE in headers or CAUSATION in headers


def _header(request: Any, name: str) -> object:
    """Read a header: Celery merges them into the request, but for eager tasks, where they are in ``headers`` alone."""
    value = request.get(name)
    return (request.headers or {}).get(name) if value is None else value


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MAX_CHARACTERS
