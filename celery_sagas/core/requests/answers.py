"""The outcomes of an instance's requests: answers, failures, and the collected ones of a ``gather``."""

from collections.abc import Iterator, Mapping
from enum import Enum
from types import UnionType
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from pydantic import AliasPath, BaseModel, BeforeValidator, Field, PlainValidator, RootModel, WrapValidator
from pydantic.fields import FieldInfo
from typing_extensions import is_typeddict

from celery_sagas.core.keys import unwrap
from celery_sagas.core.message import Message, accepted_names

T_co = TypeVar("T_co", covariant=True)

#: An exception was raised after the last retry, or a time limit was hit, or no worker knows the task; nothing came in time; the
#: task was revoked, or expired; its worker was lost; an answer came, and the step that gets it failed; an operator has terminated
#: the instance that was asked.
FailureKind = Literal["error", "deadline", "revoked", "lost", "unhandled", "terminated"]


class NoValue(Enum):
    """The answer of an instance that completes without a reply, or of a message that is ignored: it has come to its end."""

    NO_VALUE = None


NO_VALUE: Final = NoValue.NO_VALUE


class Failure(Message):
    """The reason why a message sent with ``otherwise=`` has no answer.

    The exception's text travels through the broker, and into the state of a saga that keeps it: do not put secrets into it.
    """

    kind: FailureKind
    task: str  #: its name; of an answer that could not be handled, the step's
    task_id: str
    error: str = ""  #: the name of the exception's class
    text: str = ""  #: the exception's text, at most 2,000 characters
    retries: int = 0  #: how often the task had been retried
    dead_letter: str = ""  #: the id of the dead letter that its message, or the answer, has become; empty: there is none


class Gathered(Message, Generic[T_co]):
    """The outcomes of the members of a ``gather``, each known by its position in the list that ``gather`` was given."""

    members: int  #: how many there are
    answers: dict[int, T_co] = Field(default_factory=dict)
    failures: dict[int, Failure] = Field(default_factory=dict)

    @property
    def values(self) -> list[T_co]:
        """The answers in the order of the members; those that failed or were silent are left out."""
        return [self.answers[position] for position in sorted(self.answers)]

    @property
    def silent(self) -> list[int]:
        """The positions of the members from which nothing had come when the time was over."""
        return [position for position in range(self.members) if position not in self.answers and position not in self.failures]


class Given(NamedTuple):
    """The value that a step receives before its own arguments when it handles the outcome of a request."""

    what: str
    parameter: str  #: how its parameter is written, for errors
    kind: type[Message] | None = None  #: ``None``: any


ANSWER: Final = Given("the answer", "answer")
INTERIM: Final = Given("the interim answer", "interim")
FAILURE: Final = Given("the failure", "failure: Failure", Failure)
GATHERED: Final = Given("what was gathered", "gathered: Gathered[Any]", Gathered)


def may_take(annotation: Any, kind: type[Message]) -> bool:
    """Return whether a parameter with this annotation may take a ``Failure`` or a ``Gathered``, which comes as a JSON object.

    Args:
        annotation: The parameter's; if it does not say what the parameter takes, the answer is true.
        kind: ``Failure`` or ``Gathered``.
    """
    if isinstance(annotation, type) and issubclass(annotation, kind):  # as nearly all are
        return True
    bare, metadata = unwrap(annotation)
    taken = get_origin(bare) or bare
    if any(isinstance(mark, BeforeValidator | PlainValidator | WrapValidator) for mark in metadata):
        return True
    if taken in (Union, UnionType):
        return any(may_take(member, kind) for member in get_args(bare))
    if taken is Any or not isinstance(taken, type) or is_typeddict(taken):
        return taken is not Literal
    if issubclass(taken, BaseModel) and not issubclass(taken, RootModel):
        return issubclass(taken, kind) or issubclass(kind, taken) or _reads(taken, kind)
    return issubclass(taken, Mapping) or issubclass(kind, taken) or hasattr(taken, "__get_pydantic_core_schema__")


def _reads(model: type[BaseModel], kind: type[Message]) -> bool:
    """Return whether a model reads some field of another, and requires none that the other lacks; true in doubt."""
    extra, fields = model.model_config.get("extra"), set(kind.model_fields)
    if extra == "allow" or model.__pydantic_decorators__.model_validators:  # these may accept anything
        return True
    names = {name: set(_first_names(model, name, info)) for name, info in model.model_fields.items()}
    read = {name for name, accepted in names.items() if accepted & fields}
    needed = {name for name, info in model.model_fields.items() if info.is_required()}
    return bool(read) and needed <= read and (extra != "forbid" or fields <= set().union(*names.values()))


def _first_names(model: type[BaseModel], name: str, info: FieldInfo) -> Iterator[object]:
    for accepted in accepted_names(model, name, info):
        yield accepted.path[0] if isinstance(accepted, AliasPath) else accepted
