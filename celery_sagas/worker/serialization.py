"""Signatures to text and back: a message is encoded when ``send`` is called, and published from its text."""

import logging
import math
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery, signature
from celery.canvas import Signature, _chain, chord, chunks, group
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.exceptions import EncodeError
from kombu.utils.json import dumps, loads

from celery_sagas import clock
from celery_sagas.core.arguments import is_native
from celery_sagas.core.encoding import check_decoded
from celery_sagas.core.sending import SerializedMessage
from celery_sagas.errors import InvalidMessage
from celery_sagas.worker import tracing
from celery_sagas.worker.celery_internals import Destination, destination_of, name_of, options_to, plain_options
from celery_sagas.worker.headers import causation_headers
from celery_sagas.worker.sessions import current_session

logger = logging.getLogger("celery_sagas")


def serialized(app: Celery, message: object, next_id: Callable[[], str], max_bytes: int) -> SerializedMessage:
    """Encode a signature, or a chain of them, with ids, headers and parents of its own.

    Raises:
        TypeError: It is neither, or holds a group or chord.
        InvalidMessage: It cannot be encoded, or is too large; or the task, if it is registered here, does not accept these
            arguments, or would not receive them unchanged.
    """
    sent = checked(message).clone()
    members = [member.clone() for member in sent.tasks] if isinstance(sent, _chain) else [sent]
    for member in members:
        encode_arguments(app, member, are_complete=member is members[0])
    check_arguments(app, members[0])  # the arguments of a chain's later tasks are not complete yet
    headers, parents = _headers_and_parents(app)
    of_chain = (sent.options.pop("headers", None) or {}) if isinstance(sent, _chain) else {}
    for member in members:
        options = member.options
        options["task_id"] = next_id()
        options["headers"] = {**headers, **of_chain, **(options.get("headers") or {})}
        of_chain = {}  # Celery gives them to the first task alone
    members[0].options.update(parents)
    due_at = _take_due_time(app, members[0].options)  # a chain's later tasks count from the end of the one before
    if isinstance(sent, _chain):
        sent["kwargs"] = {**sent.kwargs, "tasks": members}  # Celery 5.5 shares them with the chain that was cloned
        due_at = max(due_at, _take_due_time(app, sent.options))
    task = str(members[0].task)
    ids = [member.options["task_id"] for member in members]
    if due_at and app.conf.task_always_eager:
        due_at = 0  # as in Celery: nothing waits in eager mode
    noted = {**_declared(app, task), **_routed(app, members[0], sent.options)}
    return SerializedMessage(ids[0], ids[-1], task, _encode(task, {**sent, **noted}, max_bytes), due_at)


def serialized_again(app: Celery, received: Signature[Any]) -> SerializedMessage:
    """Encode a message that was received, to be published again under its id.

    Raises:
        InvalidMessage: It cannot be encoded.
    """
    task, id = str(received.task), received.options["task_id"]
    noted = {**_declared(app, task), **_routed(app, received, received.options)}
    return SerializedMessage(id, id, task, _encode(task, {**received, **noted}, sys.maxsize))


def restored(app: Celery, payload: str) -> Signature[Any]:
    """Return the signature that a payload holds."""
    return _read(app, payload)[0]


def deserialized(app: Celery, payload: str) -> Signature[Any]:
    """Return the signature that is published for a payload; for a chain, that of its first task, which carries the others."""
    sent, declared, route, committed_by = _read(app, payload)
    started = _started(sent) if isinstance(sent, _chain) else sent
    is_known = started.task in app.tasks
    if not is_known:
        for name, value in declared.items():
            started.options.setdefault(name, value)
    if route is not None and (not is_known or _is_of_another(app, committed_by) or str(started.task).startswith(_EVERY_APPS)):
        _send_to(app, started, route)
    return started


def _read(app: Celery, payload: str) -> tuple[Signature[Any], dict[str, Any], Destination | None, str]:
    """Return the signature in a payload, its task's options, its destination in the app that sent it, and that app's name."""
    check_decoded(payload)
    described = loads(payload)
    described.pop(SERIES, None)
    declared, route, name = described.pop(_DECLARED, {}), described.pop(ROUTE, None), described.pop(_APP, "")
    return signature(described, app=app), declared, route, name


def _is_of_another(app: Celery, name: str) -> bool:
    """Return whether an app of another name committed a message; for an app without a name this is unknown."""
    return bool(name) and name_of(app) not in ("", name)


def _declared(app: Celery, task: str) -> dict[str, Any]:
    """Return the options with which a task was declared (its queue, say): a relay's process need not define the task."""
    known: Any = app.tasks.get(task)
    if known is None:
        return {}
    own = plain_options(known)
    return {_DECLARED: own} if own else {}


def _routed(app: Celery, first: Signature[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return where this app publishes a message: a relay of another app may have to. ``options`` are those of its chain."""
    route = destination_of(app, first, {**first.options, **options})
    return {} if route is None else {ROUTE: route, _APP: name_of(app)}


def _send_to(app: Celery, sent: Signature[Any], route: Destination) -> None:
    """Send a message to the destination that its committing app chose, if this app would send it elsewhere."""
    own = destination_of(app, sent, sent.options)
    if own == route:
        return
    sent.options.update(options_to(app, route))
    name, told = str(sent.task), _told.setdefault(app, set())
    if name not in told:
        told.add(name)
        logger.warning(_OF_ANOTHER_APP, name, _shown(route), _shown(own) if own is not None else "no queue")


def _shown(route: Destination) -> str:
    return f"the queue {route!r}" if isinstance(route, str) else "the exchange {!r} with the routing key {!r}".format(*route)


def _started(sent: Any) -> Signature[Any]:
    """Return the first message of a chain: Celery's own ``apply_async`` of a chain neither accepts a producer nor confirms."""
    first, *others = sent.unchain_tasks()
    own = {name: value for name, value in sent.options.items() if name not in _SPREAD}
    started: Signature[Any] = first
    started.options.update(own, **({"chain": others[::-1]} if others else {}))
    return started


#: Keys beside the signature in a payload.
_DECLARED, ROUTE, _APP, SERIES = "declared_options", "route", "app", "series"
_OF_ANOTHER_APP = (
    "%s goes to %s, as the app that committed it has routed it; this app would send it to %s. "
    "If several apps use this database, give each a saga_prefix of its own"
)
#: By app, the tasks for which that was logged.
_told: WeakKeyDictionary[Celery, set[str]] = WeakKeyDictionary()
#: The library's own tasks, which every app has, and which act for the sagas of that app: events reach its subscribers only.
_EVERY_APPS = "celery_sagas."
#: Options of a chain that ``unchain_tasks`` gives to its members.
_SPREAD = frozenset({"link", "link_error"})


#: Options that prevent a message from being published, or handled, at any time.
_TIMES = frozenset({"countdown", "eta", "expires"})


def checked(message: object) -> Signature[Any]:
    """Return a message that can be sent: a signature of one task, or a chain of these.

    Raises:
        TypeError: It is something else.
    """
    if isinstance(message, (group, chord, chunks)):
        raise TypeError("send() takes one task or a chain, not a group, chord or chunks: give the members to gather([…])")
    if not isinstance(message, Signature):
        raise TypeError(f"send() takes a signature such as task.s(…), not {type(message).__name__}")
    if isinstance(message, _chain):
        if not message.tasks:
            raise TypeError("send() was given an empty chain")
        for member in message.tasks:
            checked(member)
    return message


def encode_arguments(app: Celery, sent: Signature[Any], *, are_complete: bool) -> None:
    """Encode the arguments of a signature that was made by the name of a step or an aggregator, as its own methods do.

    Raises:
        InvalidMessage: They cannot be encoded, or would not arrive unchanged.
    """
    if is_native([*sent["args"], sent["kwargs"]]):
        return
    known: Any = app.tasks.get(str(sent.task))
    if hasattr(known, "saga_step") or hasattr(known, "saga_aggregator"):
        encoded = known.signature(sent.args, sent.kwargs, immutable=are_complete or sent.immutable)
        sent.update(args=encoded.args, kwargs=encoded.kwargs)


def check_arguments(app: Celery, sent: Signature[Any]) -> None:
    """Refuse arguments that Celery would refuse to publish: a later error has no advantage."""
    known: Any = app.tasks.get(str(sent.task))
    if known is None or not known.typing or not hasattr(known, "__header__") or _may_add_arguments(type(known)):
        return
    try:
        known.__header__(*sent.args, **sent.kwargs)
    except TypeError as exc:
        raise InvalidMessage(known.name, [("", str(exc))]) from exc


#: Their ``apply_async`` publishes the arguments unchanged.
_PACKAGES = frozenset({"celery", "celery_sagas"})


def _may_add_arguments(task: type) -> bool:
    """Return whether a task's class has a custom ``apply_async``, which sees the arguments before Celery checks them."""
    owners = (cls.__module__.partition(".")[0] for cls in task.__mro__ if "apply_async" in vars(cls))
    return not _PACKAGES.issuperset(owners)


def _headers_and_parents(app: Celery) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the headers and parents that Celery would add while this task runs: the message may be published after its end."""
    session = current_session()
    headers = {} if session is None else causation_headers(session)
    if tracing.tracer is not None:
        headers.update(tracing.tracer.headers())
    task = app.current_worker_task
    if task is None or not task.request.id:
        return headers, {}
    return headers, {"root_id": task.request.root_id or task.request.id, "parent_id": task.request.id}


def _take_due_time(app: Celery, options: dict[str, Any]) -> int:
    """Remove ``countdown`` and ``eta`` from options, and make ``expires`` absolute; return when the message is due.

    The broker does not delay messages: on Redis, a message that waits for longer than the visibility timeout is redelivered
    repeatedly.

    Returns:
        Milliseconds since the epoch; 0 if that is over, or not set.
    """
    if options.keys().isdisjoint(_TIMES):
        return 0
    now = clock.now()
    if isinstance(options.get("expires"), (int, float)):
        options["expires"] = now + timedelta(seconds=options["expires"])
    countdown, eta = options.pop("countdown", None), options.pop("eta", None)
    due = now + timedelta(seconds=countdown) if countdown is not None else maybe_iso8601(eta)
    if due is None:
        return 0
    aware = maybe_make_aware(due, app.timezone)
    return math.ceil(aware.timestamp() * 1000) if aware > now else 0


def as_json(task: str, value: object) -> str:
    """Return a value as the JSON in which kombu sends it to a task.

    Raises:
        InvalidMessage: It cannot be encoded.
    """
    try:
        payload = dumps(value)
        loads(payload)  # kombu decodes some dictionaries as values of its own, and may fail to
    except (TypeError, ValueError, EncodeError) as exc:
        raise InvalidMessage(task, [("", f"it cannot be encoded as JSON and read again: {exc}")]) from exc
    return payload if isinstance(payload, str) else payload.decode()


def _encode(task: str, sent: dict[str, Any], max_bytes: int) -> str:
    text = as_json(task, sent)
    if len(text.encode()) > max_bytes:
        raise InvalidMessage(task, [("", f"it has {len(text.encode())} bytes, saga_max_state_bytes allows {max_bytes}")])
    return text
