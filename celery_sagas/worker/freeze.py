"""Signatures to text and back: a message is encoded where ``send`` is called, and published from its text."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from celery import Celery, signature
from celery.canvas import Signature, _chain, chord, chunks, group
from kombu.exceptions import EncodeError
from kombu.utils.json import dumps, loads

from celery_sagas.core.context import Frozen
from celery_sagas.engine.session import current_session
from celery_sagas.errors import InvalidMessage
from celery_sagas.worker.headers import causation_headers


def freezer(app: Celery, max_bytes: int) -> Callable[[object, Callable[[], str]], Frozen]:
    """Return the function that encodes what a step sends."""

    def freeze(message: object, next_id: Callable[[], str]) -> Frozen:
        return frozen(app, message, next_id, max_bytes)

    return freeze


def frozen(app: Celery, message: object, next_id: Callable[[], str], max_bytes: int) -> Frozen:
    """Encode a signature, or a chain of them, with ids, headers and parents of its own.

    Raises:
        TypeError: It is neither, or holds a group or chord.
        InvalidMessage: It cannot be encoded, or is too large.
    """
    sent = _checked(message).clone()
    members = [member.clone() for member in sent.tasks] if isinstance(sent, _chain) else [sent]
    headers, parents = _headers_and_parents(app)
    if isinstance(sent, _chain):
        headers |= sent.options.pop("headers", None) or {}  # else they would replace those of the first member
    for member in members:
        options = member.options
        options["task_id"] = next_id()
        options["headers"] = {**headers, **(options.get("headers") or {})}
    members[0].options.update(parents)
    _make_times_absolute(members[0].options)  # the next of a chain counts from the end of the one before it
    if isinstance(sent, _chain):
        sent["kwargs"] = {**sent.kwargs, "tasks": members}  # Celery 5.5 shares them with the chain that was cloned
        _make_times_absolute(sent.options)
    task = str(members[0].task)
    ids = [member.options["task_id"] for member in members]
    return Frozen(ids[0], ids[-1], task, _encode(task, sent, max_bytes))


def thawed(app: Celery, payload: str) -> Signature[Any]:
    """Return the signature that a payload holds."""
    return signature(loads(payload), app=app)


def _checked(message: object) -> Signature[Any]:
    if isinstance(message, (group, chord, chunks)):
        raise TypeError("send() takes one task or a chain, not a group, chord or chunks: send the members one by one")
    if not isinstance(message, Signature):
        raise TypeError(f"send() takes a signature such as task.s(…), not {type(message).__name__}")
    if isinstance(message, _chain):
        if not message.tasks:
            raise TypeError("send() was given an empty chain")
        for member in message.tasks:
            _checked(member)
    return message


def _headers_and_parents(app: Celery) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what Celery would add while this task runs: the message may be published when it no longer does."""
    session = current_session()
    headers = {} if session is None else causation_headers(session)
    task = app.current_worker_task
    if task is None or not task.request.id:
        return headers, {}
    return headers, {"root_id": task.request.root_id or task.request.id, "parent_id": task.request.id}


def _make_times_absolute(options: dict[str, Any]) -> None:
    now = datetime.now(UTC)
    if (countdown := options.pop("countdown", None)) is not None:
        options["eta"] = now + timedelta(seconds=countdown)
    if isinstance(options.get("expires"), (int, float)):
        options["expires"] = now + timedelta(seconds=options["expires"])


def _encode(task: str, sent: Signature[Any], max_bytes: int) -> str:
    try:
        payload = dumps(dict(sent))
        loads(payload)  # kombu reads some dictionaries as values of its own, and may not be able to
    except (TypeError, ValueError, EncodeError) as exc:
        raise InvalidMessage(task, [("", f"it cannot be encoded as JSON and read again: {exc}")]) from exc
    text = payload if isinstance(payload, str) else payload.decode()
    if len(text.encode()) > max_bytes:
        raise InvalidMessage(task, [("", f"it has {len(text.encode())} bytes, saga_max_state_bytes allows {max_bytes}")])
    return text
