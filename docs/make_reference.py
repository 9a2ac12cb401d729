"""Write reference.md from the source: ``python docs/make_reference.py``.

Signatures, docstrings and the comments of fields (``#:``) are read as text and never imported, so that the page is the same
whatever Python and libraries are installed, and shows what exists for type checkers alone. The commands are those of click.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

import click

from celery_sagas.cli import sagas

DOCS = Path(__file__).resolve().parent
PACKAGE = "celery_sagas"
#: Fields that are for the library alone, or shown otherwise.
HIDDEN = {"model_config", "sending", "retry"}
#: Characters of a signature that stand in one line.
WIDTH = 100

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Source:
    """A module, as text."""

    def __init__(self, name: str) -> None:
        path = DOCS.parent / Path(*name.split("."))
        self.path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        self.name, self.text = name, self.path.read_text(encoding="utf-8")
        self.lines, self.tree = self.text.splitlines(), ast.parse(self.text)

    @cached_property
    def names(self) -> dict[str, Any]:
        """What each name of the module stands for: of overloads the last, which is the implementation."""
        return {name: node for node in statements(self.tree.body) for name in bound_by(node)}

    def link(self) -> str:
        """Return a link to the file."""
        path = self.path.relative_to(DOCS.parent).as_posix()
        return f"[`{path}`](../{path})"

    def segment(self, node: ast.AST) -> str:
        """Return source text in one line; an annotation that is quoted, without the quotes."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        return re.sub(r"([\[(]) | (?=[\])])", r"\1", " ".join((ast.get_source_segment(self.text, node) or "").split()))

    def comment(self, node: ast.stmt) -> str:
        """Return the comment ``#:`` above a statement, or behind it."""
        above = node.lineno - 1
        while self.lines[above - 1].lstrip().startswith("#:"):
            above -= 1
        found = [line.strip() for line in self.lines[above : node.lineno - 1]]
        found += re.findall(r"  (#: .*)", self.lines[(node.end_lineno or node.lineno) - 1])
        return " ".join(line.removeprefix("#:").strip() for line in found)


class Found(NamedTuple):
    """What a name stands for, and in which module."""

    source: Source
    node: Any

    @property
    def path(self) -> str:
        """Module and name."""
        return ".".join((self.source.name, *bound_by(self.node)))


@cache
def source(name: str) -> Source:
    """Read a module once."""
    return Source(name)


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, those for type checkers among them, but nothing of an ``else``."""
    for node in body:
        yield from statements(node.body) if isinstance(node, ast.If) else [node]


def bound_by(node: ast.stmt) -> list[str]:
    """Return the names that a statement binds."""
    if isinstance(node, ast.ClassDef | Function):
        return [node.name]
    if isinstance(node, ast.ImportFrom):
        return [each.asname or each.name for each in node.names]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def find(module: str, name: str) -> Found | None:
    """Return what a name of a module stands for, wherever in the package it is defined."""
    node = source(module).names.get(name)
    if isinstance(node, ast.ImportFrom):
        inside = node.module is not None and node.module.startswith(PACKAGE)
        original = next(each.name for each in node.names if (each.asname or each.name) == name)
        return find(str(node.module), original) if inside else None
    return Found(source(module), node) if node else None


def require(module: str, name: str) -> Found:
    """Return what a name stands for.

    Raises:
        LookupError: The module has none.
    """
    found = find(module, name)
    if found is None:
        raise LookupError(f"{module} has no {name}: fix docs/make_reference.py")
    return found


def exported(module: str) -> list[str]:
    """Return the names in ``__all__``."""
    node = source(module).names["__all__"]
    return list(ast.literal_eval(node.value))


class Types:
    """What the annotations of the page name, so that it can be shown too."""

    def __init__(self) -> None:
        self.shown: set[str] = set()
        self.used: dict[str, Found] = {}

    def spell(self, of: Source, annotation: ast.AST) -> str:
        """Return an annotation, and remember what it names."""
        text = of.segment(annotation)
        for node in ast.walk(ast.parse(text, mode="eval")):
            if isinstance(node, ast.Name) and (found := find(of.name, node.id)) and not is_type_variable(found.node):
                self.used[found.path] = found
        return text


TYPES = Types()


def is_type_variable(node: ast.stmt) -> bool:
    """Whether a statement assigns what a call returns, such as a ``TypeVar``."""
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)


# ---- docstrings


def markdown(text: str) -> str:
    """Return the text of a docstring or a comment."""
    return text.replace("``", "`")


def cell(text: str) -> str:
    """Return a text that may stand in a table."""
    return text.replace("|", "\\|")


def docstring(node: ast.AST) -> str:
    """Return a docstring; empty if there is none."""
    return ast.get_docstring(node) or "" if isinstance(node, ast.ClassDef | Function | ast.Module) else ""


def summary(node: ast.AST) -> str:
    """Return the first line of a docstring."""
    return markdown(docstring(node).partition("\n")[0])


def described(text: str) -> Iterator[str]:
    """Yield a docstring: its paragraphs, and each of its parts as a list."""
    prose, *parts = re.split(r"^(Args|Returns|Raises|Yields):\n", text, flags=re.MULTILINE)
    yield markdown(prose.strip())
    for title, part in zip(parts[::2], parts[1::2], strict=True):
        yield f"**{title.replace('Args', 'Arguments')}**"
        yield "\n".join(listed(dedent(part), named=title in ("Args", "Raises")))


def listed(part: str, *, named: bool) -> Iterator[str]:
    """Yield the entries of a part, each in one line."""
    for entry in re.split(r"\n(?=\S)", part) if named else [part]:
        name, colon, text = entry.partition(": ") if named else ("", "", entry)
        yield (f"- `{name}`{colon}" if name else "") + markdown(" ".join(text.split()))


def code(text: str, language: str = "python") -> str:
    """Return a block of code."""
    return f"```{language}\n{text}\n```"


# ---- functions and classes


def parameters(of: Source, arguments: ast.arguments, *, bound: bool) -> list[str]:
    """Return each parameter as it is written, without ``self`` and ``cls``."""
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    shown = [parameter(of, each, default) for each, default in zip(positional, defaults, strict=True)]
    if arguments.posonlyargs:
        shown.insert(len(arguments.posonlyargs), "/")
    if arguments.vararg:
        shown.append("*" + parameter(of, arguments.vararg))
    elif arguments.kwonlyargs:
        shown.append("*")
    shown += [parameter(of, each, given) for each, given in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    shown += ["**" + parameter(of, arguments.kwarg)] if arguments.kwarg else []
    shown = shown[1:] if bound else shown
    return shown[1:] if shown[:1] == ["/"] else shown


def parameter(of: Source, each: ast.arg, default: ast.AST | None = None) -> str:
    """Return one parameter with its annotation and its default."""
    text = f"{each.arg}: {TYPES.spell(of, each.annotation)}" if each.annotation else each.arg
    if default is None:
        return text
    return f"{text}{' = ' if each.annotation else '='}{ast.get_source_segment(of.text, default)}"


def laid_out(before: str, shown: list[str], after: str = "") -> str:
    """Return a signature in one line, or in a line for each parameter."""
    line = f"{before}({', '.join(shown)}){after}"
    return line if len(line) <= WIDTH else f"{before}(\n" + "".join(f"    {each},\n" for each in shown) + f"){after}"


def signature(of: Source, node: Function, *, is_method: bool) -> str:
    """Return a function's signature, with the decorators that say how it is called."""
    marks = [each.id for each in node.decorator_list if isinstance(each, ast.Name) and each.id in ("classmethod", "property")]
    after = f" -> {TYPES.spell(of, node.returns)}" if node.returns else ""
    shown = parameters(of, node.args, bound=is_method)
    return "\n".join([*(f"@{mark}" for mark in marks), laid_out(f"def {node.name}", shown, after)])


def function(found: Found, name: str, *, level: str = "###", is_method: bool = False) -> Iterator[str]:
    """Yield a function or a method."""
    yield f"{level} `{name}`"
    yield code(signature(found.source, found.node, is_method=is_method))
    yield from described(docstring(found.node))


def members(found: Found) -> dict[str, Found]:
    """Return what a class has by its name, what it inherits from classes of the package at the end."""
    own = {name: Found(found.source, each) for each in statements(found.node.body) for name in bound_by(each)}
    for base in bases(found):
        own |= {name: each for name, each in members(base).items() if name not in own}
    return own


def bases(found: Found) -> list[Found]:
    """Return the base classes that are defined in the package."""
    named = [find(found.source.name, base.id) for base in found.node.bases if isinstance(base, ast.Name)]
    return [base for base in named if base and isinstance(base.node, ast.ClassDef)]


def whole_class(found: Found, name: str, facts: str = "") -> Iterator[str]:
    """Yield a class: how it is derived or made, its fields, its methods."""
    has = members(found)
    TYPES.shown |= {each.path for each in (found, *bases(found))}
    yield f"### `{name}`"
    yield code(head(found, has))
    yield facts
    yield from described(docstring(found.node))
    if made := made_by(has):
        yield from described(docstring(made.node))
    if fields := "\n".join(field_lines(has)):
        yield "**Fields**"
        yield fields
    for method, each in has.items():
        if isinstance(each.node, Function) and (not method.startswith("_") or method == "__call__"):
            yield from function(each, f"{name}.{method}", level="####", is_method=True)


def head(found: Found, has: dict[str, Found]) -> str:
    """Return the first line of a class; with the keywords of one that is derived from, and the arguments of one that is made."""
    keywords, before = has.get("__init_subclass__"), f"class {found.node.name}"
    if keywords:
        shown = parameters(keywords.source, keywords.node.args, bound=True)
        return laid_out("class Derived", [found.node.name, *shown[1:]])
    if made := made_by(has):
        return laid_out(before, parameters(made.source, made.node.args, bound=True))
    derived = ", ".join(found.source.segment(base) for base in found.node.bases if not is_internal(found.source, base))
    return f"{before}({derived})" if derived else before


def is_internal(source: Source, base: ast.expr) -> bool:
    """Return whether a base class is one of the package that users cannot import from it, and that has no entry here."""
    if not isinstance(base, ast.Name) or base.id in exported(PACKAGE):
        return False
    found = find(source.name, base.id)
    return found is not None and found.source.name != f"{PACKAGE}.errors"


def made_by(has: dict[str, Found]) -> Found | None:
    """Return the ``__init__`` that users call: it has a docstring."""
    found = has.get("__init__")
    return found if found and docstring(found.node) else None


def field_lines(has: dict[str, Found]) -> Iterator[str]:
    """Yield the fields of a class, those that are assigned in ``__init__`` among them."""
    for name, (of, node) in has.items():
        if not name.startswith("_") and name not in HIDDEN and isinstance(node, ast.AnnAssign | ast.Assign):
            yield field_line(of, node, name)
    made = made_by(has)
    for node in ast.walk(made.node) if made else ():
        if isinstance(node, ast.AnnAssign | ast.Assign) and (comment := made.source.comment(node)):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            yield field_line(made.source, node, made.source.segment(target).removeprefix("self."), comment)


def field_line(of: Source, node: ast.AnnAssign | ast.Assign, name: str, comment: str = "") -> str:
    """Return a field: its type, its default if that is a plain value, and its comment."""
    kind = f": {TYPES.spell(of, node.annotation)}" if isinstance(node, ast.AnnAssign) else ""
    plain = node.value is not None and not isinstance(node.value, ast.Call) and not comment
    default = f" = {ast.get_source_segment(of.text, node.value)}" if plain and node.value else ""
    text = comment or of.comment(node)
    return f"- `{name}{kind}{default}`" + (f": {markdown(text)}" if text else "")


def shown(module: str, name: str) -> Iterator[str]:
    """Yield a public name."""
    found = require(module, name)
    yield from function(found, name) if isinstance(found.node, Function) else whole_class(found, name)


# ---- settings, errors, signals, commands, ports


def settings() -> Iterator[str]:
    """Yield the table of all settings; defaults and units are those of the page of settings."""
    found = require(f"{PACKAGE}.settings", "Settings")
    page = (DOCS / "settings.md").read_text(encoding="utf-8")
    told = {name: (default, unit) for name, default, unit in re.findall(r"^\| `saga_(\w+)` \| (.*?) \|(.*?)\|", page, re.M)}
    yield "| Setting | Type | Default | Unit | Meaning |\n|---|---|---|---|---|\n" + "\n".join(
        f"| `saga_{name}` | {setting_type(found.source, each.node)} | {told[name][0]} |{told[name][1]}"
        f"| {cell(markdown(found.source.comment(each.node)))} |"
        for name, each in members(found).items()
        if isinstance(each.node, ast.AnnAssign)
    )


SPELLED = {
    "Seconds": "float | timedelta",
    "Count": "int",
    "Patterns": "list[str]",
    "dict[Event, Subscriptions]": "dict[str, list[str | dict[str, str]]]",
    "dict[Name, NamedBackend]": "dict[str, dict[str, Any]]",
}
BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most"}


def setting_type(of: Source, node: ast.AnnAssign) -> str:
    """Return the type of a setting, and between which bounds it must be."""
    text = of.segment(node.annotation)
    text = re.sub(r"Annotated\[(\w+), .*\]", r"\1", text)
    text = re.sub("|".join(map(re.escape, SPELLED)), lambda match: SPELLED[match[0]], text)
    keywords = node.value.keywords if isinstance(node.value, ast.Call) else []
    bounds = [f"{BOUNDS[each.arg]} {ast.literal_eval(each.value):,}" for each in keywords if each.arg in BOUNDS]
    return ", ".join([f"`{cell(text)}`", *bounds])


def errors() -> Iterator[str]:
    """Yield the tree of errors, then each of them."""
    module = source(f"{PACKAGE}.errors")
    classes = {name: Found(module, node) for name, node in module.names.items() if isinstance(node, ast.ClassDef)}
    retry = classes.pop("Retry")
    yield code("\n".join(branches(classes, "SagaError")), "text")
    yield from whole_class(retry, "Retry")
    for name, found in classes.items():
        yield from whole_class(found, name, f"Retry: {retried(found, retry)}.")


def branches(classes: dict[str, Found], root: str, indent: str = "") -> Iterator[str]:
    """Yield a class and, indented, those that derive from it."""
    yield indent + root
    for name, found in classes.items():
        if root in map(found.source.segment, found.node.bases):
            yield from branches(classes, name, indent + "    ")


def retried(found: Found, retry: Found) -> str:
    """Return when a message that failed with an error runs again."""
    name = found.source.segment(members(found)["retry"].node.value).removeprefix("Retry.")
    return str(ast.literal_eval(members(retry)[name].node.value))


def signals() -> Iterator[str]:
    """Yield the table of signals."""
    module = source(f"{PACKAGE}.signals")
    yield markdown(docstring(module.tree))
    yield "| Signal | Sends | When |\n|---|---|---|\n" + "\n".join(
        f"| `{name}` | {', '.join(f'`{each}`' for each in sent(node.value))} | {cell(markdown(module.comment(node)))} |"
        for name, node in module.names.items()
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
    )


def sent(call: ast.Call) -> list[str]:
    """Return the names of a signal's arguments."""
    return list(keywords_of(call).get("providing_args", ()))


def keywords_of(call: ast.Call) -> dict[str, Any]:
    """Return the keywords of a call that are plain values."""
    plain = [each for each in call.keywords if each.arg and isinstance(each.value, ast.Constant | ast.List)]
    return {str(each.arg): ast.literal_eval(each.value) for each in plain}


def commands() -> Iterator[str]:
    """Yield every command, by the files that define them."""
    for name, each in sorted(commands_in(sagas, "sagas"), key=lambda found: where(found[1])):
        yield f"### `celery {name}`"
        yield code(" ".join([f"celery -A proj {name}", *map(usage, each.params)]), "console")
        yield markdown(inspect.cleandoc(each.help or ""))
        if options := [f"- `{usage(one).strip('[]')}`: {help_of(one)}" for one in each.params if isinstance(one, click.Option)]:
            yield "\n".join(options)
    for name in ("sagas_code", "sagas_relay"):
        yield f"### `celery inspect {name}`"
        yield code(f"celery -A proj inspect {name} [--json]", "console")
        yield markdown(docstring(require(f"{PACKAGE}.worker.process.control", name).node))


def commands_in(group: click.Group, name: str) -> Iterator[tuple[str, click.Command]]:
    """Yield the commands of a group, and of those in it, with the words that call them."""
    for each in group.commands.values():
        words = f"{name} {each.name}"
        yield from commands_in(each, words) if isinstance(each, click.Group) else [(words, each)]


def where(command: click.Command) -> tuple[str, int]:
    """Return the module that defines a command, and the line."""
    function = inspect.unwrap(command.callback) if command.callback else commands
    return function.__module__, function.__code__.co_firstlineno


def usage(parameter: click.Parameter) -> str:
    """Return how an option or argument is written."""
    if isinstance(parameter, click.Option):
        flags = "|".join((*parameter.opts, *parameter.secondary_opts))
        value = "" if parameter.is_flag else f" {parameter.metavar or flags.rpartition('--')[2].upper()}"
        return f"{flags}{value}" if parameter.required else f"[{flags}{value}]"
    name = str(parameter.name).upper()
    return parameter.metavar or (name if parameter.required else f"[{name}]")


def help_of(option: click.Option) -> str:
    """Return what an option does, and what it is if it is left out."""
    return markdown(option.help or "") + (f" Default: {option.default}." if option.show_default else "")


def ports() -> Iterator[str]:
    """Yield the table of what a backend implements, and where what it receives and returns is defined."""
    module = f"{PACKAGE}.stores.ports"
    backend = require(module, "Backend")
    kinds = {name: each.node.annotation for name, each in members(backend).items() if isinstance(each.node, ast.AnnAssign)}
    found = {name: find(module, kind.id) for name, kind in kinds.items() if isinstance(kind, ast.Name)}
    named = [(name, each) for name, each in found.items() if each]
    rows = [("", backend), *((f"`Backend.{name}`", found) for name, found in named)]
    TYPES.shown |= {found.path for _, found in rows}
    yield "| Port | Is | What it does | Module |\n|---|---|---|---|\n" + "\n".join(
        f"| `{found.node.name}` | {at} | {cell(summary(found.node))} | {found.source.link()} |" for at, found in rows
    )
    used = {node.module for _, found in rows for node in found.source.tree.body if isinstance(node, ast.ImportFrom)}
    inside = sorted(name for name in used if name and name.startswith(PACKAGE))
    yield "\n".join(f"- {source(name).link()}: {summary(source(name).tree)}" for name in inside)


def contracts(detailed: list[str]) -> Iterator[str]:
    """Yield the table of what tests of a backend use."""
    module = f"{PACKAGE}.testing"
    names = [name for name in exported(module) if name not in detailed]
    yield "| Name | Is |\n|---|---|\n" + "\n".join(
        f"| `{name}` | {cell(summary(found.node) or markdown(found.source.comment(found.node)))} |"
        for name, found in ((name, require(module, name)) for name in names)
    )


def types() -> Iterator[str]:
    """Yield what the page has named and not shown, until nothing new is named."""
    while missing := sorted(TYPES.used.keys() - TYPES.shown, key=lambda path: path.rpartition(".")[2]):
        TYPES.shown |= set(missing)
        for found in map(TYPES.used.__getitem__, missing):
            (name,) = bound_by(found.node)
            if isinstance(found.node, ast.ClassDef):
                yield from whole_class(found, name)
            elif isinstance(found.node, ast.Assign | ast.AnnAssign) and found.node.value:
                yield f"### `{name}`"
                yield code(f"{name} = {TYPES.spell(found.source, found.node.value)}")
                yield markdown(found.source.comment(found.node))


# ---- the page

AGGREGATORS = ["aggregator", "Aggregator", "BufferedItem", "Batch"]
SAGAS = ["Saga", "Step", "Message", "SagaKey", "publish", "Failure", "Gathered", "Outcome", "Listing", "Missing"]
TESTS = ["SagaHarness", "SentMessage", "ScheduledTimeout", "ScenarioError", "RealTimeWarning"]
TESTS += ["collected", "Collected", "CollectedMessage"]
EXPLORATION = ["explore", "ParticipantFailed"]
BACKENDS = ["register_backend"]
CODECS = {f"{PACKAGE}.stores.encoded": "Codec", f"{PACKAGE}.contrib.fernet": "FernetCodec"}


def page() -> Iterator[str]:
    """Yield the page, paragraph by paragraph."""
    TYPES.shown.clear()
    TYPES.used.clear()
    yield "# Reference"
    yield "<!-- Written by `python docs/make_reference.py` from the source: change that, and run it again. -->"
    yield "The public names. Import them from `celery_sagas`, where no other module is named."
    yield "## Settings"
    yield "Set these in the configuration of the Celery app. [Settings](settings.md) says more about each of them."
    yield from settings()
    yield "## Commands"
    yield (
        "More about them: [dead letters](dead-letters.md), [aggregators](aggregators.md#commands), [the relay](deploying.md), "
        "[former names](upgrading.md#names), [checks](upgrading.md#check-before-you-deploy), "
        "[graphs](graph.md), [instances](listing.md), [one of them](operating.md)."
    )
    yield from commands()
    yield "## Sagas"
    others = [name for name in exported(PACKAGE) if name not in (*SAGAS, *AGGREGATORS, *BACKENDS)]
    for name in (*SAGAS, *others):
        yield from shown(PACKAGE, name)
    yield "## Aggregators"
    for name in AGGREGATORS:
        yield from shown(PACKAGE, name)
    yield "## Tests"
    yield (
        'Import these from `celery_sagas.testing`. Install it with `pip install "celery-sagas[testing]"`. The fixture '
        "`saga_harness` of its pytest plugin is a `SagaHarness` of the current app. [Testing sagas](testing.md) says more."
    )
    for name in TESTS:
        yield from shown(f"{PACKAGE}.testing", name)
    yield "### Exploration"
    yield "Import these from `celery_sagas.testing.exploration`."
    for name in EXPLORATION:
        yield from shown(f"{PACKAGE}.testing.exploration", name)
    yield "## Operators"
    yield "Import these from `celery_sagas.operate`. [Operating](operating.md#in-python) says more."
    for name in exported(f"{PACKAGE}.operate"):
        yield from shown(f"{PACKAGE}.operate", name)
    yield "## Signals"
    yield "Import these from `celery_sagas.signals`."
    yield from signals()
    yield "## Errors"
    yield "Import these from `celery_sagas.errors`. `Retry` says when a message that failed with an error runs again."
    yield from errors()
    yield "## Ports"
    yield "A backend implements these; their docstrings are the specification. See [writing a backend](writing-a-backend.md)."
    yield from ports()
    for name in BACKENDS:
        yield from shown(PACKAGE, name)
    yield "### Codecs"
    yield "The setting `saga_codec` names one. See [encryption](encryption.md)."
    for module, name in CODECS.items():
        yield f"Import `{name}` from `{module}`."
        yield from shown(module, name)
    yield "### The contract of backends"
    yield "Tests of a backend subclass `WholeContract`, or the contract of one port; all are in `celery_sagas.testing`."
    yield from contracts([*TESTS, "CrashPoint"])
    yield "## Types"
    yield "These stand in the signatures above. The names `R`, `P`, `ItemT`, `StateT` and `T_co` are type variables."
    yield from types()


def reference() -> str:
    """Return the page."""
    return "\n\n".join(filter(None, page())) + "\n"


if __name__ == "__main__":
    (DOCS / "reference.md").write_text(reference(), encoding="utf-8")
