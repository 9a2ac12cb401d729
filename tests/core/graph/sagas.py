"""Sagas whose handlers' code is read. They have no methods to send with: nothing of them is ever run."""

import logging
from enum import Enum
from typing import Any, Literal

from celery_sagas.core.graph.code import Vocabulary
from celery_sagas.core.graph.model import SagaGraph, graph_of
from celery_sagas.core.message import Message
from celery_sagas.core.state import State
from celery_sagas.core.step import StepDefinition, define_step

logger = logging.getLogger(__name__)


class Task:
    """Stands for a task of Celery's."""

    def __init__(self, name: str) -> None:
        self.name = name


def publish(event: Any) -> None:
    """Stands for the function that publishes events."""


VOCABULARY = Vocabulary(lambda value: value.name if type(value) is Task else None, publish)


class Delivered(Message):
    """An event."""

    order_id: str


class Status(Enum):
    """The same statuses, as an ``Enum``."""

    PLACED = "placed"
    PAID = "paid"


class Order(State, correlate_by="order_id", status_by="status"):
    """A saga with a status."""

    order_id: str
    status: Literal["placed", "paid", "shipped", "cancelled"] = "placed"
    patience: float = 1.0


class Plain(State, correlate_by="order_id"):
    """A saga without a status."""

    order_id: str


def step(function: Any, *, saga: Any = Order, starts: bool = False, policy: str | None = None, **declared: Any) -> StepDefinition:
    """Return a step of a saga."""
    options = {"bind": declared.pop("bind", False)}
    given = {"by": None, "formerly": None, **declared}
    policy = policy or ("ignore" if starts else "raise")
    return define_step(saga.__saga__, function, starts=starts, policy=policy, options=options, **given)


def starter(function: Any, **declared: Any) -> StepDefinition:
    """Return a step that creates instances."""
    return step(function, starts=True, **declared)


def graph(*steps: StepDefinition) -> SagaGraph:
    """Return the graph of the saga of some steps."""
    return graph_of(steps[0].saga, steps, VOCABULARY)
