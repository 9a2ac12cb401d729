"""``ask``: plain code sends a message to a step, and is given what the step returns."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from celery import Celery
from celery.canvas import Signature, _chain

from celery_sagas.core.delays import Delay
from celery_sagas.core.registry import registry
from celery_sagas.core.step import StepDefinition
from celery_sagas.engine.dead_letters.dead_lettering import text_of
from celery_sagas.engine.polling import Polling, seconds_to_wait
from celery_sagas.engine.query import refuse_in_task
from celery_sagas.engine.questions import Answer, Question, asking, question_of
from celery_sagas.errors import StepFailed
from celery_sagas.worker.awaiting import finished, finished_async
from celery_sagas.worker.celery_internals import current_app
from celery_sagas.worker.headers import ASKED, MESSAGE_ID, check_message_id
from celery_sagas.worker.runtime import Runtime, runtime_of
from celery_sagas.worker.serialization import encode_arguments
from celery_sagas.worker.sessions import current_session

if TYPE_CHECKING:
    from celery_sagas.worker.step import StepSignature

R = TypeVar("R")


def ask(signature: "StepSignature[R]", *, timeout: Delay, id: str | None = None) -> R:
    """Send a message to a step, and return what the step returns: in a script, a web handler or a test, never in a task.

    What it returns is kept in the journal, with the commit of the message and for ``saga_journal_retention``, and is converted by
    its annotation. Whoever asks again with the same ``id`` is given the same answer, and the step runs once.

    Args:
        signature: A signature of one step: ``add_item.si(cart_id="c1", sku="x")``.
        timeout: How long to wait: a ``timedelta`` or seconds.
        id: The message's id, at most 255 characters, such as the idempotency key of a request; a new one if left out.

    Returns:
        What the step returns; of one that starts an instance, too: that is not what the instance gives to ``reply``.

    Raises:
        AskTimeout: There is no answer in time; the message may still be handled. It is a ``TimeoutError``.
        StepFailed: The step has failed, and its message is a dead letter.
        SagaNotFound: There is no instance, and the step ignores such messages.
        SagaAlreadyExists: There is an instance, and the step ignores messages to it.
        WrongStatus: The instance is in a status for which the step ignores messages.
        AnswerNotKept: The step has handled the message, and what it returned cannot be encoded as JSON, or is larger than 64 kB.
        InvalidMessage: The arguments do not fit; or ``id`` is no id, or that of another message.
        CorrelationError: The message names no instance.
        PublishError: The broker did not confirm the message; ask again with the same ``id``.
        MisuseError: It was called inside a task.
        TypeError: It is no signature of a step, or ``timeout`` is of another type.
        ValueError: ``timeout`` is negative.
        UnreadableState: This process cannot decode the answer, as its ``saga_codec`` lacks the key.
        StoreError: The store is unavailable; the message may still be handled: ask again with the same ``id``.
    """
    app = current_app()
    refuse_in_task("ask", current_session())
    answer = finished(app, partial(_asking, app, signature, timeout, id))
    value: R = answer.value
    return value


async def ask_async(signature: "StepSignature[R]", *, timeout: Delay, id: str | None = None) -> R:
    """Ask a step as ``ask`` does, without blocking the event loop.

    The broker and the backend are waited for in threads; between two looks no thread is held. If it is cancelled, the message may
    still be handled.

    Args:
        signature: A signature of one step.
        timeout: How long to wait: a ``timedelta`` or seconds.
        id: The message's id; see ``ask``.

    Returns:
        What the step returns.

    Raises:
        Exception: As ``ask`` does.
    """
    app = current_app()
    refuse_in_task("ask_async", current_session())
    answer = await finished_async(app, partial(_asking, app, signature, timeout, id))
    value: R = answer.value
    return value


def _asking(app: Celery, signature: Any, timeout: Any, id: str | None) -> Polling[Answer]:
    step, timeout_s = _step_of(app, signature), seconds_to_wait(timeout)
    check_message_id(step.name, id)
    sent: Signature[Any] = signature.clone()
    encode_arguments(app, sent, are_complete=True)
    question = question_of(step, step.arguments.bind(sent.args, sent.kwargs), id or str(uuid4()))
    headers = {**(sent.options.get("headers") or {}), MESSAGE_ID: question.message_id, ASKED: question.digest}
    sent.set(task_id=str(uuid4()), headers=headers)
    runtime = runtime_of(app)
    backend, publish = runtime.backends.of(step.saga), _publishing(runtime, question, sent)
    return asking(question, backend, publish, timeout_s, is_new=id is None)


def _publishing(runtime: Runtime, question: Question, sent: Signature[Any]) -> Callable[[], object]:
    if runtime.publisher.inline:
        return partial(_run_at_once, question.step, sent)
    return partial(runtime.publisher.publish_signature, sent)


def _run_at_once(step: StepDefinition, sent: Signature[Any]) -> None:
    """Run a message in eager mode, which keeps no dead letter.

    Raises:
        StepFailed: The step has failed.
    """
    try:
        result: Any = sent.apply_async()
        error = result.result if result.failed() else None
    except Exception as exc:  # with task_eager_propagates
        error = exc
    if error is not None:
        raise StepFailed(step.name, type(error).__name__, text_of(error), "") from error


def _step_of(app: Celery, signature: Any) -> StepDefinition:
    """Return the step that a signature is of.

    Raises:
        TypeError: It is of none.
    """
    if not isinstance(signature, Signature):
        raise TypeError(f"ask() takes a signature of a step, such as step.si(…), not {type(signature).__name__}")
    name = str(signature.task)
    if isinstance(signature, _chain) or name.startswith("celery."):
        raise TypeError("ask() takes one step, not a chain, a group or a chord: have a saga send them, and wait() for it")
    if name in registry.aggregators:
        raise TypeError(f"{name} is an aggregator, which answers nobody: add the item with delay(), or add()")
    step = registry.step_named(name)
    if step is not None and not step.is_internal:
        return step
    if name in app.tasks:
        raise TypeError(f"{name} is no step of a saga, and only these are asked: use delay(…).get()")
    raise TypeError(f"no step {name!r} is defined in this process, which reads its answer: import the module that defines it")
