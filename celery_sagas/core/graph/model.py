"""The graph of a saga, before it is drawn: its statuses, its steps, and what leads from one step to another."""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from pydantic.fields import FieldInfo

from celery_sagas.core.graph.calls import Reading, Vocabulary
from celery_sagas.core.graph.code import HandlerCode, SendCall, read_code
from celery_sagas.core.graph.labels import expression
from celery_sagas.core.graph.signatures import Ref
from celery_sagas.core.graph.sources import source_of
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

    source: str  #: the short name of the step that sends, schedules or compensates
    to: Ref  #: a step of the saga by its short name; else something that could not be told
    how: str  #: "answer", "failure", "after HOUR"
    of: SendCall | None = None  #: the request whose outcome it is

    @property
    def cause(self) -> str:
        """What a step's message comes of: "the answer"."""
        return f"the {self.how}" if self.how in (ANSWER, FAILURE, OUTCOMES) else self.how

    @property
    def limit(self) -> str:
        """What follows ``how`` if the step also runs when the time for the outcome is over."""
        before = {FAILURE: ", or no answer within", TOO_FEW: " within"}.get(self.how)
        return f"{before} {self.of.within}" if before and self.of is not None and self.of.within else ""


#: How the outcomes of a request lead to steps.
ANSWER, FAILURE, PROGRESS = "answer", "failure", "progress"
OUTCOMES, TOO_FEW = "outcomes", "too few answers"


@dataclass(frozen=True)
class GraphStep:
    """A step in a graph."""

    name: str  #: without the saga's
    definition: StepDefinition
    code: HandlerCode

    @property
    def starts(self) -> bool:
        """Whether it creates the instance."""
        return self.definition.starts

    @property
    def runs_on_existing(self) -> bool:
        """Whether it runs on an instance that exists."""
        return not self.starts or self.definition.policy is IfExists.HANDLE

    @property
    def when(self) -> tuple[str, ...]:
        """The statuses in which it runs; empty: in any."""
        return self.definition.status.when

    @property
    def condition(self) -> str:
        """What a function says of whether it runs: a lambda's expression, or the call of another one; empty: none does."""
        given = self.definition.status.condition
        if given is None:
            return ""
        source = source_of(given)
        if source is not None and isinstance(source.node, ast.Lambda):
            return expression(source.node.body)
        return f"{getattr(given, '__name__', type(given).__name__)}()"

    @property
    def leaves_in(self) -> tuple[str, ...]:
        """The statuses in which it leaves the instance: as declared, else as its code says; empty: it does not change it."""
        return self.definition.status.to or tuple(self.code.statuses)

    @property
    def is_declared(self) -> bool:
        """Whether it says in which status it leaves the instance."""
        return bool(self.definition.status.to)

    @property
    def may_leave_in_any(self) -> bool:
        """Whether it cannot be told in which status it leaves the instance."""
        return not self.is_declared and (self.code.sets_unknown or not self.code.is_read)

    @property
    def event(self) -> str:
        """The name of the class of the event to which it subscribes; empty: to none."""
        annotations = [unwrap(each)[0] for each in self.definition.arguments.annotations.values()]
        match annotations:
            case [type() as cls] if issubclass(cls, Message) and not issubclass(cls, Failure | Gathered):
                return cls.__qualname__
        return ""


@dataclass(frozen=True)
class SagaGraph:
    """A saga, as its declarations and its handlers' code say."""

    saga: SagaDefinition
    steps: tuple[GraphStep, ...]

    @property
    def name(self) -> str:
        """The saga's."""
        return self.saga.name

    @cached_property
    def statuses(self) -> tuple[str, ...]:
        """The saga's, in the order of their declaration; empty: it has none."""
        return tuple(self.saga.statuses)

    @property
    def default(self) -> str | None:
        """The status of an instance whose step has set none."""
        if self.saga.status_by is None:
            return None
        info: FieldInfo = self.saga.cls.model_fields[self.saga.status_by]
        return text_of(info.default)

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

    def step_named(self, ref: Ref) -> GraphStep | None:
        """Return the step of this saga that a name stands for: with or without the saga's, also a former one."""
        for step in self.steps:
            names = step.definition.names
            if ref.is_known and (ref.name in names or f"{self.name}.{ref.name}" in names):
                return step
        return None

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
            yield from self._outcomes_of(step, sent)
        for timeout in step.code.timeouts:
            yield from self._to(step, timeout.steps, timeout.when or "scheduled")
        yield from self._to(step, step.code.undone, "once all is undone")

    def _outcomes_of(self, step: GraphStep, sent: SendCall) -> Iterator[Link]:
        yield from self._to(step, sent.then, OUTCOMES if sent.is_gather else ANSWER, sent)
        yield from self._to(step, sent.otherwise, TOO_FEW if sent.is_gather else FAILURE, sent)
        yield from self._to(step, sent.progress, PROGRESS, sent)

    def _to(self, step: GraphStep, refs: Iterable[Ref], how: str, of: SendCall | None = None) -> Iterator[Link]:
        for ref in refs:
            found = self.step_named(ref)
            yield Link(step.name, Ref(found.name) if found else ref._replace(is_known=False), how, of)


def graph_of(saga: SagaDefinition, steps: Iterable[StepDefinition], vocabulary: Vocabulary) -> SagaGraph:
    """Return the graph of a saga.

    Args:
        saga: The saga.
        steps: Its steps, in the order of their definition.
        vocabulary: How the tasks and events that handlers name are recognised.

    Raises:
        DefinitionError: An annotation cannot be resolved, or the saga's status has no statuses.
    """
    shown = (step for step in steps if not step.is_internal)
    made = (GraphStep(_short(step, saga), step, read_code(Reading(step, vocabulary))) for step in shown)
    return SagaGraph(saga, tuple(made))


def _short(step: StepDefinition, saga: SagaDefinition) -> str:
    return step.name.removeprefix(f"{saga.name}.")
