"""The graph of a saga, before it is drawn: its statuses, its steps, and what leads from one step to another."""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from celery_sagas.core.graph.code import HandlerCode, SendCall, Vocabulary, read_code
from celery_sagas.core.graph.names import Ref, expression, source_of
from celery_sagas.core.keys import unwrap
from celery_sagas.core.message import Message
from celery_sagas.core.requests.answers import Failure, Gathered
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.status import text_of
from celery_sagas.core.step import IfExists, StepDefinition

#: A task's name, also within a chain.
_NAME: Final = re.compile(r"[\w.]+")


class Link(NamedTuple):
    """One way from a step to another, or to nothing that the saga has."""

    source: str  #: the name of the step that sends, schedules or compensates
    to: Ref  #: a step of the saga by its name there; else something that could not be told
    how: str  #: "answer", "failure", "after HOUR"
    of: SendCall | None = None  #: the request whose outcome it is

    @property
    def cause(self) -> str:
        """What a step's message comes of: "the answer"."""
        return f"the {self.how}" if self.how in ("answer", "failure", "outcomes") else self.how

    @property
    def limit(self) -> str:
        """What follows ``how`` if the step also runs when the time for the outcome is over."""
        before = {"failure": ", or no answer within", "too few answers": " within"}.get(self.how)
        return f"{before} {self.of.within}" if before and self.of is not None and self.of.within else ""


@dataclass(frozen=True)
class GraphStep:
    """A step in a graph."""

    name: str  #: without the saga's
    declared: StepDefinition
    code: HandlerCode
    condition: str  #: a lambda's expression, or the call of another function, which says whether it runs; empty: none does
    event: str  #: the name of the class of the event to which it subscribes; empty: to none

    @property
    def runs_on_existing(self) -> bool:
        """Whether it runs on an instance that exists."""
        return not self.declared.starts or self.declared.policy is IfExists.HANDLE

    @property
    def leaves_in(self) -> tuple[str, ...]:
        """The statuses in which it leaves the instance: as declared, else as its code says; empty: it does not change it."""
        return self.declared.status.to or tuple(self.code.statuses)

    @property
    def marks(self) -> list[str]:
        """What else it does."""
        return ["undoes what was done"] * self.code.compensates + ["replies"] * self.code.replies


@dataclass(frozen=True)
class SagaGraph:
    """A saga, as its declarations and its handlers' code say."""

    name: str
    state: str  #: the name of its class
    statuses: tuple[str, ...]  #: in the order of their declaration; empty: it has none
    default: str | None  #: the status of an instance whose step has set none
    steps: tuple[GraphStep, ...]

    @cached_property
    def _short_names(self) -> dict[str, str]:
        sent = [ref for step in self.steps for call in step.code.sends for ref in (*call.tasks, *call.undo) if ref.is_known]
        names = {name for ref in sent for name in _NAME.findall(ref.name)}
        last = Counter(name.rpartition(".")[2] for name in names)
        return {name: short for name in names if last[short := name.rpartition(".")[2]] == 1}

    def short(self, ref: Ref) -> str:
        """Return the last part of a task's name, unless another task of the graph has the same."""
        return _NAME.sub(lambda found: self._short_names.get(found[0], found[0]), ref.name) if ref.is_known else ref.name

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """What leads from the steps to others."""
        return tuple(dict.fromkeys(link for step in self.steps for link in self._links_of(step)))

    def links_to(self, step: GraphStep) -> list[Link]:
        """Return what leads to a step."""
        return [link for link in self.links if link.to == Ref(step.name)]

    def links_from(self, step: GraphStep, of: SendCall | None = None) -> list[Link]:
        """Return where a step leads by one of its requests, or by none."""
        return [link for link in self.links if link.source == step.name and link.of == of]

    def step_named(self, ref: Ref) -> GraphStep | None:
        """Return the step of this saga that a name stands for: with or without the saga's, also a former one."""
        named = {ref.name, f"{self.name}.{ref.name}"} if ref.is_known else set[str]()
        return next((step for step in self.steps if not named.isdisjoint(step.declared.names)), None)

    def requests_of(self, step: GraphStep) -> list[SendCall]:
        """Return what a step sends to tasks, or asks of its own steps; its messages to its own steps are links."""
        return [sent for sent in step.code.sends if not self._is_plain_link(sent)]

    def _is_plain_link(self, sent: SendCall) -> bool:
        is_asked = sent.is_gather or sent.then or sent.otherwise or sent.progress or sent.undo
        return not is_asked and all(self.step_named(ref) for ref in sent.tasks)

    def _links_of(self, step: GraphStep) -> Iterator[Link]:
        for sent in step.code.sends:
            if self._is_plain_link(sent):
                yield from self._to(step, sent.tasks, f"sent after {sent.after}" if sent.after else "sent")
            yield from self._to(step, sent.then, "outcomes" if sent.is_gather else "answer", sent)
            yield from self._to(step, sent.otherwise, "too few answers" if sent.is_gather else "failure", sent)
            yield from self._to(step, sent.progress, "progress", sent)
        for ref, how in step.code.links:
            yield from self._to(step, [ref], how)

    def _to(self, step: GraphStep, refs: Iterable[Ref], how: str, of: SendCall | None = None) -> Iterator[Link]:
        for ref in refs:
            found = self.step_named(ref)
            yield Link(step.name, Ref(found.name) if found else ref._replace(is_known=False), how, of)


def graph_of(saga: SagaDefinition, steps: Iterable[StepDefinition], vocabulary: Vocabulary) -> SagaGraph:
    """Return the graph of a saga, by the steps that it has, in their order.

    Raises:
        DefinitionError: An annotation cannot be resolved, or the saga's status has no statuses.
    """
    default = text_of(saga.cls.model_fields[saga.status_by].default) if saga.status_by is not None else None
    shown = tuple(_graph_step(step, vocabulary) for step in steps if not step.is_internal)
    return SagaGraph(saga.name, saga.cls.__name__, tuple(saga.statuses), default, shown)


def _graph_step(step: StepDefinition, vocabulary: Vocabulary) -> GraphStep:
    name = step.name.removeprefix(f"{step.saga.name}.")
    return GraphStep(name, step, read_code(step, vocabulary), _condition(step), _event(step))


def _condition(step: StepDefinition) -> str:
    given = step.status.condition
    source = source_of(given) if given is not None else None
    if source is not None and isinstance(source.node, ast.Lambda):
        return expression(source.node.body)
    return f"{getattr(given, '__name__', type(given).__name__)}()" if given is not None else ""


def _event(step: StepDefinition) -> str:
    match [unwrap(each)[0] for each in step.arguments.annotations.values()]:
        case [type() as cls] if issubclass(cls, Message) and not issubclass(cls, Failure | Gathered):
            return cls.__qualname__
    return ""
