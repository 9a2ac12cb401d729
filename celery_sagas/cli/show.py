"""``celery sagas show``: one instance, why it does not go on or for what it waits, and the command that helps."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NoReturn

import click

from celery_sagas.cli import tables
from celery_sagas.cli.addresses import lookup_for, unknown
from celery_sagas.cli.app import opened, saga_named
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.step import StepDefinition
from celery_sagas.operate.explain import Explanation, explain, timeline_of
from celery_sagas.operate.facts import Facts
from celery_sagas.operate.reading import read_facts
from celery_sagas.operate.redact import MARK
from celery_sagas.operate.spans import span
from celery_sagas.operate.view import author_of, began_with, changed_with, property_of, state_of, view_of
from celery_sagas.operate.waits import Row, is_shown, row_of, waits_of
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import KEY, DeadLetter, Lookup

#: How many lines a section has, and how many characters a value.
_LINES: Final = 10
_FIELDS: Final = 40
_VALUE: Final = 200
_DOT: Final = " · "


@click.command()
@click.argument("name", metavar="SAGA")
@click.argument("key", nargs=-1, metavar="[KEY]...")
@click.option("--id", metavar="ID", help="The instance with this id.")
@click.option("--by", metavar="FIELD=VALUE", help="The instance with this value of a field in also_by, or in search_by.")
@click.option("--all", "everything", is_flag=True, help="Leave nothing out, however long it is.")
@tables.LOCAL
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with everything that is known.")
@click.pass_context
def show(
    context: click.Context, name: str, key: tuple[str, ...], id: str | None, by: str | None, everything: bool, as_json: bool
) -> None:
    """Show one instance: why it does not go on, or for what it waits; the command that helps; its state.

    The key of several parts has a word for each, or is their JSON array, such as '["eu","42"]'. What is
    hidden is shown as three dots: see saga_hidden.
    """
    with opened(context) as runtime:
        saga = saga_named(name)
        backend, hidden = runtime.backends.of(saga), runtime.settings.hidden
        lookup = lookup_for(backend, saga, key, id, by)
        facts = read_facts(runtime, saga, lookup)
        if facts is None:
            refuse_missing(backend, saga, lookup)
        if as_json:
            tables.print_json([view_of(facts, explain(facts), hidden)])
        else:
            facts = replace(facts, zone=tables.zone())
            page = _Page(facts, explain(facts), state_of(facts, hidden), everything)
            click.echo("\n".join(tables.line(line) if line else "" for line in page.lines()))


def refuse_missing(backend: Backend, saga: SagaDefinition, lookup: Lookup) -> NoReturn:
    """Say that there is no such instance, and whether there was one.

    Raises:
        ClickException: Always.
    """
    if lookup.property != KEY:
        property = "id" if lookup.property not in saga.also_by else lookup.property
        raise click.ClickException(f"there is no {saga.name} with the {property} {tables.line(lookup.value)}")
    subject = f"{saga.name} {tables.line(lookup.value)}"
    entry = backend.journal.outcome_of(saga.names, lookup.value)
    if entry is None:
        sentence = f"there is no {subject}, and the journal knows none that has completed"
        raise click.ClickException(unknown(backend, saga, lookup, sentence))
    at, timeline = entry.at, tables.line(timeline_of(saga.name, lookup.value).command)
    ended = f"one completed {span(backend.outbox.time() - at)} ago, at {tables.time(at)}, with {tables.line(entry.step)}"
    raise click.ClickException(f"there is no {subject} now; {ended}. Show what it handled: {timeline}")


class _Page:
    """What is shown of an instance. Sections are bounded, unless everything is asked for."""

    def __init__(self, facts: Facts, explanation: Explanation, state: Any, everything: bool) -> None:
        self._facts = facts
        self._explanation = explanation
        self._state = state
        self._everything = everything

    def lines(self) -> Iterator[str]:
        """Yield the lines; stored text in them is as it is, without line ends."""
        facts = self._facts
        yield from self._headlines()
        yield from ("", self._explanation.sentence)
        for each in self._explanation.remedies:
            yield f"  → {each.command}    {each.does}"
        yield ""
        if facts.pending is not None:
            yield from self._section("Waits for", list(waits_of(facts, facts.pending)), "nothing")
        if facts.record is not None:
            rows = [_short(row_of(facts, row)) for row in facts.rows.values() if is_shown(facts, row)]
            yield from self._section("Outbox", rows, "nothing is due")
        yield from self._section("Dead letters", list(map(_dead_letter, facts.dead_letters)), "none")
        if facts.record is not None and facts.record.locked_by:
            yield "Locked"
        yield from self._steps(facts.next_steps)
        yield from self._fields()

    def _headlines(self) -> Iterator[str]:
        facts, record = self._facts, self._facts.record
        about = [f"{facts.saga.name} {facts.key or '-'}", self._explanation.verdict.value]
        if record is None:
            yield _DOT.join([*about, facts.instance_id])
            return
        size = f"{len(record.data.encode(errors='replace')):,} bytes"
        yield _DOT.join([*about, f"version {record.version}", record.id, f"schema {record.schema_version}", size])
        began, changed = began_with(facts), changed_with(facts)
        created_by, changed_by = (f" by {author_of(entry)}" if entry else "" for entry in (began, changed))
        created, changed_ago = tables.time(record.created_at), span(facts.now - record.updated_at)
        yield f"created {created}{created_by}; changed {changed_ago} ago{changed_by}"

    def _section(self, title: str, rows: Sequence[tables.Row], nothing: str) -> Iterator[str]:
        shown = rows if self._everything else rows[:_LINES]
        yield title if rows else f"{title}: {nothing}"
        yield from (f"  {line}" for line in tables.aligned(shown))
        yield from _rest(len(rows) - len(shown))

    def _steps(self, steps: Sequence[StepDefinition]) -> Iterator[str]:
        shown = steps if self._everything else steps[:_LINES]
        names = [step.name + (f" (by {property})" if (property := property_of(step)) else "") for step in shown]
        yield f"Goes on with: {_DOT.join(names) or 'nothing'}"
        yield from _rest(len(steps) - len(shown))

    def _fields(self) -> Iterator[str]:
        if not isinstance(self._state, Mapping):
            yield "State: it cannot be shown" if self._state is None else f"State: {self._value(self._state)}"
            return
        fields = list(self._state.items())
        shown = fields if self._everything else fields[:_FIELDS]
        yield "State"
        yield from (f"  {line}" for line in tables.aligned([(tables.short(name), self._value(value)) for name, value in shown]))
        yield from _rest(len(fields) - len(shown))

    def _value(self, value: Any) -> str:
        """Return a value of a state as JSON, or its beginning; the mark of a hidden one is no text of it."""
        text = value if value == MARK else json.dumps(value, ensure_ascii=False)
        if self._everything or len(text) <= _VALUE:
            return text
        return f"{text[:_VALUE]}… ({len(text):,} characters)"


def _short(row: Row) -> tables.Row:
    """Return a row of the outbox with the beginning of its error."""
    return *row[:-1], tables.short(row[-1])


def _dead_letter(dead_letter: DeadLetter) -> tables.Row:
    return dead_letter.id, tables.time(dead_letter.at), dead_letter.task, dead_letter.error


def _rest(count: int) -> Iterator[str]:
    if count > 0:
        yield f"  … {count:,} more; --all shows them"
