"""``celery sagas timeline``: what an instance has handled, as the journal has it."""

import json
from collections.abc import Iterator
from itertools import repeat
from typing import Any, Final

import click

from celery_sagas.cli import tables
from celery_sagas.cli.addresses import key_text, unknown
from celery_sagas.cli.app import opened, saga_named
from celery_sagas.engine.instance import lookup_in
from celery_sagas.operate.changes import Changed, changed_in, with_values
from celery_sagas.operate.entries import facts_of, names_of, outcome_of, sent_with
from celery_sagas.operate.redact import MARK
from celery_sagas.stores.records import KEY, Entry

_COLUMNS: Final = ("AT", "STEP", "OUTCOME", "VERSION", "CHANGED", "SENT")
#: How many characters of a value are shown.
_VALUE: Final = 200


@click.command()
@click.argument("name", metavar="SAGA")
@click.argument("words", nargs=-1, required=True, metavar="KEY...")
@click.option("--all", "everything", is_flag=True, help="Also what other instances had handled that had this key before.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="The newest, at most.")
@click.option("--values", is_flag=True, help='The values of changed fields, too, if the saga keeps them: history="values".')
@tables.LOCAL
@click.option("--json", "as_json", is_flag=True, help="One JSON object in each line.")
@click.pass_context
def timeline(
    context: click.Context, name: str, words: tuple[str, ...], everything: bool, limit: int, values: bool, as_json: bool
) -> None:
    """Show what the newest instance with a key has handled, in order: while the journal remembers it, also when it has ended.

    The key of several parts has a word for each, or is their JSON array, such as '["eu","42"]'. What is hidden is shown as three
    dots: see saga_hidden.
    """
    with opened(context) as runtime:
        saga = saga_named(name)
        key, backend = key_text(saga, words), runtime.backends.of(saga)
        entries = backend.journal.history(saga.names, key, limit)
        if not entries:
            sentence = f"the journal has nothing about {saga.name} {tables.line(key)}: nothing came, or it was purged"
            raise click.ClickException(unknown(backend, saga, lookup_in(saga, KEY, key), sentence))
        ids = list(dict.fromkeys(entry.instance_id for entry in reversed(entries) if entry.instance_id))
        shown = entries if everything or not ids else [entry for entry in entries if entry.instance_id in ("", ids[0])]
        hidden = runtime.settings.hidden
        changes = [with_values(saga, entry, hidden) if values else changed_in(entry) for entry in shown]
    if as_json:
        tables.print_json(map(_facts, shown, changes, repeat(values)))
        return
    header, *lines = tables.aligned([_COLUMNS, *map(_row, shown, changes)])
    click.echo(header)
    for line, changed in zip(lines, changes, strict=True):
        click.echo("\n".join([line, *(f"  {each}" for each in _values(changed))]))
    if len(shown) < len(entries):
        click.echo(f"{len(entries) - len(shown):,} entries of earlier instances with this key are left out; --all shows them.")


def _row(entry: Entry, changed: Changed | None) -> tables.Row:
    sent = ", ".join(sent_with(entry)) or "-"
    return tables.time(entry.at), entry.step, outcome_of(entry), str(entry.version or "-"), names_of(changed), sent


def _facts(entry: Entry, changed: Changed | None, has_values: bool) -> dict[str, Any]:
    facts = facts_of(entry)
    if changed and has_values:
        facts["changed"]["values"] = {name: value._asdict() for name, value in changed.values.items()}
    return facts


def _values(changed: Changed | None) -> Iterator[str]:
    """Yield a line for each changed field whose values are known."""
    for name, value in changed.values.items() if changed else ():
        before, after = _value(value.before, value.before_size), _value(value.after, value.after_size)
        yield tables.line(f"{tables.short(name)}: {before} → {after}")


def _value(value: Any, size: int) -> str:
    """Return a value as JSON, or its beginning; of one that was not kept, the size."""
    if size:
        return f"({size:,} bytes)"
    text = value if value == MARK else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _VALUE else f"{text[:_VALUE]}… ({len(text):,} characters)"
