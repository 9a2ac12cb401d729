"""``celery sagas try``: what would come of a message to a step, without writing or sending anything."""

import json
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, Final

import click
from celery import Celery

from celery_sagas.cli import tables
from celery_sagas.cli.acts import json_value
from celery_sagas.cli.addresses import lookup_for
from celery_sagas.cli.app import opened
from celery_sagas.cli.show import refuse_missing
from celery_sagas.core.correlation import ArgumentRule
from celery_sagas.core.registry import registry
from celery_sagas.core.step import StepDefinition
from celery_sagas.engine.dead_letters.dead_lettering import text_of
from celery_sagas.operate.actors import default_actor
from celery_sagas.operate.difference import difference
from celery_sagas.operate.instance import OperatedInstance
from celery_sagas.operate.operator import Operator
from celery_sagas.operate.outgoing import Call, OutgoingMessage
from celery_sagas.operate.trying import Tried
from celery_sagas.worker.failures.raised import below
from celery_sagas.worker.runtime import Runtime

#: How many lines of a traceback are shown, the last ones; how many messages, and other names; how many characters of a text.
_LINES: Final = 20
_MESSAGES: Final = 20
_NAMES: Final = 10
_CHARACTERS: Final = 500
_DOT: Final = " · "
_REASONS: Final = {
    "paused": "The instance is paused: the message would wait with it until it is resumed.",
    "status": "The instance is in another status than the step is for.",
    "missing": "There is no such instance.",
    "exists": "The instance exists already.",
    "completed": "The instance has completed.",
    "cancelled": "The instance does not wait for it.",
    "overtaken": "The instance has what comes in its place.",
}


@click.command("try")
@click.argument("name", metavar="STEP")
@click.argument("key", nargs=-1, metavar="[KEY]...")
@click.option("--id", metavar="ID", help="The instance with this id.")
@click.option("--by", metavar="FIELD=VALUE", help="The instance with this value of a field in also_by, or in search_by.")
@click.option("--args", "arguments", default="{}", metavar="JSON", help="What the step is given: an object, or an array.")
@click.option("--for", "awaited", metavar="NAME", help="Of the timeout, or the request or its task, that the message is about.")
@tables.LOCAL
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_context
def try_step(
    context: click.Context,
    name: str,
    key: tuple[str, ...],
    id: str | None,
    by: str | None,
    arguments: str,
    awaited: str | None,
    as_json: bool,
) -> None:
    """Run a step on what is stored, and show what would come of its message: the new state, and what would be sent.

    Nothing is written, sent or locked. But what the handler does by itself, such as a request over HTTP or rows in a database, it
    does. A step with transaction= is refused.

    Without KEY the arguments lead to the instance, as those of a message do, or begin one. With KEY those that name it may be
    left out; a step that a timeout or an answer of the instance goes to is taken for that. An error of the handler, or a message
    that would fail, has the exit status 1.
    """
    is_named = bool(key) or (id, by) != (None, None)
    if awaited is not None and not is_named:
        raise click.UsageError("--for is about what an instance waits for: name it, by its KEY, by --id, or by --by FIELD=VALUE")
    given = json_value("--args", arguments)
    if not isinstance(given, dict | list):
        raise click.UsageError("--args takes an object, with the arguments by their names, or an array")
    with opened(context) as runtime:
        step = _step_named(runtime.app, name)
        args, kwargs = ((), given) if isinstance(given, dict) else (tuple(given), {})
        signature = runtime.app.tasks[step.name].signature(args, kwargs)
        if is_named:
            tried = _instance(runtime, step, key, id, by).try_step(signature, awaited=awaited)
        elif isinstance(step.rule, ArgumentRule):
            tried = Operator(runtime.app, default_actor()).try_step(signature)
        else:
            problem = f"the arguments of {step.name} lead to no instance"
            raise click.UsageError(f"{problem}: name it, by its KEY, by --id, or by --by FIELD=VALUE")
    if as_json:
        tables.print_json([_facts(tried)])
    else:
        click.echo("\n".join(tables.line(line) if line else "" for line in _lines(tried)))
    if tried.error is not None:
        raise click.exceptions.Exit(1)


def _instance(runtime: Runtime, step: StepDefinition, key: tuple[str, ...], id: str | None, by: str | None) -> OperatedInstance:
    """Return the instance that is named.

    Raises:
        ClickException: There is none.
    """
    backend = runtime.backends.of(step.saga)
    lookup = lookup_for(backend, step.saga, key, id, by)
    if backend.sagas.find(lookup).record is None:
        refuse_missing(backend, step.saga, lookup)
    return OperatedInstance(Operator(runtime.app, default_actor()), step.saga, lookup)


def _step_named(app: Celery, name: str) -> StepDefinition:
    """Return the step that an operator names.

    Raises:
        ClickException: There is none.
    """
    step = registry.step_named(name)
    if step is not None and not step.is_internal:
        return step
    if step is None and name in app.tasks:
        kind = "an aggregator" if name in registry.aggregators else "a plain task"
        raise click.ClickException(f"{name} is {kind}, and only steps of sagas are tried")
    known = [each for step in registry.steps.values() if not step.is_internal for each in step.names]
    nearest = "".join(f". Did you mean {each}?" for each in get_close_matches(name, known, n=1))
    raise click.ClickException(f"unknown step {tables.line(name)}; celery sagas describe shows the steps{nearest}")


def _lines(tried: Tried) -> Iterator[str]:
    """Yield the lines; stored text in them is as it is, without line ends."""
    subject = f"{tried.saga} {tried.key}" if tried.key else tried.saga
    outcome = tried.outcome.value if tried.outcome else "failed"
    version = [f"version {tried.version}"] if tried.outcome and tried.version else []
    yield _DOT.join([subject, outcome, *version, f"{tried.step}, as {tried.arrived_as}"])
    if tried.reason:
        yield _REASONS.get(tried.reason, tried.reason)
    if tried.error is not None:
        yield from map(_short, _traceback(tried.error))
    yield from difference(tried.before or {}, tried.after or {})
    if hidden := _hidden(tried):
        yield f"Would change, and is hidden: {', '.join(hidden)}"
    if tried.messages:
        yield "Would send"
        yield from (f"  {line}" for line in tables.aligned(list(map(_row, tried.messages[:_MESSAGES]))))
        if (left := len(tried.messages) - _MESSAGES) > 0:
            yield f"  … {left:,} more; --json has them"
    if tried.ended:
        more = f" and {len(tried.ended) - _NAMES:,} more" if len(tried.ended) > _NAMES else ""
        yield f"Would wait no longer for: {', '.join(tried.ended[:_NAMES])}{more}"
    yield f"Nothing was written or sent. {_ran(tried)}"


def _ran(tried: Tried) -> str:
    if not tried.ran:
        return "The handler has not run."
    return "The handler has run: what it does by itself, such as a request over HTTP, is done."


def _traceback(error: Exception) -> Iterator[str]:
    lines = "".join(traceback.format_exception(type(error), error, below(error.__traceback__))).splitlines()
    yield from lines[-_LINES:]


def _hidden(tried: Tried) -> list[str]:
    """Return the fields that would change, and do not show it."""
    before, after = tried.before or {}, tried.after or {}
    return [name for name in tried.changed if before.get(name) == after.get(name)]


def _row(message: OutgoingMessage) -> tables.Row:
    to = " | ".join(dict.fromkeys(filter(None, (message.then, message.otherwise))))
    about = [
        message.name,
        f"→ {to}" if to else "",
        f"due {tables.time(message.due_at)}" if message.due_at else "",
        f"until {tables.time(message.until)}" if message.until else "",
    ]
    return message.kind, " | ".join(map(_call, message.calls)), ", ".join(filter(None, about)) or " "


def _call(call: Call) -> str:
    given = [*map(_json, call.args), *(f"{name}={_json(value)}" for name, value in call.kwargs.items())]
    return _short(f"{call.task}({', '.join(given)})")


def _short(text: str) -> str:
    return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}… ({len(text):,} characters)"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _facts(tried: Tried) -> Mapping[str, Any]:
    """Return what a program is told."""
    facts = {each.name: getattr(tried, each.name) for each in fields(tried)}
    messages = [{**each._asdict(), "calls": [call._asdict() for call in each.calls]} for each in tried.messages]
    return {**facts, "messages": messages, "error": _error(tried.error) if tried.error is not None else None}


def _error(error: Exception) -> Mapping[str, str]:
    return {"error": type(error).__name__, "text": text_of(error), "traceback": "\n".join(_traceback(error))}
