"""What comes back to an instance: failures, and what was gathered."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import NoneType
from typing import Annotated, Any, Literal, TypedDict, TypeVar

import pytest
from pydantic import AliasChoices, AliasPath, BaseModel, BeforeValidator, Field, RootModel, ValidationError, model_validator

from celery_sagas import Failure, Gathered, Message
from celery_sagas.core.requests.answers import may_take

FAILURE = Failure(kind="error", task="quote", task_id="7", error="ValueError", text="no", retries=3)


@pytest.fixture
def some() -> Gathered[str]:
    """Two of four have answered, the last first, and one has failed."""
    return Gathered[str](members=4, answers={3: "d", 0: "a"}, failures={1: FAILURE})


class TestGathered:
    """Answers and failures, each by the position of its member."""

    def test_values_are_in_the_order_of_the_members(self, some: Gathered[str]) -> None:
        assert some.values == ["a", "d"]

    def test_silent_are_those_of_which_nothing_came(self, some: Gathered[str]) -> None:
        assert some.silent == [2]

    def test_empty(self) -> None:
        gathered = Gathered[str](members=2)

        assert (gathered.values, gathered.silent, gathered.failures) == ([], [0, 1], {})

    def test_survives_a_message(self, some: Gathered[str]) -> None:
        """The positions are numbers again, though JSON has no such keys."""
        assert Gathered[str].model_validate(some.__json__()) == some

    def test_answers_are_converted_to_their_type(self) -> None:
        assert Gathered[int].model_validate({"members": 1, "answers": {"0": "3"}}).values == [3]

    def test_answers_of_another_type_are_refused(self) -> None:
        with pytest.raises(ValidationError, match=r"answers\.0"):
            Gathered[int].model_validate({"members": 1, "answers": {"0": "three"}})

    def test_answers_of_no_type_stay_as_they_are(self) -> None:
        assert Gathered.model_validate({"members": 1, "answers": {"0": {"total": 3}}}).values == [{"total": 3}]

    def test_instances_share_nothing(self) -> None:
        Gathered[int](members=1).answers[0] = 1

        assert Gathered[int](members=1).answers == {}


class TestFailure:
    """Why there is no answer."""

    def test_survives_a_message(self) -> None:
        assert Failure.model_validate(FAILURE.__json__()) == FAILURE

    @pytest.mark.parametrize("kind", ["error", "deadline", "revoked", "lost"])
    def test_kinds(self, kind: str) -> None:
        assert Failure.model_validate({"kind": kind, "task": "quote", "task_id": "7"}).kind == kind

    def test_another_kind_is_refused(self) -> None:
        with pytest.raises(ValidationError, match="kind"):
            Failure.model_validate({"kind": "tired", "task": "quote", "task_id": "7"})

    def test_is_frozen(self) -> None:
        with pytest.raises(ValidationError, match="frozen"):
            FAILURE.text = "yes"  # type: ignore[misc]


class Receipt(Message):
    """Another message."""

    number: str


@dataclass
class Price:
    """No model at all."""

    amount: int


class Sums(TypedDict):
    """A dictionary of some keys."""

    kind: str


class Late(Failure):
    """A failure of one's own."""


class Told(BaseModel):
    """A model of one's own, of some of a failure's fields."""

    kind: str
    text: str
    seen: bool = False


class Alias(Message):
    """Reads a field by its own name, too."""

    task_id: str = Field(alias="taskId")


class Choice(BaseModel):
    """Reads a field by another name."""

    sort: str = Field(validation_alias=AliasChoices("type", "kind"))


class Path(BaseModel):
    """Reads a part of a field."""

    first: str = Field("", validation_alias=AliasPath("text", 0))


class Whole(RootModel[dict[str, Any]]):
    """Reads everything."""


class Open(BaseModel, extra="allow"):
    """Reads everything, too."""


class Made(BaseModel):
    """Makes of it what it likes."""

    amount: int

    @model_validator(mode="before")
    @classmethod
    def make(cls, given: object) -> object:
        return {"amount": 0}


class Exact(BaseModel, extra="forbid"):
    """Has each field of a failure, and takes no others."""

    kind: str
    task: str
    task_id: str
    error: str
    text: str
    retries: int
    dead_letter: str


class Defaults(BaseModel):
    """Has nothing of a failure, and would take one all the same."""

    amount: int = 0


class Strict(BaseModel, extra="forbid"):
    """Refuses the other fields of a failure."""

    kind: str


class Counted(BaseModel):
    """A model of one's own, of some of the fields of what was gathered."""

    members: int


T = TypeVar("T")
ANYTHING = [Any, object, T, dict, dict[str, Any], Mapping[str, Any], Sums, BaseModel, Message, Any | None, str | dict[str, Any]]
ANYTHING += [Whole, Open, Made, Annotated[str, BeforeValidator(str)], Annotated[Any, Field(description="what came")]]
FAILURES = [Failure, Failure | None, int | Failure, Annotated[Failure, "told"]]
GATHERED = [Gathered, Gathered[int], Gathered[Any] | None, str | Gathered[Receipt]]
NEITHER = [
    int,
    str,
    bool,
    datetime,
    Receipt,
    Price,
    Defaults,
    Strict,
    NoneType,
    list[Failure],
    list[Gathered[int]],
    int | str,
    Receipt | None,
    Literal["no"],
]


class TestMayTake:
    """Which annotations may take a failure, or what was gathered."""

    @pytest.mark.parametrize("annotation", [*FAILURES, Late, Told, Alias, Choice, Path, Exact, *ANYTHING])
    def test_failure(self, annotation: Any) -> None:
        assert may_take(annotation, Failure)

    @pytest.mark.parametrize("annotation", [*GATHERED, Counted, *ANYTHING])
    def test_gathered(self, annotation: Any) -> None:
        assert may_take(annotation, Gathered)

    @pytest.mark.parametrize("annotation", [Gathered, Gathered[int], Counted, *NEITHER])
    def test_no_failure(self, annotation: Any) -> None:
        assert not may_take(annotation, Failure)

    @pytest.mark.parametrize("annotation", [Failure, Late, Told, *NEITHER])
    def test_not_gathered(self, annotation: Any) -> None:
        assert not may_take(annotation, Gathered)
