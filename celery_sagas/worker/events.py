"""Events: one message is published, and a worker fans it out to one task for each subscriber."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4
from weakref import WeakKeyDictionary

from celery import Celery, Task
from celery.canvas import Signature
from celery.local import PromiseProxy, Proxy
from kombu.utils.json import dumps

from celery_sagas import signals
from celery_sagas.core.events import event_name, event_of, event_parameter
from celery_sagas.core.ids import derived_id
from celery_sagas.core.message import Message, encode_event
from celery_sagas.core.registry import registry
from celery_sagas.core.step import StepDefinition
from celery_sagas.engine.dead_letters.dead_lettering import add_dead_letter, dead_letter_of
from celery_sagas.errors import DefinitionError, PublishError, StoreError
from celery_sagas.settings import Subscription
from celery_sagas.worker.backends import Backends
from celery_sagas.worker.celery_internals import as_current_app, current_app, finalised_apps, on_finalise, on_finalise_last
from celery_sagas.worker.durable import DurableTask, add_durable_task
from celery_sagas.worker.failures.redelivery import redeliver_or_requeue
from celery_sagas.worker.headers import causation_headers
from celery_sagas.worker.proxy import TaskProxy
from celery_sagas.worker.runtime import runtime_of
from celery_sagas.worker.sessions import current_session, new_message_id, session_of
from celery_sagas.worker.transactions import send

if TYPE_CHECKING:
    from celery_sagas.worker.transactions import Using

logger = logging.getLogger("celery_sagas")

#: The task that fans out events; every worker with this library registers it.
PUBLISH = "celery_sagas.publish"

TaskT = TypeVar("TaskT", bound="Task[Any, Any]")

#: A message to a subscriber, and why it was not confirmed.
Refused = tuple[Signature[Any], PublishError]


def publish(event: Message, *, using: "Using | None" = None) -> str:
    """Publish an event to its subscribers.

    They are each step whose one argument is annotated with exactly its class, each plain task that has ``@subscribe`` and this
    event, and the tasks that ``saga_subscriptions`` names. Inside a step it joins the step's commit. Elsewhere it is published,
    and confirmed, at once, or with a transaction. No subscriber needs to be imported in this process, since a worker does the
    rest.

    Args:
        event: A ``Message``.
        using: A transaction of the caller's, with which it is published if and only if that commits: see ``send``.

    Returns:
        The id of the published message.

    Raises:
        TypeError: It is not a ``Message``.
        PublishError: The broker did not confirm it; publish it again.
        MisuseError: ``using`` is given inside a step; or as ``send`` says.
        ConfigurationError: As ``send`` says.
    """
    if not isinstance(event, Message):
        raise TypeError(f"publish() takes a Message, not {type(event).__name__}")
    app = current_app()
    message = app.tasks[PUBLISH].si(event_name(type(event)), encode_event(event))
    if using is not None:
        return send(message, using=using)
    session = current_session()
    if session is not None and session.sending is not None:
        return session.sending.send(message)
    message_id = new_message_id(session, PUBLISH, message.args)
    runtime_of(app).publisher.publish_signature(message.set(task_id=message_id))
    return message_id


def subscribe(task: TaskT) -> TaskT:
    """Subscribe a plain task to the event with whose class its first parameter is annotated.

    ``@subscribe`` stands above ``@shared_task``, or ``@app.task``. The task is given the event as an object of that class. It is
    delivered at least once, under the same id each time.

    Args:
        task: The task.

    Returns:
        The task.

    Raises:
        DefinitionError: It is no plain task; or, once its app is finalised: its parameters do not fit an event.
    """
    kind = type(task)  # isinstance() would make a proxy look up its task
    if issubclass(kind, TaskProxy):
        remedy = "A step whose one argument is the event subscribes without it: remove @subscribe"
        raise DefinitionError(str(task.name), "it is a step or an aggregator, and only plain tasks have @subscribe", remedy)
    if not issubclass(kind, Task | Proxy):
        subject = f"{getattr(task, '__module__', '')}.{getattr(task, '__qualname__', kind.__name__)}"
        raise DefinitionError(subject, "it subscribes, and is not a task", "Put @subscribe above @shared_task")
    for app in finalised_apps():
        _subscribe_in(app, task)
    registry.subscribers.append(task)
    return task


#: By app: the events of its subscribing tasks, by the task's name.
_subscribed: WeakKeyDictionary[Celery, dict[str, str]] = WeakKeyDictionary()


def _subscribe_in(app: Celery, task: Any) -> None:
    """Subscribe a task in one app, and have it receive events as objects."""
    if type(task) is PromiseProxy and not task.__evaluated__():  # another app's, which gives it its name later
        task.__then__(_subscribe_in, app, task)
        return
    with as_current_app(app):  # in which a shared task is looked up
        own: Any = app.tasks.get(task.name)
    subscribed = _subscribed.setdefault(app, {})
    if own is None or own.name in subscribed:
        return
    inner = own.run
    parameter = event_parameter(own.name, inner)

    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = parameter.read(args, kwargs)
        return inner(*args, **kwargs)

    own.run = update_wrapper(run, inner, updated=())
    subscribed[own.name] = event_name(parameter.event)


def install_subscribers(app: Celery) -> None:
    """Subscribe the tasks of an app that is being finalised."""
    for task in list(registry.subscribers):
        _subscribe_in(app, task)


def subscribed_tasks(app: Celery, event: str) -> list[str]:
    """Return the names of an app's plain tasks that subscribe to an event."""
    return [task for task, name in _subscribed.get(app, {}).items() if name == event]


def subscribers(event: str) -> list[StepDefinition]:
    """Return the steps that subscribe to an event, in the order of definition."""
    return [step for step in registry.steps.values() if event in _events_of(step)]


def recipients(
    event: str, subscriptions: Mapping[str, Sequence[Subscription]], tasks: Iterable[str]
) -> dict[str, dict[str, Any]]:
    """Return the names of the tasks that receive an event, each with the options of its message.

    Args:
        event: The event's name.
        subscriptions: What the settings say.
        tasks: The plain tasks that subscribe.

    A subscriber that the settings also name is included once, under the name in the settings: every worker that may fan
    out the event then uses the same name, and so gives its message the same id.
    """
    named = {each.task: {} if each.queue is None else {"queue": each.queue} for each in subscriptions.get(event, ())}
    steps = [step.name for step in subscribers(event) if named.keys().isdisjoint(step.names)]
    return {**{task: {} for task in (*steps, *tasks)}, **named}


def _events_of(step: StepDefinition) -> set[str]:
    annotations = list(step.arguments.annotations.values())
    event = event_of(annotations[0]) if len(annotations) == 1 else None
    return set() if event is None else {event_name(event)}


class FanOutTask(DurableTask):
    """Sends an event to its subscribers."""

    abstract = True
    keeps_failures = False  # what a subscriber is not sent becomes a dead letter of its own


def fan_out(self: FanOutTask, event: str, data: dict[str, Any], left: Sequence[str] | None = None) -> None:
    """Send an event to each of its subscribers: one task each, with a retry and a commit of its own.

    While the broker is away, the remaining messages are redelivered later. A message that it refuses becomes a dead letter.

    Args:
        self: The task.
        event: The event's name.
        data: The event, encoded.
        left: The tasks that an earlier run did not reach; without it, all. A plain task does not recognize a repeat.
    """
    runtime, message_id = runtime_of(self.app), str(self.request.id or uuid4())
    tasks = recipients(event, runtime.settings.subscriptions, subscribed_tasks(self.app, event))
    if left is not None:
        tasks = {task: tasks.get(task, {}) for task in left}
    if not tasks:
        logger.warning("%s[%s] has no subscriber", event, message_id)
        signals.event_unhandled.send(sender=self, event=event, message_id=message_id)
    messages = [_message_to(self.app, task, data, message_id, options) for task, options in tasks.items()]
    refused = _send(self, runtime.publisher, event, messages)
    try:
        _keep(self, runtime.backends, refused)
    except Exception as exc:
        self.request.update(args=[event, data, [sent.task for sent, _ in refused]], kwargs={})
        redeliver_or_requeue(self, runtime.publisher, exc)


def _message_to(app: Celery, task: str, data: dict[str, Any], message_id: str, options: dict[str, Any]) -> Signature[Any]:
    return app.signature(task, (data,), immutable=True, task_id=derived_id(message_id, task), **options)


def _send(task: FanOutTask, publisher: Any, event: str, messages: Sequence[Signature[Any]]) -> list[Refused]:
    """Publish the messages to the subscribers; return those that were not confirmed."""
    refused: list[Refused] = []
    for sent in messages:
        if publisher.inline and sent.task not in task.app.tasks:
            logger.info("%s[%s] does not go to %s, which cannot run here: eager mode", event, task.request.id, sent.task)
            continue
        try:
            publisher.publish_signature(sent)
        except PublishError as exc:
            logger.warning("%s[%s] was not sent to %s: %s", event, task.request.id, sent.task, exc.reason)
            refused.append((sent, exc))
    return refused


def _keep(task: FanOutTask, backends: Backends, refused: list[Refused]) -> None:
    """Turn messages that the broker refused into dead letters, and remove them from the list, unless the broker is away.

    Raises:
        PublishError: It is away: it is unknown whether it would refuse them.
        Exception: They cannot be stored.
    """
    for _, error in refused:
        if error.connection:
            raise error
    try:
        while refused:
            _keep_one(task, backends, *refused[0])
            del refused[0]
    except Exception as exc:
        bug = None if isinstance(exc, StoreError) else exc
        logger.warning("what %s[%s] sends cannot be kept as a dead letter: %s", task.name, task.request.id, exc, exc_info=bug)
        raise


def _keep_one(task: FanOutTask, backends: Backends, sent: Signature[Any], error: PublishError) -> None:
    sent = sent.clone().set(headers=causation_headers(session_of(task.request)))  # which it gets when it is published here
    cause, step = error.__cause__ or error, registry.step_named(str(sent.task))
    name, saga = (step.name, step.saga.name) if step else (str(sent.task), "")
    dead_letter = dead_letter_of(name, sent.options["task_id"], saga, cause, str(dumps(dict(sent))))
    add_dead_letter(backends.of(step.saga if step else None), dead_letter)
    logger.error("%s[%s] was refused and is kept as the dead letter %s", dead_letter.task, dead_letter.message_id, dead_letter.id)
    signals.step_failed.send(sender=task.app.tasks.get(name, task), dead_letter=dead_letter, exception=cause)


def install_fan_out(app: Celery) -> None:
    """Register the task that fans out events."""
    add_durable_task(app, FanOutTask, fan_out, PUBLISH, {"serializer": "json"})


on_finalise(install_fan_out)
on_finalise_last(install_subscribers)
