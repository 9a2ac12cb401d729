"""``celery sagas pause``, ``resume``, ``terminate``, ``patch``, ``fire``, ``skip``, ``answer``: acts on one instance."""

import functools
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Self

import click

from celery_sagas.cli import tables
from celery_sagas.cli.addresses import lookup_for, suggesting
from celery_sagas.cli.app import opened, saga_named
from celery_sagas.cli.options import Command, adding
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.engine.acts.acting import REASON_CHARACTERS, Done
from celery_sagas.errors import InvalidState
from celery_sagas.operate.actors import checked_text, default_actor
from celery_sagas.operate.difference import difference
from celery_sagas.operate.instance import OperatedInstance
from celery_sagas.operate.operator import Operator
from celery_sagas.operate.patching import finite, patched, restored_fields
from celery_sagas.operate.redact import redacted
from celery_sagas.worker.runtime import Runtime

#: What a file of a state may have at most, in characters.
_FILE: Final = 100_000_000
_ID = click.option("--id", metavar="ID", help="The instance with this id.")
_BY = click.option("--by", metavar="FIELD=VALUE", help="The instance with this value of a field in also_by, or in search_by.")
REASON = click.option("--reason", required=True, metavar="TEXT", help="Why: the journal and the audit keep it.")
ACTOR = click.option("--actor", metavar="NAME", help="Who acts; the user of this machine, if it is left out.")
_VERSION = click.option("--expect-version", type=click.IntRange(min=1), help="Act only on this version of the instance.")
DRY_RUN = click.option("--dry-run", is_flag=True, help="Say what would be done, and write nothing.")
JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object.")


def _about(words: str) -> Callable[[Command], Command]:
    """Return a decorator that adds what each act is given; the words name the instance, and what it is about."""
    argument = click.argument("words", nargs=-1, required=True, metavar=words)
    return adding(argument, _ID, _BY, REASON, ACTOR, _VERSION, DRY_RUN, JSON)


class _Given(NamedTuple):
    """What each act is given."""

    saga: str
    key: tuple[str, ...]  #: its words; empty: it is named otherwise
    argument: str  #: behind the key; empty: it takes none
    id: str | None
    by: str | None
    reason: str
    actor: str | None
    expect_version: int | None
    dry_run: bool
    as_json: bool

    @classmethod
    def read(cls, words: tuple[str, ...], argument: str = "", **options: Any) -> Self:
        """Read what a command line has; the argument is the last word, behind all words of the key.

        Raises:
            UsageError: There are too few words, or too many for an instance that is not named by its key.
        """
        is_by_key = options["id"] is None and options["by"] is None
        wanted = ["SAGA", *["KEY"] * is_by_key, *[argument] * bool(argument)]
        if len(words) < len(wanted) or (len(words) > len(wanted) and not is_by_key):
            name = "name the instance once: by its KEY, by --id, or by --by FIELD=VALUE"
            raise click.UsageError(f"give {' '.join(wanted)}, and {name}")
        saga, *rest = words
        last = rest.pop() if argument else ""
        return cls(saga, tuple(rest), last, **options)

    @property
    def which(self) -> str:
        """How the instance is named."""
        return " ".join(self.key) or self.id or self.by or ""


@click.command()
@_about("SAGA [KEY]...")
@click.pass_context
def pause(context: click.Context, /, **options: Any) -> None:
    """Have all messages to an instance wait until it is resumed, also timeouts and answers.

    At most 100 wait with it; others are redelivered later. A message that is being handled at this moment is handled before, or
    waits. A pause stops no clock: what is due meanwhile comes when the instance is resumed.
    """
    given = _Given.read(**options)
    _act(context, given, lambda instance: instance.pause(given.reason, expected_version=given.expect_version))


@click.command()
@_about("SAGA [KEY]...")
@click.pass_context
def resume(context: click.Context, /, **options: Any) -> None:
    """Have a paused instance go on: the messages that waited are sent, in the order of their arrival."""
    given = _Given.read(**options)
    _act(context, given, lambda instance: instance.resume(given.reason, expected_version=given.expect_version))


@click.command()
@_about("SAGA [KEY]...")
@click.option(
    "--as",
    "as_what",
    type=click.Choice(["failed", "completed"]),
    default="failed",
    show_default=True,
    help="What whoever waits for its answer is told: a failure, or the answer null, as of one that a step has completed.",
)
@click.option("--leave-undone", is_flag=True, help="End it although something that it has done could be undone.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def terminate(context: click.Context, /, as_what: str, leave_undone: bool, yes: bool, **options: Any) -> None:
    """End an instance where it stands: none of its steps runs, and its timeouts end with it."""
    given = _Given.read(**options)
    if not (yes or given.dry_run):
        click.confirm(f"End {tables.line(given.saga)} {tables.line(given.which)} for good?", abort=True, err=True)

    def act(instance: OperatedInstance) -> Done:
        how = {"as_completed": as_what == "completed", "leave_undone": leave_undone}
        return instance.terminate(given.reason, **how, expected_version=given.expect_version)

    _act(context, given, act)


@click.command()
@_about("SAGA [KEY]...")
@click.option("--set", "values", multiple=True, metavar="PATH=JSON", help="Set a value, such as lines.0.count=2.")
@click.option("--unset", "removed", multiple=True, metavar="PATH", help="Remove a value.")
@click.option("--file", type=click.File("r", encoding="utf-8"), help="Take all fields from a JSON object.")
@click.option("--edit", is_flag=True, help="Edit the fields as JSON, with $EDITOR.")
@click.pass_context
def patch(
    context: click.Context, /, values: tuple[str, ...], removed: tuple[str, ...], file: Any, edit: bool, **options: Any
) -> None:
    """Change the state of an instance, which must be valid then. The correlation key stays.

    It prints the difference. What is hidden is shown as three dots, and stays as it is where these are left.
    """
    given = _Given.read(**options)
    if [bool(values or removed), file is not None, edit].count(True) != 1:
        raise click.UsageError("give --set and --unset, or --file, or --edit")
    if file is not None and given.expect_version is None:
        raise click.UsageError("--file has all fields: say of which version they are, with --expect-version")
    with opened(context) as runtime:
        saga = saga_named(given.saga)
        hide = functools.partial(redacted, saga, patterns=runtime.settings.hidden)
        change = _change_of(hide, dict(map(_assignment, values)), removed, file)
        try:
            with _instance(runtime, saga, given) as instance:
                done = instance.patch(given.reason, change=change, expected_version=given.expect_version)
        except InvalidState as exc:
            kept = f" {change.kept()}" if isinstance(change, _Edit) else ""
            raise click.ClickException(f"{tables.sentence(str(exc))}{kept}") from exc
        except ValueError as exc:
            raise click.ClickException(tables.sentence(str(exc))) from exc
        if not given.as_json:
            for line in difference(*(hide(json.loads(text)) for text in (done.before, done.after))):
                click.echo(tables.line(line))
        _print(given, "patch", done)


def _change_of(
    hide: Callable[[Any], Any], values: Mapping[str, Any], removed: tuple[str, ...], file: Any
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return what a patch makes of the stored fields."""
    if values or removed:
        return functools.partial(patched, values=values, removed=removed)
    if file is None:
        return _Edit(hide)
    whole = _object(file.read(_FILE))
    return functools.partial(restored_fields, whole)


@click.command()
@_about("SAGA [KEY]... NAME")
@click.pass_context
def fire(context: click.Context, /, **options: Any) -> None:
    """Have a timeout, or the deadline of a request, come now: the first time, or again.

    It is handled once, however often it comes. Of a series it is the next occurrence. NAME is the name of the timeout, the id of
    the request, or its task.
    """
    given = _Given.read(argument="NAME", **options)
    _act(context, given, lambda instance: instance.fire(given.argument, given.reason, expected_version=given.expect_version))


@click.command()
@_about("SAGA [KEY]... NAME")
@click.pass_context
def skip(context: click.Context, /, **options: Any) -> None:
    """Have an instance no longer wait for a timeout, or for the answer to a request.

    NAME is the name of the timeout, the id of the request, or its task.
    """
    given = _Given.read(argument="NAME", **options)
    _act(context, given, lambda instance: instance.skip(given.argument, given.reason, expected_version=given.expect_version))


@click.command()
@_about("SAGA [KEY]... REQUEST")
@click.option("--value", metavar="JSON", help="The answer.")
@click.option("--fail", metavar="TEXT", help="Instead, have the request fail, with this text.")
@click.option("--argument", "arguments", multiple=True, metavar="NAME=JSON", help="What the step takes besides.")
@click.pass_context
def answer(context: click.Context, /, value: str | None, fail: str | None, arguments: tuple[str, ...], **options: Any) -> None:
    """Answer a request in the place of the task that was asked, whose own answer changes nothing any more.

    REQUEST is its id, or its task.
    """
    given = _Given.read(argument="REQUEST", **options)
    if (value is None) == (fail is None):
        raise click.UsageError("give --value or --fail")
    others, version = dict(map(_assignment, arguments)), given.expect_version

    def act(instance: OperatedInstance) -> Done:
        if fail is not None:
            return instance.fail(given.argument, fail, given.reason, arguments=others, expected_version=version)
        sent = json_value("--value", value)
        return instance.answer(given.argument, sent, given.reason, arguments=others, expected_version=version)

    _act(context, given, act, "answer" if fail is None else "fail")


def _act(context: click.Context, given: _Given, act: Callable[[OperatedInstance], Done], verb: str = "") -> None:
    """Act on the instance that is named, and print what has come of it."""
    with opened(context) as runtime:
        with _instance(runtime, saga_named(given.saga), given) as instance:
            done = act(instance)
        _print(given, verb or str(context.info_name), done)


def operator_for(runtime: Runtime, actor: str | None, reason: str, *, dry_run: bool = False) -> Operator:
    """Return the operator that a command line names, or else the user of this machine.

    Raises:
        UsageError: The name, or the reason, cannot be kept.
    """
    try:
        checked_text("reason", reason, REASON_CHARACTERS)
        return Operator(runtime.app, default_actor() if actor is None else actor, dry_run=dry_run)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc


def facts_of(done: Done) -> dict[str, Any]:
    """Return what a program is told of what has come of an act: not the states, which may be hidden."""
    return {name: value for name, value in done._asdict().items() if name not in ("before", "after")}


@contextmanager
def _instance(runtime: Runtime, saga: SagaDefinition, given: _Given) -> Iterator[OperatedInstance]:
    """Give the instance that is named; if there is none, say how it may be named."""
    operator = operator_for(runtime, given.actor, given.reason, dry_run=given.dry_run)
    backend = runtime.backends.of(saga)
    lookup = lookup_for(backend, saga, given.key, given.id, given.by)
    with suggesting(backend, saga, lookup):
        yield OperatedInstance(operator, saga, lookup)


def _print(given: _Given, verb: str, done: Done) -> None:
    if given.as_json:
        tables.print_json([{"act": verb, "dry_run": given.dry_run, **facts_of(done)}])
        return
    subject = f"{done.saga} {done.key or done.id}"
    if done.changed:
        text = f"{subject} {done.text} (version {done.version})."
    elif done.planned:
        text = f"{subject} {done.text}: this is a dry run, and nothing was written."
    else:
        text = f"{subject}: nothing to be done, {done.text}."
    click.echo(tables.line(text))


def _assignment(text: str) -> tuple[str, Any]:
    path, separator, value = text.partition("=")
    if not separator or not path:
        raise click.UsageError(f"{tables.line(text)} is no assignment such as total=12 or city='\"Oslo\"'")
    return path, json_value(path, value)


def json_value(what: str, text: str | None) -> Any:
    """Return the value of JSON that an option has.

    Raises:
        UsageError: It is none.
    """
    try:
        return finite(json.loads(text or ""))
    except (ValueError, RecursionError) as exc:
        raise click.UsageError(f"{what}: {tables.line(text or '')} is no JSON; a text needs quotes, as in '\"Oslo\"'") from exc


def _object(text: str) -> dict[str, Any]:
    try:
        value = finite(json.loads(text))
    except (ValueError, RecursionError) as exc:
        raise click.ClickException(f"it is no JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise click.ClickException("it is no JSON object")
    return value


class _Edit:
    """What a person makes of the stored fields in an editor. If it does not become the state, it is kept in a file."""

    def __init__(self, hide: Callable[[Any], Any]) -> None:
        self._hide = hide
        self._text: str | None = None

    def __call__(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the edited fields; refuse to edit them again, if a message has changed the instance meanwhile."""
        if self._text is not None:
            raise click.ClickException(f"a message has changed the instance meanwhile. {self.kept()}")
        self._text = click.edit(json.dumps(self._hide(fields), indent=2, ensure_ascii=False), extension=".json")
        if self._text is None:
            raise click.Abort
        try:
            return restored_fields(_object(self._text), fields)
        except (ValueError, click.ClickException) as exc:
            text = exc.format_message() if isinstance(exc, click.ClickException) else str(exc)
            raise click.ClickException(f"{tables.sentence(text)}. {self.kept()}") from exc

    def kept(self) -> str:
        """Keep the text in a file; return what is said of it."""
        with tempfile.NamedTemporaryFile("w", suffix=".json", prefix="patch-", delete=False, encoding="utf-8") as file:
            file.write(self._text or "")
        return f"Nothing was stored; your text is in {file.name}."
