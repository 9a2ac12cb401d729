"""A handler that is called as a function, for example in a test: its messages are collected, and none leaves the process."""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import uuid4

from celery.canvas import Signature

from celery_sagas.core.aggregators.batch import Batch, sender_of
from celery_sagas.core.context import NO_MESSAGE, MessageView, SagaView, StepContext
from celery_sagas.core.sending import Sending, SerializedMessage
from celery_sagas.core.state import State
from celery_sagas.core.step import StepDefinition
from celery_sagas.engine.aggregators.sending import BatchMessages
from celery_sagas.engine.instance import attach, key_of
from celery_sagas.engine.session import Session
from celery_sagas.errors import InvalidState, MisuseError
from celery_sagas.settings import read_settings
from celery_sagas.worker.celery_internals import current_app
from celery_sagas.worker.serialization import restored, serialized
from celery_sagas.worker.sessions import collecting_session


class CollectedMessage(NamedTuple):
    """A message that a handler has sent, as it would be published."""

    signature: "Signature[Any]"  #: with its options
    due_at: datetime | None  #: aware, UTC; ``None``: at once

    @property
    def task(self) -> str:
        """The name of the task; that of an event is ``celery_sagas.publish``."""
        return str(self.signature.task)

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments, in values of JSON; those of an event are its name and its fields."""
        return tuple(self.signature.args)

    @property
    def kwargs(self) -> dict[str, Any]:
        """The named arguments, in values of JSON."""
        return dict(self.signature.kwargs)


@dataclass(frozen=True)
class Collected:
    """The effects of handlers beside changes of the state, since the state was made; or the messages of a batch."""

    messages: tuple[CollectedMessage, ...]  #: of ``send``, ``gather`` and ``publish``, in the order of the calls
    #: Of ``schedule``, by name; one without a name is known by its id. Of a series, the first.
    timeouts: Mapping[str, CollectedMessage]
    completed: bool  #: whether ``complete`` was called


def collected(state: State | Batch[Any]) -> Collected:
    """Return the messages of the handlers that a test has called on a state: ``place.handler(order, …); collected(order)``.

    Likewise those of an aggregator's function that a test has called on a batch: ``store.handler(batch); collected(batch)``.

    Raises:
        MisuseError: No handler was called on it.
    """
    if isinstance(state, Batch):
        return Collected(tuple(map(_read, _messages_of(state).sent)), {}, completed=False)
    context = state._context
    if context is None or context.sending is None or not context.collects:
        raise MisuseError(f"no handler was called on this {type(state).__name__}", "Call step.handler(state, …) first")
    sent = tuple(map(_read, context.sending.messages))
    timeouts = {name: _read(new.message, new.at) for name, new in context.pending.new_timeouts.items()}
    return Collected(sent, timeouts, context.completed)


def handler_of(step: StepDefinition) -> Callable[..., Any]:
    """Return the function of a step. It collects messages if its state does not belong to an instance."""
    function = step.function
    signature = inspect.signature(function)
    name = list(signature.parameters)[step.state_position]

    @functools.wraps(function)
    def handler(*args: Any, **kwargs: Any) -> Any:
        state = _argument(signature, name, args, kwargs)
        if not isinstance(state, State):
            return function(*args, **kwargs)
        if state._context is None or (state._context.collects and not state._context.is_running):
            with _collecting(step, state):
                return function(*args, **kwargs)
        if state._context.sending is None:  # direct publishes would really be sent
            problem = f"the {type(state).__name__} that find() returned is read-only, and no handler can be called on it"
            raise MisuseError(problem, f"Call the handler on a state of the test's own: {type(state).__name__}(…)")
        return function(*args, **kwargs)

    return handler


def _messages_of(batch: Batch[Any]) -> BatchMessages:
    sender = sender_of(batch)
    if not isinstance(sender, BatchMessages) or sender.store is not None:
        raise MisuseError("no function was called on this batch", "Call aggregator.handler(batch) first")
    return sender


def _argument(signature: inspect.Signature, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return an argument of a call; ``None`` if the call does not fit: its own error then names the function."""
    try:
        return signature.bind(*args, **kwargs).arguments[name]
    except TypeError:
        return None


@contextmanager
def _collecting(step: StepDefinition, state: State) -> Iterator[None]:
    """Collect the messages sent meanwhile, beside those that were collected before."""
    message_id = str(uuid4())
    context = state._context or _new_context(step, state)
    context.view = context.view._replace(message=MessageView(message_id, step.name), key=_key(step, state))
    app = current_app()
    serialize = functools.partial(serialized, app, max_bytes=read_settings(app.conf).max_state_bytes)
    sending = Sending(step.name, message_id, serialize)
    if context.sending is not None:
        sending.messages = context.sending.messages
    context.sending = sending
    session = Session(message_id)
    with collecting_session(session), session.running(sending):
        yield


def _new_context(step: StepDefinition, state: State) -> StepContext:
    view = SagaView(str(uuid4()), step.saga.name, "", 0, step.starts, None, None, NO_MESSAGE)
    context = StepContext(view, None, collects=True)
    attach(state, context)
    return context


def _key(step: StepDefinition, state: State) -> str:
    try:
        return key_of(step.saga, "", state)
    except InvalidState:  # it has none yet
        return ""


def _read(message: SerializedMessage, at: int = 0) -> CollectedMessage:
    due_at = at or message.due_at
    when = datetime.fromtimestamp(due_at / 1000, UTC) if due_at else None
    return CollectedMessage(restored(current_app(), message.payload), when)
