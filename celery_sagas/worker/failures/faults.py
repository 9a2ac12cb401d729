"""Deciding whether a worker has failed because of the message: a check of the message alone, with Celery's own code only."""

import pickle
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from celery.exceptions import InvalidTaskError
from kombu.exceptions import ContentDisallowed, DecodeError, EncodeError

#: The errors that a malformed message raises, in Celery or here. They include none that a broker, a store, a result backend or
#: the process itself raises: a RuntimeError may mean that no thread can be started. Let an OSError pass before you catch them:
#: some OSErrors, such as those of TLS, are also a ValueError. A project's own code raises them as well: see ``fault_of``.
UNREADABLE = (
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
    *(ContentDisallowed, DecodeError, EncodeError, pickle.PicklingError),
)

#: Longer than any task runs: about thirty years.
_LONGEST_LIMIT_S = 1e9
#: In any time zone, Celery can calculate with the dates in between. Years.
_LAST_BEFORE, _FIRST_AFTER = 1970, 9999
#: How many fewer levels a message may be nested here than in the pool, whose calls start at another depth.
_SPARE_LEVELS = 100
#: The parts of a body's embedded messages that follow the task. Each is a signature with these parts.
_FOLLOWS = frozenset({"callbacks", "errbacks", "chain", "chord"})
_PARTS: dict[str, Any] = {"args": list | tuple, "kwargs": dict, "options": dict}
#: Used in place of a project's own.
_APP = SimpleNamespace(conf=SimpleNamespace(timezone="UTC"))
_TASK = SimpleNamespace(ignore_result=True)


def fault_of(message: Any) -> Exception | None:
    """Return the fault of a message that a worker has failed over; ``None`` if the fault is the worker's.

    No code of the project runs for that, such as its tasks' own ``Request``. A message without fault makes no worker fail that
    runs only Celery's code.
    """
    try:
        request = _request_of(message)
        check_request(request)
        _check_texts(request)
        _check_moments(request.eta, request.expires)
        pickle.dumps(_nested([request.request_dict, request.body]))
    except (*UNREADABLE, InvalidTaskError) as exc:
        return exc
    return None


def check_request(request: Any) -> None:
    """Refuse a request that would fail in Celery or its pool, where the error would look like a failure of theirs.

    Raises:
        Exception: One of the errors of an unreadable message.
    """
    _check_body(*request._payload)
    _check_time_limits(*request.time_limits)
    hash(request.name)  # Celery counts tasks by it, before it acknowledges one
    hash(request.id)
    _ = request.stamps  # Celery revokes tasks by them


def _request_of(message: Any) -> Any:
    """Return the request that a worker's strategy makes of a message, in any Celery protocol: see ``celery.worker.strategy``."""
    strategy, request = import_module("celery.worker.strategy"), import_module("celery.worker.request")
    payload = message.payload
    if "args" in payload:
        body, headers, is_decoded, _ = strategy.hybrid_to_proto2(message, payload)
    elif "task" in message.headers:
        body, headers, is_decoded = message.body, message.headers, False
    else:
        body, headers, is_decoded, _ = strategy.proto1_to_proto2(message, dict(payload))
    return request.Request(message, app=_APP, task=_TASK, hostname="-", body=body, headers=headers, decoded=is_decoded)


def _check_body(args: Any, kwargs: Any, embedded: Any) -> None:
    """Refuse a body that Celery would drop silently, or with which a pool of threads would keep the message.

    Raises:
        TypeError: It does not hold arguments.
    """
    if not (isinstance(args, list | tuple) and isinstance(kwargs, dict) and isinstance(embedded, dict | None)):
        raise TypeError("the body is no list of arguments by position, arguments by name, and what follows the task")
    for name, value in (embedded or {}).items():
        if value and name in _FOLLOWS and not _may_follow(name, value):
            raise TypeError(f"what follows the task is no signature: {name!r}")


def _may_follow(name: str, value: Any) -> bool:
    if name == "chord":
        return _is_signature(value)
    return isinstance(value, list | tuple) and all(isinstance(each, str) or _is_signature(each) for each in value)


def _is_signature(value: Any) -> bool:
    """Return whether a value is a signature, or a pickled object such as a task. ``link_error`` also accepts a task's name."""
    if not isinstance(value, dict):
        return not isinstance(value, str | int | float | list | tuple | None)
    return isinstance(value.get("task"), str) and all(isinstance(value.get(name), type | None) for name, type in _PARTS.items())


def _check_time_limits(hard: Any, soft: Any) -> None:
    """Refuse time limits that billiard would fail to count down, long after the task began, in the middle of the worker's loop.

    Raises:
        ValueError: They are not numbers of seconds.
    """
    for limit in (hard, soft):
        if limit is not None and not (isinstance(limit, int | float) and 0 <= limit <= _LONGEST_LIMIT_S):
            raise ValueError(f"the time limits are {hard!r} and {soft!r}, which are no numbers of seconds")


def _check_texts(request: Any) -> None:
    """Refuse values that a result backend could not store, or find.

    Raises:
        ValueError: One of them is not text, or cannot be encoded.
    """
    if not (request.type and request.id):
        raise ValueError("it has no name, or no id")
    for text in (request.type, request.id, request.root_id, request.parent_id, request.reply_to, request.correlation_id):
        if text is not None and not (isinstance(text, str) and "\0" not in text):
            raise ValueError(f"{text!r} is no name or id")
        (text or "").encode()


def _check_moments(*moments: Any) -> None:
    for moment in moments:
        if moment is not None and not _LAST_BEFORE < moment.year < _FIRST_AFTER:
            raise OverflowError(f"Celery cannot count with {moment}")


def _nested(value: Any) -> Any:
    for _ in range(_SPARE_LEVELS):
        value = [value]
    return value
