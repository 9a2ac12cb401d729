"""``celery sagas graph``: the graph of a saga, in several formats, and what an instance has to do with its steps."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import click

from celery_sagas.cli import tables
from celery_sagas.cli.addresses import key_text, unknown
from celery_sagas.cli.app import defined, opened, saga_named
from celery_sagas.core.graph.checks import warnings_of
from celery_sagas.core.graph.drawing import as_json, dot, drawing_of, mermaid, text
from celery_sagas.core.graph.marks import Marks, awaited_steps, marks_of
from celery_sagas.core.graph.model import SagaGraph
from celery_sagas.core.registry import registry
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.engine.instance import lookup_in, pending_of
from celery_sagas.errors import NewerState, UnreadableState
from celery_sagas.operate.graphs import registered_graph, taken_steps
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import KEY, Record

#: What each format makes of a graph, perhaps with marks.
FORMATS: Final[Mapping[str, Callable[[SagaGraph, Marks | None], str]]] = {
    "mermaid": lambda graph, marks: mermaid(drawing_of(graph, marks)),
    "dot": lambda graph, marks: dot(drawing_of(graph, marks)),
    "text": text,
    "json": lambda graph, marks: as_json(drawing_of(graph, marks)),
}
#: How far back the journal is read.
_ENTRIES: Final = 10_000


@click.command()
@click.argument("names", nargs=-1, metavar="[SAGA]...")
@click.option(
    "--format", "form", type=click.Choice(list(FORMATS)), default="text", show_default=True, help="text, mermaid, dot or json."
)
@click.option("--of", "key", metavar="KEY", help="Mark what the newest instance with this key has done, and what it waits for.")
@click.pass_context
def graph(context: click.Context, names: tuple[str, ...], form: str, key: str | None) -> None:
    """Draw sagas, from their declarations and their handlers' code; all of them, or those named.

    With --of, each step is marked that the instance has taken, as far as the journal remembers it, and each that a timeout or the
    outcome of a request may bring. The key of several parts is their JSON array, such as '["eu","42"]'.
    """
    if key is None:
        with defined(context):
            print_graphs([saga_named(name) for name in names or registry.sagas], form)
        return
    if len(names) != 1:
        raise click.UsageError("name one saga with --of")
    with opened(context) as runtime:
        saga = saga_named(names[0])
        print_graphs([saga], form, lambda graph: _marks(graph, runtime.backends.of(saga), saga, key_text(saga, [key])))


def print_graphs(sagas: Sequence[SagaDefinition], form: str, marks: Callable[[SagaGraph], Marks | None] = lambda _: None) -> None:
    """Print the graphs of sagas, with an empty line between them but in JSON, and on the standard error what is suspect."""
    graphs = list(map(registered_graph, sagas))
    shown = [FORMATS[form](graph, marks(graph)) for graph in graphs]
    click.echo(("\n" if form == "json" else "\n\n").join(shown) or "No sagas are defined in the modules that the app imports.")
    for warning in (each for graph in graphs for each in warnings_of(graph)):
        click.echo(f"Warning: {warning}", err=True)


def _marks(graph: SagaGraph, backend: Backend, saga: SagaDefinition, key: str) -> Marks:
    """Return the marks for the newest instance with a key, which may have ended."""
    lookup = lookup_in(saga, KEY, key)
    record = backend.sagas.find(lookup).record
    entries = backend.journal.history(saga.names, key, _ENTRIES)
    id = record.id if record else next((entry.instance_id for entry in reversed(entries) if entry.instance_id), "")
    if not id:
        sentence = f"there is no {saga.name} {tables.line(key)}, and the journal remembers none"
        raise click.ClickException(unknown(backend, saga, lookup, sentence))
    return marks_of(graph, taken_steps(entries, id), _awaited(record) if record else ())


def _awaited(record: Record) -> Iterator[str]:
    try:
        yield from awaited_steps(pending_of(record))
    except (NewerState, UnreadableState) as exc:
        why = "newer code has written it" if isinstance(exc, NewerState) else "its pending map is damaged"
        click.echo(f"Warning: what the instance waits for is not marked: {why}", err=True)
