"""Statements: built with SQLAlchemy Core, compiled once, run as text on the driver's cursor."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from sqlalchemy import BigInteger, BindParameter, ColumnElement, Dialect, Executable, Integer, any_, bindparam, select
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from celery_sagas.stores.sql.connection.names import OURS, Names
from celery_sagas.stores.sql.tables import metadata

#: Makes a statement of a certain shape: how many names it compares with, whether it writes outgoing rows, …
Build: TypeAlias = Callable[..., Executable]
Shape: TypeAlias = tuple[str | int, ...]
Values: TypeAlias = Mapping[str, object]
T = TypeVar("T")

#: The most rows of a statement that grows with each: few enough for the cache and for SQLite's 999 parameters.
_AT_ONCE = 50
#: The numbers of values for which a statement that compares with several is compiled.
_SIZES = (1, 8, 64, 500)

#: Texts and parameters of compiled statements; the value of a parameter that is not always the same is ``None``.
_compiled: dict[tuple[object, ...], tuple[str, Mapping[str, object]]] = {}
#: The parameter of every statement that ``Database`` fills in.
PREFIX: Final = bindparam("prefix", type_=metadata.tables["saga_instance"].c.prefix.type)
#: The most rows that a statement selects.
LIMIT: Final = bindparam("limit", type_=Integer())


def limit_of_count(database: str) -> ColumnElement[int]:
    """Return the limit of rows that are counted in the order of an index.

    PostgreSQL does not know it when it plans: up to a limit that it believes to be beyond the end, it would sort all rows.
    """
    return select(LIMIT).scalar_subquery() if database == "postgresql" else LIMIT


class now(ColumnElement[int]):
    """The store's clock, in milliseconds since the epoch."""

    inherit_cache = True
    type = BigInteger()


#: The time at which the statement began, by the name of the database. It stays the same within a statement, so that an index can
#: be searched with it. None converts a local time: on MySQL that of a caller's connection has an hour of autumn twice.
SERVER_CLOCKS = {
    "postgresql": "floor(extract(epoch from statement_timestamp()) * 1000)::bigint",
    "mysql": "CAST(UNIX_TIMESTAMP() * 1000 + MICROSECOND(NOW(3)) DIV 1000 AS SIGNED)",
}


@compiles(now)
def _compile_now(element: now, compiler: SQLCompiler, *, server_clock: bool, **kwargs: Any) -> str:
    if server_clock:
        return SERVER_CLOCKS[compiler.dialect.name]
    return compiler.process(bindparam("now", type_=element.type), **kwargs)


class Execution(NamedTuple):
    """One statement of a commit, with its values."""

    build: Build
    shape: Shape
    values: Values
    is_required: bool = False  #: whether the commit ends, undone, if this changes no row


@dataclass(frozen=True, slots=True)
class Statement:
    """The text of a compiled statement, with the parameters that are always the same."""

    text: str
    fixed: Mapping[str, object]
    clock: Callable[[], int] | None  #: gives the parameter ``now``, if the statement has it

    def bind(self, values: Values) -> dict[str, object]:
        """Return all parameters."""
        if self.clock is not None:
            return {**self.fixed, **values, "now": self.clock()}
        return {**self.fixed, **values}


def compile_statement(
    build: Build, shape: Shape, dialect: Dialect, *, prefix: str, clock: Callable[[], int] | None, names: Names = OURS
) -> Statement:
    """Compile a statement; without a clock it reads the server's.

    What was compiled once serves all databases of the process that are of the same kind, and whose tables have the same names:
    compiling takes longer than running.
    """
    key = (build, shape, *_kind_of(dialect), names, clock is None)
    compiled = _compiled.get(key)
    if compiled is None:
        statement: Any = build(*shape)
        compiler = statement.compile(dialect=names.used_by(dialect), compile_kwargs={"server_clock": clock is None})
        compiled = _compiled[key] = str(compiler), compiler.params
    text, parameters = compiled
    fixed = {name: value for name, value in parameters.items() if value is not None}
    return Statement(text, {**fixed, "prefix": prefix}, clock if "now" in parameters else None)


def _kind_of(dialect: Dialect) -> tuple[object, ...]:
    """Return all that decides what a statement is compiled to: MySQL and MariaDB are one class, as are their versions."""
    version, quote = getattr(dialect, "server_version_info", None), dialect.identifier_preparer.initial_quote
    return type(dialect), dialect.paramstyle, getattr(dialect, "is_mariadb", False), version, quote


def bound(column: ColumnElement[Any], name: str) -> BindParameter[Any]:
    """Return a parameter of a column's type."""
    return bindparam(name, type_=column.type)


def one_of(column: ColumnElement[Any], name: str, count: int) -> ColumnElement[bool]:
    """Compare a column with ``count`` parameters, which ``numbered`` fills in."""
    return column.in_([bound(column, f"{name}_{number}") for number in range(count)])


def numbered(name: str, values: Sequence[object]) -> dict[str, object]:
    """Return the parameters of ``one_of``."""
    return {f"{name}_{number}": value for number, value in enumerate(values)}


def chunks(values: Sequence[T]) -> list[Sequence[T]]:
    """Divide values into parts that one statement takes."""
    return [values[start : start + _AT_ONCE] for start in range(0, len(values), _AT_ONCE)]


def any_of(column: ColumnElement[Any], name: str, count: int) -> ColumnElement[bool]:
    """Compare a column with any number of values, which ``in_parts`` fills in; with a count of 0 they are one array."""
    if count:
        return one_of(column, name, count)
    return column == any_(bindparam(name, type_=ARRAY(column.type)))


def in_parts(database: str, name: str, values: Sequence[object]) -> list[tuple[int, Values]]:
    """Return the counts and the parameters of ``any_of``, for as many statements as the values take.

    PostgreSQL takes all in one. The others have statements for few numbers of values: what is left over is filled up with the
    last value.
    """
    if database == "postgresql":
        return [(0, {name: list(values)})] if values else []
    parts = [values[start : start + _SIZES[-1]] for start in range(0, len(values), _SIZES[-1])]
    return [(len(part), numbered(name, part)) for part in map(_filled, parts)]


def _filled(part: Sequence[object]) -> Sequence[object]:
    size = next(size for size in _SIZES if size >= len(part))
    return [*part, *[part[-1]] * (size - len(part))]
