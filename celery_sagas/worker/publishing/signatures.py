"""Publishing a signature: a plain message is made of its parts by Celery's own functions, without most of ``apply_async``."""

from collections.abc import Mapping
from typing import Any

from celery import Celery
from celery.canvas import Signature

from celery_sagas.worker import tracing
from celery_sagas.worker.celery_internals import publishes_like_others, task_of_signature

#: Options of a plain message. Others (what follows the task, when it runs, stamps) are left to ``apply_async``.
_PLAIN = frozenset(
    {
        *("task_id", "root_id", "parent_id", "reply_to", "headers", "shadow", "argsrepr", "kwargsrepr"),
        *("queue", "exchange", "exchange_type", "routing_key", "priority", "delivery_mode", "serializer", "compression"),
        *("ignore_result", "time_limit", "soft_time_limit"),
        *("mandatory", "immediate", "retry", "retry_policy", "timeout", "confirm_timeout"),
    }
)
#: Arguments of ``Celery.send_task`` that are no options of the route.
_ABOUT = ("root_id", "parent_id", "reply_to", "shadow", "time_limit", "soft_time_limit")
#: Types of values that ``saferepr`` shows as ``repr`` does, beside most texts.
_SHOWN_ALIKE = frozenset((int, float, bool, type(None)))


def publish(app: Celery, sent: Signature[Any], producer: Any, **options: Any) -> None:
    """Publish a signature as its ``apply_async`` does with these options: the same message, signals and events.

    ``apply_async`` itself publishes one that is not plain, or for whose task somebody (its class, or a tool that traces tasks)
    has replaced a function of Celery by which it is published.
    """
    if (tracer := tracing.tracer) is None:
        _publish(app, sent, producer, options)
        return
    with tracer.publishing(sent.options.get("headers")):
        _publish(app, sent, producer, options)


def _publish(app: Celery, sent: Signature[Any], producer: Any, options: dict[str, Any]) -> None:
    running = app.current_worker_task
    task = task_of_signature(app, sent) if _is_plain(sent, running) else None
    if task is None or not publishes_like_others(app, task):
        sent.apply_async(producer=producer, **options)
        return
    ignores_result = _publish_plain(app, task, sent, producer, options)
    if running:
        result = task.AsyncResult(sent.options["task_id"])
        result.ignored = ignores_result
        running.add_trail(result)


def _is_plain(sent: Signature[Any], running: Any) -> bool:
    """Return whether a message has plain options, and its id; within a task also its parents, which Celery would add."""
    if type(sent) is not Signature or not _PLAIN.issuperset(sent.options):
        return False
    given = sent.options.get
    return bool(given("task_id") and (running is None or (given("root_id") and given("parent_id"))))


def _publish_plain(app: Any, task: Any, sent: Signature[Any], producer: Any, options: dict[str, Any]) -> bool:
    """Publish a message in the steps of ``Task.apply_async`` and ``Celery.send_task``; return whether its result is ignored."""
    args, kwargs, options = sent.args, sent.kwargs, {**sent.options, **options}
    if encode := getattr(task, "saga_encode", None):
        args, kwargs = encode(args, kwargs, options)
    if task.typing:
        task.__header__(*args, **kwargs)
    options = {"ignore_result": task.ignore_result, **task._get_exec_options(), **options}
    del options["expires"]  # of the task, which has none
    id, ignores_result = options.pop("task_id"), options.pop("ignore_result")
    about = {name: options.pop(name, None) for name in _ABOUT}
    about["reply_to"] = about["reply_to"] or app.thread_oid
    amqp = app.amqp
    options = amqp.router.route(options, task.name, args, kwargs, task)
    about |= {"argsrepr": _shown(args, amqp.argsrepr_maxsize), "kwargsrepr": _shown(kwargs, amqp.kwargsrepr_maxsize)}
    about |= {"create_sent_event": app.conf.task_send_sent_event, "ignore_result": ignores_result}
    message = amqp.create_task_message(id, task.name, args, kwargs, **{**about, **options})
    with producer.connection._reraise_as_library_errors():
        if not ignores_result:
            app.backend.on_task_call(producer, id)
        amqp.send_task_message(producer, task.name, message, **options)
    return bool(ignores_result)


def _shown(arguments: Any, most: int) -> str | None:
    """Return what Celery's ``saferepr`` returns for short and flat arguments, but sooner; ``None`` for others."""
    if not arguments:
        return "{}" if isinstance(arguments, Mapping) else "()"
    leaves = (*arguments, *arguments.values()) if isinstance(arguments, Mapping) else arguments
    text = repr(arguments) if all(_is_shown_alike(leaf, most) for leaf in leaves) else None
    return text if text is not None and len(text) < most else None


def _is_shown_alike(value: object, most: int) -> bool:
    if type(value) is str:
        return len(value) < most and value.isprintable() and "'" not in value and "\\" not in value
    return type(value) in _SHOWN_ALIKE
