"""``celery sagas describe``: the sagas of an app, their steps, and how each step's messages find their instance."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import click

from celery_sagas.cli.app import app_of
from celery_sagas.core.registry import registry
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.step import StepDefinition
from celery_sagas.errors import ConfigurationError, DefinitionError


@click.command()
@click.argument("names", nargs=-1, metavar="[SAGA]...")
@click.pass_context
def describe(context: click.Context, names: tuple[str, ...]) -> None:
    """Show sagas, their steps and their correlation rules; all of them, or those named."""
    try:
        app_of(context).loader.import_default_modules()
        app_of(context).finalize()
        lines = [line for saga in _chosen(names) for line in (*lines_of(saga), "")]
    except (ConfigurationError, DefinitionError) as exc:
        raise click.ClickException(str(exc)) from exc
    click.echo("\n".join(lines or ["No sagas are defined in the modules that the app imports."]))


def _chosen(names: tuple[str, ...]) -> list[SagaDefinition]:
    if unknown := set(names) - registry.sagas.keys():
        raise click.ClickException(f"unknown saga {', '.join(sorted(unknown))}; known: {', '.join(registry.sagas) or 'none'}")
    return [saga for saga in registry.sagas.values() if not names or saga.name in names]


def lines_of(saga: SagaDefinition) -> list[str]:
    """Return the description of a saga."""
    facts = {
        "state": ".".join(saga.location),
        "formerly": ", ".join(saga.formerly),
        "schema version": str(saga.schema_version),
        "key": " + ".join(saga.correlate_by),
        "alternate keys": ", ".join(saga.also_by),
        "history": saga.history or "",
        "keeps": f"final states for {timedelta(milliseconds=saga.keep_ms)}" if saga.keep_ms is not None else "",
        "if missing": _shown(saga.if_missing) if saga.if_missing else "",
    }
    lines = [saga.name, *(f"  {name}: {value}" for name, value in facts.items() if value)]
    for step in registry.steps_of(saga):
        if step.is_internal:
            continue
        lines += ["", f"  {step.name}", *(f"    {name}: {value}" for name, value in _facts_of(step).items() if value)]
    return lines


def _shown(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}()"


def _facts_of(step: StepDefinition) -> dict[str, Any]:
    policy = "if_exists" if step.starts else "if_missing"
    chosen = _shown(step.missing_function) if step.missing_function else step.policy.value
    return {
        "kind": f"{'starts' if step.starts else 'handles'}, {policy}: {chosen}",
        "message": ", ".join(step.arguments.annotations) or "no arguments",
        "found by": step.rule.describe(),
        "formerly": ", ".join(step.formerly),
    }
