"""What is suspect in the statuses of a saga: one that nothing leads to, one that nothing leaves."""

from collections.abc import Iterator

from celery_sagas.core.graph.model import GraphStep, SagaGraph


def warnings_of(graph: SagaGraph) -> list[str]:
    """Return what is suspect in a saga's statuses; a step whose code is not read may do what there is no sign of."""
    return [*_unreached(graph), *_never_run(graph), *_never_left(graph)]


def reached(graph: SagaGraph) -> set[str]:
    """Return the statuses that an instance may come to be in, one after the other from those of its start."""
    found = set(_initial(graph))
    while True:
        led_to = {status for step in graph.steps if _may_run(step, found) for status in _left_in(graph, step)} - found
        if not led_to:
            return found
        found |= led_to


def _initial(graph: SagaGraph) -> Iterator[str]:
    """Yield the statuses that an instance may have when its first step has run."""
    starters = [step for step in graph.steps if step.starts]
    for step in starters:
        yield from _left_in(graph, step)
    if graph.default and not (starters and all(step.is_declared for step in starters)):
        yield graph.default


def _left_in(graph: SagaGraph, step: GraphStep) -> tuple[str, ...]:
    return graph.statuses if step.may_leave_in_any else step.leaves_in


def _may_run(step: GraphStep, statuses: set[str]) -> bool:
    return step.runs_on_existing and (not step.when or not statuses.isdisjoint(step.when))


def _unreached(graph: SagaGraph) -> Iterator[str]:
    known = reached(graph) | {graph.default}
    for status in graph.statuses:
        if status not in known:
            remedy = f"Name it in to= of the step that leads there, or remove it from {graph.saga.cls.__name__}"
            yield f"{graph.name}: nothing leads to the status {status!r}. {remedy}."


def _never_run(graph: SagaGraph) -> Iterator[str]:
    known = reached(graph)
    for step in graph.steps:
        if missing := [status for status in step.when if status not in known]:
            named = " or ".join(map(repr, missing))
            never = "never runs" if len(missing) == len(step.when) else f"never runs when it is {named}"
            remedy = "Name it in to= of the step that leads there, or remove it from when="
            yield f"{graph.name}: {step.name} {never}, since nothing leads to the status {named}. {remedy}."


def _never_left(graph: SagaGraph) -> Iterator[str]:
    known = reached(graph)
    for status in graph.statuses:
        if status in known and _may_stay(graph, status) and not any(_ends(graph, step, status) for step in graph.steps):
            remedy = "Let a step lead on from there, or complete() the instance"
            yield f"{graph.name}: nothing leaves the status {status!r}, and nothing completes the instance there. {remedy}."


def _may_stay(graph: SagaGraph, status: str) -> bool:
    """Return whether an instance may be in a status between two messages: a default may be replaced by each first step."""
    starters = [step for step in graph.steps if step.starts]
    stays = not starters or any(not _left_in(graph, step) for step in starters)
    return status != graph.default or stays or any(status in _left_in(graph, step) for step in graph.steps)


def _ends(graph: SagaGraph, step: GraphStep, status: str) -> bool:
    """Return whether a step may end a status: it leaves it, or completes the instance there, or in its first step."""
    if not step.code.is_read:
        return _may_run(step, {status}) or step.starts
    if step.starts and step.code.completes and status in (step.leaves_in or (graph.default,)):
        return True
    if not _may_run(step, {status}):
        return step.code.completes and status in step.leaves_in
    return step.code.completes or step.code.sets_unknown or any(other != status for other in step.leaves_in)
