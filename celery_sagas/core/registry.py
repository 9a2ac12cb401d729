"""The one ordered table of sagas, steps and subscriptions of a process."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from celery_sagas.core.aggregators.definition import AggregatorDefinition
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.step import StepDefinition
from celery_sagas.errors import DefinitionError

DefinitionT = TypeVar("DefinitionT", SagaDefinition, StepDefinition, AggregatorDefinition)


@dataclass
class Registry:
    """The definitions of a process, in their order; defining something again at the same place replaces it."""

    sagas: dict[str, SagaDefinition] = field(default_factory=dict)
    steps: dict[str, StepDefinition] = field(default_factory=dict)
    aggregators: dict[str, AggregatorDefinition] = field(default_factory=dict)
    subscribers: list[Any] = field(default_factory=list)  #: plain tasks, or what stands for one in each app

    def __bool__(self) -> bool:
        """Return whether anything was defined."""
        return bool(self.sagas or self.aggregators)

    def add_saga(self, saga: SagaDefinition) -> None:
        """Register a saga under its name; refuse it if another saga has one of its names."""
        _add(self.sagas, saga, lambda each: each.location, "saga", "Set name=")

    def add_step(self, step: StepDefinition) -> None:
        """Register a step under its name; refuse it if another step has one of its names.

        One function may be a step of several sagas, so a step is defined again by the same function for the same saga.
        """
        _add(self.steps, step, lambda each: (each.location, each.saga.location), "step", "Rename one of them")

    def add_aggregator(self, aggregator: AggregatorDefinition) -> None:
        """Register an aggregator under its name; refuse it if another has one of its names."""
        _add(self.aggregators, aggregator, lambda each: each.location, "aggregator", "Set name=")

    def saga_named(self, name: str) -> SagaDefinition | None:
        """Return the saga that has, or had, a stored name."""
        return next((saga for saga in self.sagas.values() if name in saga.names), None)

    def step_named(self, task: str) -> StepDefinition | None:
        """Return the step that has, or had, a task's name."""
        return next((step for step in self.steps.values() if task in step.names), None)

    def steps_of(self, saga: SagaDefinition) -> Iterator[StepDefinition]:
        """Return the steps of a saga, in the order of definition."""
        return (step for step in self.steps.values() if step.saga.name == saga.name)


def _add(
    table: dict[str, DefinitionT], new: DefinitionT, location_of: Callable[[DefinitionT], Any], kind: str, remedy: str
) -> None:
    others = [other for other in table.values() if location_of(other) != location_of(new)]
    for other in others:
        if shared := set(new.names) & set(other.names):
            taken = f"{min(shared)!r} is a name of the {kind} {'.'.join(other.location)}"
            raise DefinitionError(".".join(new.location), taken, remedy)
    for name in table.keys() - {other.name for other in others} - {new.name}:
        del table[name]  # its earlier definition had another name
    table[new.name] = new


#: Definitions are global to a process, as ``shared_task`` is: every app gets them.
registry = Registry()
