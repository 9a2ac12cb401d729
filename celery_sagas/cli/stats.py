"""``celery sagas stats``: how many instances, messages and dead letters there are."""

from collections.abc import Sequence
from typing import Any

import click

from celery_sagas.cli import tables
from celery_sagas.cli.app import opened
from celery_sagas.cli.switches import print_held
from celery_sagas.errors import StoreUnavailable
from celery_sagas.operate import counting
from celery_sagas.operate.counting import of_backend, of_sagas, of_switch
from celery_sagas.operate.doctor import ask_workers
from celery_sagas.operate.doctor.facts import named
from celery_sagas.operate.doctor.workers import running_relays, unknown_steps
from celery_sagas.operate.spans import span
from celery_sagas.operate.switching import held_in
from celery_sagas.stores.switches import Switch
from celery_sagas.worker.runtime import Runtime

_SAGAS = ("SAGA", "INSTANCES", "PAUSED", "OLDEST CHANGE")
_BACKENDS = ("BACKEND", "DUE", "OLDEST DUE", "NOT HANDLED OR FAILED", "DEAD LETTERS", "NOT TAKEN")


@click.command()
@click.option("--relays", "has_relays", is_flag=True, help="Ask the workers, too, which relays are at work; it takes seconds.")
@tables.LOCAL
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One JSON object in each line: of a saga, of a backend, of a switch, or of the relays.",
)
@click.pass_context
def stats(context: click.Context, has_relays: bool, as_json: bool) -> None:
    """Count the instances of each saga, and in each backend the messages in the outbox and the dead letters; show what is held.

    PAUSED instances are counted among the others, too. Messages that are DUE are about to be published. The next column counts
    those that were not handled yet, or have failed. NOT TAKEN names the tasks of messages that no relay has taken for 15 minutes:
    none is at work, or none knows them. A backend does not know its relays: only the workers tell which are at work.
    """
    with opened(context) as runtime:
        facts, errors = _facts(runtime)
        if has_relays:
            relays, refusals = _of_relays(runtime)
            facts += relays
            errors += refusals
    if as_json:
        tables.print_json(facts)
    else:
        _print(facts)
    for error in errors:
        click.echo(f"Error: {tables.sentence(error)}", err=True)
    if errors:
        raise click.exceptions.Exit(1)


def _facts(runtime: Runtime) -> tuple[list[dict[str, Any]], list[str]]:
    """Return what is known of each saga and backend, and the errors of the backends that are away."""
    facts, away = list[dict[str, Any]](), list[str]()
    for backend in runtime.backends:
        try:
            facts += [*of_sagas(backend, runtime.backends.sagas_in(backend)), of_backend(backend)]
            facts += map(of_switch, held_in(backend))
        except StoreUnavailable as exc:
            away.append(str(exc))
    return facts, away


def _of_relays(runtime: Runtime) -> tuple[list[dict[str, Any]], list[str]]:
    """Return what the workers that answer say of their relays, or the error if they cannot be asked."""
    broker, asked = ask_workers(runtime.app, runtime.settings)
    if asked is None:
        return [], [f"the broker cannot be asked for the relays: {broker.error}"]
    if not asked.can_be_asked:
        return [], ["workers cannot be asked over this broker, and nobody else knows the relays"]
    relays = running_relays(asked)
    swept = [relay.swept_ms for relay in relays if relay.swept_ms is not None]
    about = {"workers": len(asked.workers), "last_sweep_ms": min(swept, default=None)}
    return [{"relays": len(relays), **about, "unknown_steps": unknown_steps(asked)}], []


def _print(facts: Sequence[dict[str, Any]]) -> None:
    tables.print_table(_SAGAS, [_saga(each) for each in facts if "saga" in each], "The app defines no sagas.")
    click.echo()
    numbers = [_numbers(each) for each in facts if "backend" in each]
    tables.print_table(_BACKENDS, numbers, "No backend answers.")
    if held := [Switch(*each.values()) for each in facts if "held" in each]:
        click.echo()
        print_held(held)
    for each in facts:
        if "relays" in each:
            click.echo(f"\n{tables.line(_relays(each))}")


def _relays(facts: dict[str, Any]) -> str:
    workers = "1 worker that has" if facts["workers"] == 1 else f"{facts['workers']:,} workers that have"
    unknown = named(facts["unknown_steps"]) or "none"
    at_work = f"Relays: {facts['relays']:,} at work, in {workers} answered"
    return f"{at_work}; last sweep: {_ago(facts['last_sweep_ms'])}; steps that no worker knows: {unknown}"


def _saga(facts: dict[str, Any]) -> tables.Row:
    return (
        facts["saga"],
        counting.count_text(facts["instances"]),
        counting.count_text(facts["paused"]),
        _ago(facts["oldest_change_ms"]),
    )


def _numbers(facts: dict[str, Any]) -> tables.Row:
    due, tried = counting.count_text(facts["due"]), counting.count_text(facts["tried"])
    return (
        facts["backend"],
        due,
        _ago(facts["oldest_due_ms"]),
        tried,
        f"{facts['dead_letters']:,}",
        ", ".join([*[named(facts["untaken"])] * bool(facts["untaken"]), *["…"] * facts["may_be_more_untaken"]]) or "-",
    )


def _ago(ms: int | None) -> str:
    return "-" if ms is None else f"{span(ms)} ago"
