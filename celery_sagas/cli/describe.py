"""``celery sagas describe``: the sagas of an app, their steps, how each step's messages find their instance, and their graph."""

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import click

from celery_sagas.cli import tables
from celery_sagas.cli.app import defined, saga_named
from celery_sagas.cli.graph import FORMATS, print_graphs
from celery_sagas.core.registry import registry
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.step import StepDefinition


@click.command()
@click.argument("names", nargs=-1, metavar="[SAGA]...")
@click.option(
    "--graph",
    "graph_format",
    type=click.Choice(list(FORMATS)),
    help="Draw the sagas instead, from their declarations and their handlers' code.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object in each line, for each saga.")
@click.pass_context
def describe(context: click.Context, names: tuple[str, ...], graph_format: str | None, as_json: bool) -> None:
    """Show sagas, their steps and their correlation rules; all of them, or those named."""
    if graph_format and as_json:
        raise click.UsageError("give --graph or --json")
    with defined(context):
        sagas = _chosen(names)
        if as_json:
            tables.print_json(map(_saga, sagas))
        elif graph_format:
            print_graphs(sagas, graph_format)
        else:
            descriptions = "\n\n".join(map(_description, sagas))
            click.echo(descriptions or "No sagas are defined in the modules that the app imports.")


def _chosen(names: tuple[str, ...]) -> list[SagaDefinition]:
    chosen = [saga_named(name) for name in names]
    return [saga for saga in registry.sagas.values() if saga in chosen or not names]


def _description(saga: SagaDefinition) -> str:
    facts = {
        "state": ".".join(saga.location),
        "formerly": ", ".join(saga.formerly),
        "schema version": str(saga.schema_version),
        "key": " + ".join(saga.correlate_by),
        "alternate keys": ", ".join(saga.also_by),
        "searched by": ", ".join(saga.search_by),
        "history": ", ".join(saga.history),
        "backend": saga.backend or "",
        "keeps": f"final states for {timedelta(milliseconds=saga.keep_ms)}" if saga.keep_ms is not None else "",
        "worth a look": f"idle for {timedelta(milliseconds=saga.max_idle_ms)}" if saga.max_idle_ms is not None else "",
        "if missing": _called(saga.if_missing) if saga.if_missing else "",
        "status_by": f"{saga.status_by} ({', '.join(saga.statuses)})" if saga.status_by else "",
    }
    lines = [saga.name, *_listed(facts, "  ")]
    for step in registry.steps_of(saga):
        if not step.is_internal:
            lines += ["", f"  {step.name}", *_listed(_facts_of(step), "    ")]
    return "\n".join(lines)


def _saga(saga: SagaDefinition) -> dict[str, Any]:
    """Return what a program is told of a saga."""
    return {
        "saga": saga.name,
        "state": ".".join(saga.location),
        "formerly": saga.formerly,
        "schema_version": saga.schema_version,
        "correlate_by": saga.correlate_by,
        "also_by": saga.also_by,
        "search_by": saga.search_by,
        "history": saga.history,
        "backend": saga.backend,
        "keep_ms": saga.keep_ms,
        "max_idle_ms": saga.max_idle_ms,
        "if_missing": _called(saga.if_missing) if saga.if_missing else None,
        "status_by": saga.status_by,
        "statuses": list(saga.statuses),
        "steps": [_step(step) for step in registry.steps_of(saga) if not step.is_internal],
    }


def _step(step: StepDefinition) -> dict[str, Any]:
    status = step.status
    return {
        "step": step.name,
        "starts": step.starts,
        "policy": step.policy.value,
        "if_missing": _called(step.missing_function) if step.missing_function else None,
        "arguments": list(step.arguments.annotations),
        "found_by": step.rule.describe(),
        "when": status.when,
        "condition": _called(status.condition) if status.condition else None,
        "if_not": status.if_not.value if status.is_conditional else None,
        "to": status.to,
        "defer_for_s": step.defer_for_s,
        "formerly": step.formerly,
    }


def _listed(facts: Mapping[str, str], indent: str) -> Iterator[str]:
    return (f"{indent}{name}: {value}" for name, value in facts.items() if value)


def _facts_of(step: StepDefinition) -> dict[str, str]:
    policy = "if_exists" if step.starts else "if_missing"
    chosen = _called(step.missing_function) if step.missing_function else step.policy.value
    status = step.status
    return {
        "kind": f"{'starts' if step.starts else 'handles'}, {policy}: {chosen}",
        "message": ", ".join(step.arguments.annotations) or "no arguments",
        "found by": step.rule.describe(),
        "when": _called(status.condition) if status.condition else " or ".join(status.when),
        "if_not": status.if_not.value if status.is_conditional else "",
        "to": " or ".join(status.to),
        "defer_for": str(timedelta(seconds=step.defer_for_s)) if step.defer_for_s else "",
        "formerly": ", ".join(step.formerly),
    }


def _called(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}()"
