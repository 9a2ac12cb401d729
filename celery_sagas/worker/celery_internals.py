"""The parts of Celery beyond its documented interface that this library uses, in one place.

``shared_task`` itself is built on them; ``tests/assumptions`` pins their behaviour.
"""

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary, ref

from celery import VERSION, Celery, Task, _state
from celery.app.routes import MapRoute, Router
from celery.canvas import Signature
from celery.exceptions import SoftTimeLimitExceeded
from celery.local import PromiseProxy, Proxy
from celery.utils.imports import symbol_by_name
from celery.utils.objects import mro_lookup
from kombu import Exchange, Queue

logger = logging.getLogger("celery_sagas")

#: The brokers that redeliver a message after a time, whether or not its worker is alive, and kombu's default. Seconds.
_VISIBILITY_S = {"redis": 3600.0, "sqs": 1800.0}
#: The destination of a message, as JSON values: the name of a queue; or an exchange, a routing key and the exchange's type.
Destination: TypeAlias = str | list[str]


def current_app() -> Celery:
    """Return the current app itself, not the proxy for it."""
    app: Celery = _state.get_current_app()
    return app


def itself(app: Celery) -> Celery:
    """Return an app itself, also for ``celery.current_app``, which stands for one."""
    stands_for: Any = app
    return stands_for._get_current_object() if isinstance(stands_for, Proxy) else app


def present_app() -> Celery | None:
    """Return the current app, if there is one: Celery would make one."""
    state: Any = _state
    app: Celery | None = getattr(state._tls, "current_app", None) or state.default_app
    return app


@contextmanager
def as_current_app(app: Celery | None) -> Iterator[None]:
    """Have an app be the current one of this thread meanwhile; without one, leave whichever is, and was before."""
    state: Any = _state
    before = getattr(state._tls, "current_app", None)
    if app is not None:
        app.set_current()
    try:
        yield
    finally:
        state._set_current_app(before)


def is_stand_in(app: Any) -> bool:
    """Return whether this is the app that Celery makes for a process, or a thread, without a current one."""
    state: Any = _state
    return app is state.default_app and app.main == "default" and not app.set_as_current and not app.fixups


def other_apps(app: Celery) -> list[Celery]:
    """Return the live apps beside this one."""
    state: Any = _state
    return [each for each in state._get_active_apps() if each is not app]


#: Names that do not distinguish apps: that of a script's app, and of Celery's default app.
_NAMELESS = frozenset({"__main__", "default"})


def name_of(app: Celery) -> str:
    """Return the name of an app; empty if it does not distinguish the app from others."""
    return "" if app.main in _NAMELESS else str(app.main or "")


def running_requests() -> Iterator[Any]:
    """Yield the requests of the tasks that run here (in this thread, or greenlet), the innermost first."""
    state: Any = _state
    depths: dict[int, int] = {}
    for task in reversed(state._task_stack.stack or ()):
        depth = depths[id(task)] = depths.get(id(task), 0) + 1
        requests = task.request_stack.stack or ()
        if depth <= len(requests):
            yield requests[-depth]


class RunningTask:
    """A context in which a task runs for a request: it is the current task here."""

    __slots__ = ("_request", "_task")

    def __init__(self, task: Any, request: Any) -> None:
        self._task = task
        self._request = request

    def __enter__(self) -> None:
        state: Any = _state
        state._task_stack.push(self._task)
        self._task.request_stack.push(self._request)

    def __exit__(self, *_: object) -> None:
        self._task.request_stack.pop()
        state: Any = _state
        state._task_stack.pop()


#: Methods of a task's class that Celery's tracer calls.
_HOOKS = ("before_start", "on_success", "after_return")
#: Modules of the classes of Celery's requests, and of those that this library derives from them.
_REQUESTS = frozenset({"builtins", "celery.worker.request", "celery_sagas.worker.failures.requests"})
#: Celery 5.5 ignores what a message says about its result.
_RESULTS_BY_MESSAGE = VERSION[:2] > (5, 5)


def runs_like_others(task: Any) -> bool:
    """Return whether only its function distinguishes a task's runs: no time limits, no hooks, no early acknowledgement."""
    has_hooks = has_own_call(task) or any(mro_lookup(type(task), name, {Task, object}, ["celery.app.task"]) for name in _HOOKS)
    requests = {cls.__module__ for cls in symbol_by_name(task.Request).__mro__}
    has_limits = has_own_limits(task, task.time_limit, task.soft_time_limit)
    return bool(task.acks_late and task.ignore_result and not has_limits and not has_hooks and requests <= _REQUESTS)


def task_of_signature(app: Celery, sent: Any) -> Any:
    """Return the task of a signature; ``None`` if the app has no such task."""
    tasks: Any = app.tasks
    return sent._type or tasks.get(sent["task"])


def publishes_like_others(app: Any, task: Any) -> bool:
    """Return whether only Celery's functions publish a task's messages: none of its class or app, and no tracer's.

    A class of this library describes with ``saga_encode`` what its ``apply_async`` does to a message that has an id.
    """
    if "apply_async" in task.__dict__ or "shadow_name" in task.__dict__ or "send_task" in app.__dict__:
        return False
    own = [cls.__dict__.get("apply_async") for cls in type(task).__mro__]
    encode = app.amqp.create_task_message
    functions = [*own, type(task).shadow_name, type(app).send_task, Signature.apply_async, getattr(encode, "__func__", encode)]
    known = _publishing.get(task)
    if known is None or known[0] != functions:
        known = _publishing[task] = functions, _is_usual(task) and _are_celerys(task, functions)
    soft, hard = task.soft_time_limit, task.time_limit
    is_refused = soft and hard and soft > hard
    return known[1] and not is_refused and task._get_app() is app and not app.conf.task_always_eager


#: By task: the functions that publish its messages, any of which may be replaced later, and whether all are Celery's.
_publishing: WeakKeyDictionary[Any, tuple[list[Any], bool]] = WeakKeyDictionary()


def _is_usual(task: Any) -> bool:
    """Return whether a task's arguments are published as they are, and never expire."""
    is_pydantic = getattr(task, "_dump_pydantic_arguments", None) is not None  # since Celery 5.7
    return not is_pydantic and not task.__v2_compat__ and task._get_exec_options()["expires"] is None


def _are_celerys(task: Any, functions: Iterable[Any]) -> bool:
    """Return whether functions are defined in Celery, beside those that are described: a function that wraps one is not."""
    described = [cls.__dict__["apply_async"] for cls in type(task).__mro__ if "saga_encode" in cls.__dict__]
    others = [each for each in functions if each is not None and each not in described]
    return all(type(each) is FunctionType and str(each.__globals__.get("__name__")).startswith("celery.") for each in others)


def has_own_limits(task: Any, hard: float | None, soft: float | None) -> bool:
    """Return whether time limits are not those of the app, which since Celery 5.7 are each task's, and each message's."""
    conf = task.app.conf
    return hard not in (None, conf.task_time_limit) or soft not in (None, conf.task_soft_time_limit)


def stores_result(request: Any) -> bool:
    """Return whether Celery stores the result of a worker's request."""
    return not (request.ignore_result if _RESULTS_BY_MESSAGE else request.task.ignore_result)


def time_limit_s(task: Any) -> float | None:
    """Return the number of seconds after which a task's run is killed; the soft limit only raises."""
    hard = (task.request.timelimit or (None, None))[0] or task.time_limit or task.app.conf.task_time_limit
    return float(hard) if hard else None


def declared_options(task: Any) -> dict[str, Any]:
    """Return the publishing options with which a task was declared, where they differ from those of every task of its app."""
    conf, given = task.app.conf, task._get_exec_options()
    usual = {"serializer": conf.task_serializer, "priority": conf.task_default_priority}
    return {name: value for name, value in given.items() if value is not None and (name not in usual or value != usual[name])}


def plain_options(task: Any) -> dict[str, Any]:
    """Return the declared options that can be stored beside a message."""
    known = _plain.get(task)
    if known is None:
        known = _plain[task] = {
            name: value for name, value in declared_options(task).items() if isinstance(value, str | int | float)
        }
    return known


#: By task: looking up its options takes longer than encoding a message.
_plain: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()


def has_own_call(task: Any) -> bool:
    """Return whether a task's class, or a base of it, has a ``__call__`` that is not Celery's: workers call that."""
    return not str(task.__class__.__call__.__module__).startswith("celery.")


def routing_of(app: Celery, name: str) -> dict[str, Any]:
    """Return the options with which this app would publish a message to a task, for apps that route it otherwise."""
    task: Any = app.tasks.get(name)
    known = _routes.setdefault(app, {})
    if name not in known or known[name][0]() is not task:
        known[name] = _nothing if task is None else ref(task), _routed(app, task, name)
    return known[name][1]


def _nothing() -> None:
    """Stand in for a reference to a task that is not registered."""


#: By app and name: a weak reference to the task, which refers to its app, and its options. Routing takes as long as the rest of
#: publishing a message.
_routes: WeakKeyDictionary[Celery, dict[str, tuple[Callable[[], Any], dict[str, Any]]]] = WeakKeyDictionary()


def _routed(app: Celery, task: Any, name: str) -> dict[str, Any]:
    options = plain_options(task) if task is not None else {}
    router: Any = app.amqp.router
    routed = router.route(dict(options), name)
    queue = routed.pop("queue", None)
    plain = {option: value for option, value in routed.items() if isinstance(value, str | int | float)}
    return {**plain, **({"queue": str(getattr(queue, "name", queue))} if queue is not None else {})}


def destination_of(app: Celery, sent: Any, options: Mapping[str, Any]) -> Destination | None:
    """Return where this app publishes a signature with these options; ``None`` if a router fails."""
    try:
        return _known_destination(app, sent, options) if _goes_by_name(app.amqp.router) else _destination(app, sent, options)
    except SoftTimeLimitExceeded:
        raise  # which says nothing about the message
    except Exception as exc:  # from a custom router, or for a queue that is not configured
        logger.debug("%s cannot be routed: %r", sent.task, exc)
        return None


def options_to(app: Celery, destination: Destination) -> dict[str, Any]:
    """Return the options by which this app publishes to another app's destination; it declares no unknown queue."""
    if isinstance(destination, str):
        known = app.amqp.queues.get(destination)  # this creates no queue
        declared: list[Any] = [] if known is None else [known]
        return {"queue": known or Queue(destination), "exchange": "", "exchange_type": "direct", "declare": declared}
    exchange, routing_key, type = destination
    is_amqp = app.connection_for_write().transport.driver_type == "amqp"
    declared = [] if is_amqp else [Exchange(exchange, type)]  # otherwise each process finds the queues by the exchange's type
    return {"queue": None, "exchange": exchange, "routing_key": routing_key, "exchange_type": type, "declare": declared}


#: Options that determine the queue of a message.
_ROUTING = ("queue", "exchange", "routing_key", "exchange_type")
#: By router, and by task and options. Routing takes as long as the rest of publishing a message.
_destinations: WeakKeyDictionary[Any, dict[tuple[Any, ...], Destination]] = WeakKeyDictionary()
#: The number of routing keys is unbounded.
_MOST_DESTINATIONS = 1_000


def _goes_by_name(router: Any) -> bool:
    """Return whether a router ignores the arguments of a message: a custom one may use them."""
    routes: Any = router.routes
    return type(router) is Router and all(type(route) is MapRoute for route in routes)


def _known_destination(app: Celery, sent: Any, options: Mapping[str, Any]) -> Destination:
    known, key = _destinations.setdefault(app.amqp.router, {}), (sent.task, sent.task in app.tasks, *map(options.get, _ROUTING))
    found = known.get(key)
    if found is None:
        if len(known) >= _MOST_DESTINATIONS:
            known.clear()
        found = known[key] = _destination(app, sent, options)
    return found


def _destination(app: Celery, sent: Any, options: Mapping[str, Any]) -> Destination:
    """Return where a message goes, by the rules of Celery's ``send_task_message``."""
    task: Any = app.tasks.get(sent.task)
    given = {**(declared_options(task) if task is not None else {}), **options}
    own = {option: given[option] for option in _ROUTING if given.get(option)}
    routed: dict[str, Any] = app.amqp.router.route(own, sent.task, sent.args, sent.kwargs, task)
    queue: Any = routed.get("queue")  # always present: the default queue if the route names none
    exchange, routing_key, type = (routed.get(option) for option in _ROUTING[1:])
    type = type or queue.exchange.type
    if type == "direct" and not (exchange and routing_key):
        return str(queue.name)
    if exchange is None:
        exchange, routing_key = queue.exchange, routing_key or queue.routing_key
    return [str(getattr(exchange, "name", exchange)), str(routing_key or ""), str(type)]


def is_terminating() -> bool:
    """Return whether this process is a worker in a cold shutdown.

    Celery's signal handler raises in the main thread if the pool cannot end its tasks: under ``solo`` that is inside a task, and
    the error says nothing about its message.
    """
    state = sys.modules.get("celery.worker.state")
    how: object = getattr(state, "should_terminate", None)  # an exit code, which may be 0
    return how is not None and how is not False


def finalised_apps() -> list[Celery]:
    """Return the live apps that have registered their tasks already."""
    state: Any = _state
    return [app for app in state._get_active_apps() if app.finalized]


def on_finalise(callback: Callable[[Celery], None]) -> None:
    """Have every app call back when it registers its tasks, in no particular order."""
    _state.connect_on_app_finalize(callback)


def on_finalise_last(callback: Callable[[Celery], None]) -> None:
    """Have every app call back once its other tasks are registered: a clash of names is noticed whichever is defined first."""
    on_finalise(lambda app: after_all_tasks(app, callback))


def after_all_tasks(app: Any, callback: Callable[[Celery], None]) -> None:
    """Have an app that is being finalised call back once all its other tasks are registered; errors propagate.

    Celery drops an ``AttributeError`` of what it evaluates, so that the app would go on without its steps: another error has it
    as its cause.
    """

    def call_back() -> None:
        try:
            callback(app)
        except AttributeError as exc:
            raise RuntimeError(f"the tasks of {app.main or 'the app'} cannot be registered: {exc}") from exc

    promise: Any = PromiseProxy
    app._pending.append(promise(call_back))


def registered(app: Any, name: str) -> Any:
    """Return the task of this name, or ``None``, without finalising the app."""
    return app._tasks.get(name)


def unregister(app: Any, name: str) -> None:
    """Remove the task of this name, if there is one."""
    app._tasks.pop(name, None)


def add_task(app: Any, function: Callable[..., Any], **options: Any) -> None:
    """Register a task now, as ``app.task`` does when the app is finalised."""
    with app._finalize_mutex:
        app._task_from_fun(function, **options)


def longest_redelivery_s(app: Celery) -> float | None:
    """Return the seconds until the broker redelivers an unacknowledged message; ``None`` if that is unknown."""
    connection = app.connection_for_read()
    default_s = _VISIBILITY_S.get(str(connection.transport.driver_type))
    if default_s is None:
        return None
    options = connection.transport_options or {}
    return float(options.get("visibility_timeout") or default_s)
