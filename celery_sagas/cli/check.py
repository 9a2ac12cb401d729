"""``celery sagas check``: whether this code can go on with the instances that are stored."""

import time
from collections.abc import Callable, Sequence
from typing import Final

import click

from celery_sagas.cli import tables
from celery_sagas.cli.acts import ACTOR, operator_for
from celery_sagas.cli.app import opened, saga_named
from celery_sagas.cli.each import interruptible
from celery_sagas.core.registry import registry
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.engine.acts.acting import Done
from celery_sagas.engine.instance import lookup_in
from celery_sagas.errors import SagaError, SagaNotFound
from celery_sagas.operate.checking import Checked, Problem, check_instances, unknown_tasks
from celery_sagas.operate.instance import OperatedInstance
from celery_sagas.stores.records import ID
from celery_sagas.worker.runtime import Runtime

#: Seconds between two lines about the progress.
_PROGRESS_S: Final = 2.0


@click.command()
@click.argument("name", metavar="[SAGA]", required=False)
@click.option("--after", metavar="CURSOR", default="", help="Go on with an earlier run, which has named it.")
@click.option("--upgrade", is_flag=True, help="Store those of an older form as this code stores them.")
@click.option("--rewrite", is_flag=True, help="Store all again, as saga_codec encodes them now.")
@click.option("--reason", metavar="TEXT", help="Why, for --upgrade and --rewrite: the journal and the audit keep it.")
@ACTOR
@click.option("--json", "as_json", is_flag=True, help="One JSON object in each line.")
@click.pass_context
def check(
    context: click.Context,
    name: str | None,
    after: str,
    upgrade: bool,
    rewrite: bool,
    reason: str | None,
    actor: str | None,
    as_json: bool,
) -> None:
    """Check that this code can go on with the live instances of a saga, or of all sagas.

    Each is loaded, upgraded, validated and encoded, and the steps must be there that what it waits for goes to. It names those
    that would fail, with the field, never a value; the exit status is 1 then. Nothing is written without --upgrade or --rewrite.
    Ctrl-C ends it after the instance at hand.
    """
    if after and name is None:
        raise click.UsageError("--after goes on with one saga: name it")
    if (upgrade or rewrite) and reason is None:
        raise click.UsageError("say why it is written: --reason")
    with opened(context) as runtime:
        sagas = [saga_named(name)] if name is not None else list(registry.sagas.values())
        act = _act_of(runtime, actor, reason or "", always=rewrite) if upgrade or rewrite else None
        run = _Run(runtime, act, always=rewrite, as_json=as_json)
        with interruptible(run):
            sound = [run.check(saga, after) for saga in sagas if not run.is_stopped]
        if name is None and not run.is_stopped:
            _tell_unknown(runtime)
    if run.is_stopped or not all(sound):
        raise click.exceptions.Exit(1)


#: Upgrades the instance with an id.
_Upgrade = Callable[[SagaDefinition, str], Done]


def _act_of(runtime: Runtime, actor: str | None, reason: str, *, always: bool) -> _Upgrade:
    operator = operator_for(runtime, actor, reason)
    return lambda saga, id: OperatedInstance(operator, saga, lookup_in(saga, ID, id)).upgrade(reason, always=always)


class _Run:
    """Looks at the instances of one saga after the other."""

    def __init__(self, runtime: Runtime, upgrade: _Upgrade | None, *, always: bool, as_json: bool) -> None:
        self.is_stopped = False
        self._runtime = runtime
        self._upgrade = upgrade
        self._always = always
        self._as_json = as_json
        self._counts: dict[str, int] = {}
        self._after = ""

    def check(self, saga: SagaDefinition, after: str) -> bool:
        """Look at the instances of a saga that come after a place; return whether none fails."""
        self._counts, self._after = {"checked": 0, "failed": 0, "old": 0, "written": 0}, after
        is_whole = False
        try:
            is_whole = self._check_each(saga, after)
        except ValueError as exc:
            raise click.BadParameter(tables.line(str(exc)), param_hint="--after") from exc
        finally:
            self._report(saga, is_whole=is_whole)
        return not self._counts["failed"]

    def _check_each(self, saga: SagaDefinition, after: str) -> bool:
        """Look at them until it is stopped; return whether it was not."""
        told_at = time.monotonic()
        for checked in check_instances(self._runtime, saga, after):
            self._one(saga, checked)
            self._after = checked.place or self._after
            if self.is_stopped:
                return False
            if time.monotonic() - told_at > _PROGRESS_S:
                told_at = time.monotonic()
                cursor = f", --after {tables.line(self._after)}" if self._after else ""
                click.echo(f"{saga.name}: {self._counts['checked']:,} checked{cursor}", err=True)
        return True

    def _one(self, saga: SagaDefinition, checked: Checked) -> None:
        problems: Sequence[Problem] = checked.problems
        self._counts["checked"] += 1
        self._counts["old"] += checked.is_old
        if self._upgrade is not None and not problems and (checked.is_old or self._always):
            problems = self._written(self._upgrade, saga, checked)
        self._counts["failed"] += bool(problems)
        for problem in problems:
            self._print(checked, problem)

    def _written(self, upgrade: _Upgrade, saga: SagaDefinition, checked: Checked) -> Sequence[Problem]:
        """Store an instance in today's form; return why that failed."""
        try:
            self._counts["written"] += upgrade(saga, checked.id).changed
        except SagaNotFound:  # it has ended meanwhile
            pass
        except SagaError as exc:
            return [Problem("", str(exc))]
        return []

    def _print(self, checked: Checked, problem: Problem) -> None:
        if self._as_json:
            about = {"saga": checked.saga, "key": checked.key, "id": checked.id}
            tables.print_json([{**about, "path": problem.path, "problem": problem.text}])
            return
        path = f"{problem.path}: " if problem.path else ""
        click.echo(tables.line(f"{checked.saga} {checked.key or checked.id}: {path}{problem.text}"))

    def _report(self, saga: SagaDefinition, *, is_whole: bool) -> None:
        """Print the counts, and how to go on."""
        if self._as_json:
            tables.print_json([{"saga": saga.name, **self._counts, "after": "" if is_whole else self._after}])
        else:
            click.echo(f"{saga.name}: {_counted(self._counts, has_written=self._upgrade is not None)}.")
        if not is_whole and self._after:
            click.echo(f"Go on with: check {saga.name} --after {tables.line(self._after)}", err=True)


def _counted(counts: dict[str, int], *, has_written: bool) -> str:
    written = f", {counts['written']:,} stored again" if has_written else ""
    return f"{counts['checked']:,} checked, {counts['failed']:,} would fail, {counts['old']:,} of an older form{written}"


def _tell_unknown(runtime: Runtime) -> None:
    """Say on the standard error to which tasks messages are due that the app does not have."""
    for backend in runtime.backends:
        for task, count in unknown_tasks(runtime, backend).most_common(20):
            messages = "1 message is" if count == 1 else f"{count:,} messages are"
            why = "which this app does not have: is it that of another service?"
            click.echo(tables.line(f"{messages} due to {task}, {why}"), err=True)
