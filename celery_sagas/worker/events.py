"""Events: one message is published, and a worker fans it out to one task for each step that subscribes to it."""

import logging
from typing import Any, get_origin
from uuid import uuid4

from celery import Celery, Task
from kombu.utils.json import dumps

from celery_sagas import signals
from celery_sagas.core.ids import derived_id
from celery_sagas.core.keys import unwrap
from celery_sagas.core.message import Message
from celery_sagas.core.registry import registry
from celery_sagas.core.steps import StepDefinition
from celery_sagas.engine.session import Session, current_session
from celery_sagas.errors import PublishError
from celery_sagas.worker.internals import add_task, current_app, on_finalise
from celery_sagas.worker.later import put_off
from celery_sagas.worker.publisher import ConfirmedPublisher
from celery_sagas.worker.runtime import runtime_of

logger = logging.getLogger("celery_sagas")

#: The task that fans events out; every worker with this library has it.
PUBLISH = "celery_sagas.publish"


def publish(event: Message) -> str:
    """Publish an event to every step whose one argument is annotated with exactly its class.

    Inside a step it joins the step's commit. Elsewhere it is published, and confirmed, at once; no step needs to have been
    imported here, since a worker does the rest.

    Args:
        event: A ``Message``.

    Returns:
        The id of the published message.

    Raises:
        TypeError: It is no ``Message``.
        PublishError: The broker did not confirm it; publish it again.
    """
    if not isinstance(event, Message):
        raise TypeError(f"publish() takes a Message, not {type(event).__name__}")
    app = current_app()
    message = app.tasks[PUBLISH].si(event_name(type(event)), event.__json__())
    session = current_session()
    if session is not None and session.sending is not None:
        return session.sending.send(message)
    message_id = _message_id(session, message)
    runtime_of(app).publisher.publish_signature(message.set(task_id=message_id))
    return message_id


def event_name(event: type[Message]) -> str:
    """Return the name under which an event travels."""
    return f"{event.__module__}.{event.__qualname__}"


def subscribers(event: str) -> list[StepDefinition]:
    """Return the steps that subscribe to an event, in the order of definition."""
    return [step for step in registry.steps.values() if event in _events_of(step)]


def fan_out(self: "Task[Any, Any]", event: str, data: dict[str, Any]) -> None:
    """Send an event to each of its subscribers: one task each, with a retry and a commit of its own (NS-25)."""
    steps = subscribers(event)
    message_id = str(self.request.id or uuid4())
    if not steps:
        logger.warning("%s[%s] has no subscriber", event, message_id)
        signals.event_unhandled.send(sender=self, event=event, message_id=message_id)
    publisher = runtime_of(self.app).publisher
    failures: list[PublishError] = []
    for step in steps:
        sent = self.app.tasks[step.name].si(data).set(task_id=derived_id(message_id, step.name))
        try:
            publisher.publish_signature(sent)
        except PublishError as exc:
            logger.warning("%s[%s] was not sent to %s: %s", event, message_id, step.name, exc.reason)
            failures.append(exc)
    for failure in failures:
        if failure.connection and isinstance(publisher, ConfirmedPublisher):
            put_off(self, publisher, failure)
    if failures:
        raise failures[0]


def install_fan_out(app: Celery) -> None:
    """Register the task that fans events out."""
    add_task(
        app, fan_out, name=PUBLISH, bind=True, acks_late=True, reject_on_worker_lost=True, ignore_result=True, serializer="json"
    )


def _message_id(session: Session | None, message: Any) -> str:
    """Return a new id; in a task, one that the task publishes the same event under when it is delivered again."""
    if session is None:
        return str(uuid4())
    session.published += 1
    task = current_app().current_worker_task
    retries = 0 if task is None else task.request.retries  # a task that retries itself, to poll, publishes anew each time
    return derived_id(session.message_id, f"{PUBLISH}/{retries}/{session.published}/{dumps(message.args)}")


def _events_of(step: StepDefinition) -> set[str]:
    annotations = list(step.arguments.annotations.values())
    if len(annotations) != 1:
        return set()
    kind, _ = unwrap(annotations[0])
    return {event_name(kind)} if isinstance(kind, type) and get_origin(kind) is None and issubclass(kind, Message) else set()


on_finalise(install_fan_out)
