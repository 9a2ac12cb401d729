"""Who gets an event: the steps that are annotated with its class, and the tasks that the settings name."""

from collections.abc import Mapping, Sequence
from typing import Any, get_origin

from celery_sagas.core.keys import unwrap
from celery_sagas.core.message import Message
from celery_sagas.core.registry import registry
from celery_sagas.core.step import StepDefinition
from celery_sagas.settings import Subscription


def event_name(event: type[Message]) -> str:
    """Return the name under which an event travels."""
    return f"{event.__module__}.{event.__qualname__}"


def subscribers(event: str) -> list[StepDefinition]:
    """Return the steps that subscribe to an event, in the order of definition."""
    return [step for step in registry.steps.values() if event in _events_of(step)]


def recipients(event: str, subscriptions: Mapping[str, Sequence[Subscription]]) -> dict[str, dict[str, Any]]:
    """Return the names of the tasks that get an event, each with the options of its message.

    A subscribing step that the settings name too stands there once, as they name it: each worker that may fan the event out
    then calls it the same, and so gives its message the same id.
    """
    named = {each.task: _options_of(each) for each in subscriptions.get(event, ())}
    steps = [step.name for step in subscribers(event) if named.keys().isdisjoint(step.names)]
    return {**{step: {} for step in steps}, **named}


def _options_of(subscription: Subscription) -> dict[str, Any]:
    return {} if subscription.queue is None else {"queue": subscription.queue}


def _events_of(step: StepDefinition) -> set[str]:
    annotations = list(step.arguments.annotations.values())
    if len(annotations) != 1:
        return set()
    kind, _ = unwrap(annotations[0])
    return {event_name(kind)} if isinstance(kind, type) and get_origin(kind) is None and issubclass(kind, Message) else set()
