"""What this library needs of Celery beyond its documented interface, in one place.

``shared_task`` itself is made of these; their behaviour is pinned in ``tests/assumptions``.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery, _state
from celery.local import PromiseProxy


def current_app() -> Celery:
    """Return the current app itself, not the proxy for it."""
    app: Celery = _state.get_current_app()
    return app


def running_requests() -> Iterator[Any]:
    """Yield the requests of the tasks that run here (in this thread, or greenlet), the innermost first."""
    state: Any = _state
    depths: dict[int, int] = {}
    for task in reversed(state._task_stack.stack or ()):
        depth = depths[id(task)] = depths.get(id(task), 0) + 1
        requests = task.request_stack.stack or ()
        if depth <= len(requests):
            yield requests[-depth]


def declared_options(task: Any) -> dict[str, Any]:
    """Return the options of publishing with which a task was declared, where they are not those of every task of its app."""
    conf, given = task.app.conf, task._get_exec_options()
    usual = {"serializer": conf.task_serializer, "priority": conf.task_default_priority}
    return {name: value for name, value in given.items() if value is not None and value != usual.get(name)}


def plain_options(task: Any) -> dict[str, Any]:
    """Return those of the declared options that can be noted beside a message."""
    known = _plain.get(task)
    if known is None:
        known = _plain[task] = {
            name: value for name, value in declared_options(task).items() if isinstance(value, str | int | float)
        }
    return known


#: By task: looking its options up takes longer than encoding a message.
_plain: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()


def routing_of(app: Celery, name: str) -> dict[str, Any]:
    """Return the options by which a message to a task is published as this app would, also by apps that route it otherwise."""
    task: Any = app.tasks.get(name)
    known = _routes.setdefault(app, {})
    if name not in known or known[name][0] is not task:
        known[name] = task, _routed(app, task, name)
    return known[name][1]


#: By app and name: the task, and its options. Routers take as long as all the rest of a message.
_routes: WeakKeyDictionary[Celery, dict[str, tuple[Any, dict[str, Any]]]] = WeakKeyDictionary()


def _routed(app: Celery, task: Any, name: str) -> dict[str, Any]:
    options = plain_options(task) if task is not None else {}
    router: Any = app.amqp.router
    routed = router.route(dict(options), name)
    queue = routed.pop("queue", None)
    plain = {option: value for option, value in routed.items() if isinstance(value, str | int | float)}
    return {**plain, **({"queue": str(getattr(queue, "name", queue))} if queue is not None else {})}


def is_terminating() -> bool:
    """Whether this process is a worker that a cold shutdown ends.

    Celery's handler of the signal raises in the main thread where the pool cannot end its tasks: under ``solo`` that is a task,
    and the error says nothing about its message.
    """
    state = sys.modules.get("celery.worker.state")
    how: object = getattr(state, "should_terminate", None)  # an exit code, which may be 0
    return how is not None and how is not False


def is_finalised() -> bool:
    """Whether the current app has registered its tasks; asking neither makes an app nor finalises one."""
    state: Any = _state
    app = getattr(state._tls, "current_app", None) or state.default_app
    return app is not None and bool(app.finalized)


def finalised_apps() -> list[Celery]:
    """Return the live apps that have registered their tasks already."""
    state: Any = _state
    return [app for app in state._get_active_apps() if app.finalized]


def on_finalise(callback: Callable[[Celery], None]) -> None:
    """Have every app call back when it registers its tasks, in no known order."""
    _state.connect_on_app_finalize(callback)


def after_all_tasks(app: Any, callback: Callable[[Celery], None]) -> None:
    """Have an app that is being finalised call back once all its other tasks are registered; errors pass through."""
    promise: Any = PromiseProxy
    app._pending.append(promise(callback, (app,)))


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
