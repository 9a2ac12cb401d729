"""``celery sagas rename``: the instances that are stored under former names of their sagas (``formerly=``)."""

import time
from collections.abc import Iterator, Sequence

import click

from celery_sagas.cli import tables
from celery_sagas.cli.app import opened
from celery_sagas.core.registry import registry
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.stores.ports import SagaStore
from celery_sagas.stores.records import Renamed

#: Instances to move at once.
_BATCH = 100
#: Seconds between two lines that show operators that it works.
_REPORT_S = 1.0
#: The most instances that are listed as left.
_LISTED = 20
_COLUMNS = ("SAGA", "FORMERLY", "LEFT")


@click.command()
@click.argument("names", nargs=-1, metavar="[SAGA]...")
@click.option("--all", "everything", is_flag=True, help="All sagas that have former names.")
@click.option("--json", "as_json", is_flag=True, help="Show what is left as one JSON object in each line.")
@click.pass_context
def rename(context: click.Context, names: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Move the instances of sagas from their former names (formerly=) to their present name.

    Without a name, show how many are left. Move them once every worker runs code that knows the new name: older code no longer
    finds them. Workers may continue meanwhile; after an interruption, run it again.
    """
    if names and everything:
        raise click.UsageError("name sagas, or give --all")
    if as_json and (names or everything):
        raise click.UsageError("--json shows what is left: give it without sagas and --all")
    with opened(context) as runtime:
        chosen = [(runtime.backends.of(saga).sagas, saga) for saga in _chosen(names)]
        if names or everything:
            left = [_move(store, saga.name, former) for store, saga in chosen for former in saga.formerly]
            if any(left):
                raise click.exceptions.Exit(1)
        else:
            _show(chosen, as_json=as_json)


def _chosen(names: Sequence[str]) -> list[SagaDefinition]:
    renamed = {saga.name: saga for saga in registry.sagas.values() if saga.formerly}
    if unknown := sorted(set(names) - renamed.keys()):
        known = ", ".join(renamed) or "none"
        raise click.ClickException(
            f"no saga {', '.join(map(tables.line, unknown))} has former names (formerly=); those that have: {known}"
        )
    return [saga for name, saga in renamed.items() if not names or name in names]


def _show(chosen: Sequence[tuple[SagaStore, SagaDefinition]], *, as_json: bool) -> None:
    left = [(saga.name, *counted) for store, saga in chosen for counted in store.count(saga.formerly).items()]
    if as_json:
        tables.print_json([{"saga": saga, "formerly": former, "left": count} for saga, former, count in left])
    else:
        tables.print_table(_COLUMNS, [(saga, former, f"{count:,}") for saga, former, count in left], "No saga has former names.")


def _move(store: SagaStore, name: str, former: str) -> int:
    """Move all instances from a former name, and return how many are left under it."""
    total, moved, conflicts = store.count([former])[former], 0, dict[str, str]()
    next_report = time.monotonic() + _REPORT_S
    for renamed in _batches(store, name, former):
        moved += renamed.moved
        conflicts.update(renamed.conflicts)
        if renamed.after and time.monotonic() >= next_report:
            next_report = time.monotonic() + _REPORT_S
            click.echo(f"{name}: {moved:,} of {total:,} instances were moved from {former}.")
    left = store.count([former])[former]
    click.echo(f"{name}: {_instances(moved)} moved from {former}, {left:,} {'is' if left == 1 else 'are'} left.")
    if left:
        click.echo(f"Error: {_why(name, former, conflicts)}", err=True)
    return left


def _batches(store: SagaStore, name: str, former: str) -> Iterator[Renamed]:
    renamed = store.rename(name, former, _BATCH)
    yield renamed
    while renamed.after:
        renamed = store.rename(name, former, _BATCH, renamed.after)
        yield renamed


def _why(name: str, former: str, conflicts: dict[str, str]) -> str:
    """Return why instances are left, and how to resolve it."""
    if not conflicts:
        return f"workers with older code still make instances under {former}: replace them, and run this again"
    shown = [f"  {tables.line(key)} (id {tables.line(id)})" for id, key in list(conflicts.items())[:_LISTED]]
    more = [f"  and {len(conflicts) - _LISTED:,} more"] if len(conflicts) > _LISTED else []
    reason = (
        f"another instance under {name} has one of the keys of each of these, or they cannot be read. Have the other one "
        "complete (find() returns it by the key, and the one that is left by id=), or deploy code that can read these, and run "
        "this again:"
    )
    return "\n".join([reason, *shown, *more])


def _instances(count: int) -> str:
    return "1 instance was" if count == 1 else f"{count:,} instances were"
