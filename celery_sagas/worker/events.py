"""Events: one message is published, and a worker fans it out to one task for each step that subscribes to it."""

import logging
from collections.abc import Sequence
from typing import Any, get_origin
from uuid import uuid4

from celery import Celery, Task
from celery.canvas import Signature
from kombu.utils.json import dumps

from celery_sagas import signals
from celery_sagas.core.ids import derived_id
from celery_sagas.core.keys import unwrap
from celery_sagas.core.message import Message
from celery_sagas.core.registry import registry
from celery_sagas.core.steps import StepDefinition
from celery_sagas.engine.burial import letter_of
from celery_sagas.errors import PublishError, StoreError
from celery_sagas.worker.headers import causation_headers
from celery_sagas.worker.internals import add_task, current_app, on_finalise
from celery_sagas.worker.later import postpone
from celery_sagas.worker.runtime import runtime_of
from celery_sagas.worker.sessions import current_session, new_message_id, session_of

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
    message_id = new_message_id(session, PUBLISH, message.args)
    runtime_of(app).publisher.publish_signature(message.set(task_id=message_id))
    return message_id


def event_name(event: type[Message]) -> str:
    """Return the name under which an event travels."""
    return f"{event.__module__}.{event.__qualname__}"


def subscribers(event: str) -> list[StepDefinition]:
    """Return the steps that subscribe to an event, in the order of definition."""
    return [step for step in registry.steps.values() if event in _events_of(step)]


def fan_out(self: "Task[Any, Any]", event: str, data: dict[str, Any]) -> None:
    """Send an event to each of its subscribers: one task each, with a retry and a commit of its own (NS-25).

    If the broker is away, all of it is done again. What the broker refuses for one subscriber is kept as a dead letter.
    """
    steps = subscribers(event)
    message_id = str(self.request.id or uuid4())
    if not steps:
        logger.warning("%s[%s] has no subscriber", event, message_id)
        signals.event_unhandled.send(sender=self, event=event, message_id=message_id)
    publisher = runtime_of(self.app).publisher
    refused: list[tuple[StepDefinition, Signature[Any], PublishError]] = []
    for step in steps:
        sent = self.app.tasks[step.name].si(data).set(task_id=derived_id(message_id, step.name))
        try:
            publisher.publish_signature(sent)
        except PublishError as exc:
            logger.warning("%s[%s] was not sent to %s: %s", event, message_id, step.name, exc.reason)
            refused.append((step, sent, exc))
    for _, _, error in refused:
        if error.connection:
            postpone(self, error)
    _keep(self, refused)


def _keep(task: "Task[Any, Any]", refused: Sequence[tuple[StepDefinition, Signature[Any], PublishError]]) -> None:
    """Keep a dead letter for each subscriber whose message the broker refused; without the store, do all of it again."""
    try:
        for step, sent, error in refused:
            _keep_one(task, step, sent, error)
    except Exception as exc:
        bug = None if isinstance(exc, StoreError) else exc
        logger.warning("what %s[%s] sends cannot be kept as a dead letter: %s", task.name, task.request.id, exc, exc_info=bug)
        postpone(task, exc)


def _keep_one(task: "Task[Any, Any]", step: StepDefinition, sent: Signature[Any], error: PublishError) -> None:
    sent = sent.clone().set(headers=causation_headers(session_of(task.request)))  # which it has when it is published here
    cause = error.__cause__ or error
    letter = letter_of(step.name, sent.options["task_id"], step.saga.name, cause, str(dumps(dict(sent))))
    runtime_of(task.app).backend.dead.add(letter)
    logger.error("%s[%s] was refused and is kept as the dead letter %s", letter.task, letter.message_id, letter.id)
    signals.step_failed.send(sender=task.app.tasks[step.name], letter=letter, exception=cause)


def install_fan_out(app: Celery) -> None:
    """Register the task that fans events out."""
    add_task(
        app,
        fan_out,
        name=PUBLISH,
        bind=True,
        acks_late=True,
        reject_on_worker_lost=True,
        acks_on_timeout=False,
        ignore_result=True,
        serializer="json",
    )


def _events_of(step: StepDefinition) -> set[str]:
    annotations = list(step.arguments.annotations.values())
    if len(annotations) != 1:
        return set()
    kind, _ = unwrap(annotations[0])
    return {event_name(kind)} if isinstance(kind, type) and get_origin(kind) is None and issubclass(kind, Message) else set()


on_finalise(install_fan_out)
