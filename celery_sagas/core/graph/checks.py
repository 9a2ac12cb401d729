"""What is suspect in the statuses of a saga: one that nothing leads to, one that nothing leaves."""

from collections.abc import Iterator

from celery_sagas.core.graph.model import GraphStep, SagaGraph

_REMEDY = "Name it in to= of the step that leads there, or remove it from"


def warnings_of(graph: SagaGraph) -> list[str]:
    """Return what is suspect in a saga's statuses; a step whose code is not read may do what there is no sign of."""
    known = reached(graph)
    return [f"{graph.name}: {each}" for each in (*_unreached(graph, known), *_never_left(graph, known))]


def reached(graph: SagaGraph) -> set[str]:
    """Return the statuses that an instance may come to be in, one after the other from those of its start."""
    starters = [step for step in graph.steps if step.declared.starts]
    found = {status for step in starters for status in _left_in(graph, step)}
    if graph.default and not (starters and all(step.declared.status.to for step in starters)):
        found.add(graph.default)
    while led_to := {status for step in graph.steps if _may_run(step, found) for status in _left_in(graph, step)} - found:
        found |= led_to
    return found


def _left_in(graph: SagaGraph, step: GraphStep) -> tuple[str, ...]:
    may_be_any = not step.declared.status.to and (step.code.sets_unknown or not step.code.is_read)
    return graph.statuses if may_be_any else step.leaves_in


def _may_run(step: GraphStep, statuses: set[str]) -> bool:
    return step.runs_on_existing and (not step.declared.status.when or not statuses.isdisjoint(step.declared.status.when))


def _unreached(graph: SagaGraph, known: set[str]) -> Iterator[str]:
    for status in graph.statuses:
        if status not in known and status != graph.default:
            yield f"nothing leads to the status {status!r}. {_REMEDY} {graph.state}."
    for step in graph.steps:
        if missing := [repr(status) for status in step.declared.status.when if status not in known]:
            named = " or ".join(missing)
            never = "never runs" if len(missing) == len(step.declared.status.when) else f"never runs when it is {named}"
            yield f"{step.name} {never}, since nothing leads to the status {named}. {_REMEDY} when=."


def _never_left(graph: SagaGraph, known: set[str]) -> Iterator[str]:
    for status in graph.statuses:
        if status in known and _may_stay(graph, status) and not any(_ends(graph, step, status) for step in graph.steps):
            remedy = "Let a step lead on from there, or complete() the instance"
            yield f"nothing leaves the status {status!r}, and nothing completes the instance there. {remedy}."


def _may_stay(graph: SagaGraph, status: str) -> bool:
    """Return whether an instance may be in a status between two messages: a default may be replaced by each first step."""
    starters = [step for step in graph.steps if step.declared.starts]
    stays = not starters or any(not _left_in(graph, step) for step in starters)
    return status != graph.default or stays or any(status in _left_in(graph, step) for step in graph.steps)


def _ends(graph: SagaGraph, step: GraphStep, status: str) -> bool:
    """Return whether a step may end a status: it leaves it, or completes the instance there, or in its first step."""
    if not step.code.is_read:
        return _may_run(step, {status}) or step.declared.starts
    if step.declared.starts and step.code.completes and status in (step.leaves_in or (graph.default,)):
        return True
    if not _may_run(step, {status}):
        return step.code.completes and status in step.leaves_in
    return step.code.completes or step.code.sets_unknown or any(other != status for other in step.leaves_in)
