"""Which values are hidden, and what stands in their place."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import pydantic
import pytest
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    PlainSerializer,
    PositiveInt,
    SecretStr,
    TypeAdapter,
    WrapValidator,
    field_serializer,
    field_validator,
    model_validator,
)

from celery_sagas.core.hidden import HIDDEN, hides, mark, replaced, stand_in
from celery_sagas.core.message import Message

Pin = Annotated[str, Field(repr=False)]


class Card(Message):
    """A model with a hidden field, which has two names."""

    number: str = Field(repr=False, alias="cardNumber")
    owner: str


class Order(BaseModel):
    """A model with a model in it, and itself."""

    card: Card
    note: str = ""
    parts: "list[Order]" = []


class Loose(BaseModel):
    """A model that reads its hidden field from somewhere else."""

    number: str = Field(repr=False)

    @model_validator(mode="before")
    @classmethod
    def read(cls, value: Any) -> Any:
        """Read it."""
        return value


class Reader(BaseModel):
    """A model that reads one of its models in another way."""

    card: Card

    @field_validator("card", mode="before")
    @classmethod
    def read(cls, value: Any) -> Any:
        """Read it."""
        return value


class Writer(BaseModel):
    """A model that writes one of its models in another way."""

    card: Card

    @field_serializer("card")
    def write(self, value: Any) -> Any:
        """Write it."""
        return value


class Colour(Enum):
    """What a stand-in may be."""

    RED = "red"


class Plain(BaseModel):
    """A model without anything hidden."""

    note: str


@dataclass
class Account:
    """A dataclass with a hidden field."""

    number: str = field(repr=False)


@pydantic.dataclasses.dataclass
class Depot:
    """A dataclass of pydantic's with one."""

    number: str = Field(repr=False)


@dataclass
class Store:
    """A dataclass whose field is pydantic's."""

    number: str = Field(repr=False)


@pydantic.dataclasses.dataclass
class Yard:
    """A dataclass of pydantic's whose field is not."""

    number: str = field(repr=False)


@dataclass
class Wallet:
    """A dataclass with a model in it, whose field is pydantic's."""

    card: Card = Field(description="the only one")  # noqa: RUF009


class Pair(NamedTuple):
    """A named tuple with a hidden part."""

    name: str
    pin: Pin


class Lost(TypedDict):
    """A dictionary of which nobody knows what it holds."""

    pin: "Nowhere"  # noqa: F821


class Paper(TypedDict):
    """A dictionary with one."""

    pin: Pin


@pytest.mark.parametrize(
    "annotation", [str, int, Any, Plain, list[Plain], dict[str, Plain], Plain | None, Literal["a"], list, tuple[int, ...]]
)
def test_nothing_is_hidden(annotation):
    assert not hides(annotation)
    assert replaced(annotation, {"note": "x"}, mark) == {"note": "x"}


@pytest.mark.parametrize(
    "annotation",
    [
        *(Pin, Pin | None, list[Pin], dict[str, Pin], Card, list[Card], Card | None, Order, Account, Depot, Paper, SecretStr),
        *(Store, Yard, Wallet, Pair, Lost, list[Pair]),
        *(Loose, Card | Plain, tuple[int, Card], set[Pin], Annotated[SecretStr | None, Field(min_length=3)]),
    ],
)
def test_something_is_hidden(annotation):
    assert hides(annotation)


@pytest.mark.parametrize(
    ("annotation", "value", "kept"),
    [
        (Pin, "1234", HIDDEN),
        (Pin | None, None, None),
        (SecretStr, "1234", HIDDEN),
        (list[Pin], ["1234", "5678"], [HIDDEN, HIDDEN]),
        (Sequence[Card], [{"number": "1", "owner": "a"}], [{"number": HIDDEN, "owner": "a"}]),
        (tuple[Card, ...], [{"number": "1", "owner": "a"}], [{"number": HIDDEN, "owner": "a"}]),
        (dict[str, Pin], {"a": "1"}, {"a": HIDDEN}),
        (Mapping[str, Card], {"a": {"cardNumber": "1"}}, {"a": {"cardNumber": HIDDEN}}),
        (dict[Pin, str], {"1234": "x"}, HIDDEN),
        (Card, {"number": "1", "cardNumber": "2", "owner": "a"}, {"number": HIDDEN, "cardNumber": HIDDEN, "owner": "a"}),
        (Card | None, None, None),
        (Order, {"card": {"number": "1"}, "parts": [{"card": {"number": "1"}, "note": "n"}]}, None),
        (Card | Plain, {"cardNumber": "1"}, {"cardNumber": HIDDEN}),
        (Card | int | str, 3, 3),
        (Pin | int | Card, 3, HIDDEN),
        (Loose, {"nummer": "1"}, HIDDEN),
        (Account, {"number": "1"}, HIDDEN),
        (Depot, {"number": "1"}, HIDDEN),
        (Paper, {"pin": "1"}, HIDDEN),
        (Pair, ["a", "1"], HIDDEN),
        (list[Pair], [["a", "1"]], [HIDDEN]),
        (Lost, {"pin": "1"}, HIDDEN),
        (set[Pin], ["1"], HIDDEN),
        (tuple[int, Card], [1, {"number": "1"}], HIDDEN),
        (Card, ["1"], HIDDEN),
        (Annotated[Card, BeforeValidator(lambda card: {"number": card["n"]})], {"n": "1"}, HIDDEN),
        (list[Annotated[Card, WrapValidator(lambda card, handler: handler(card))]], [{"n": "1"}], [HIDDEN]),
        (Annotated[Card, PlainSerializer(lambda card: card.number)], {"number": "1"}, HIDDEN),
        (Annotated[Card, AfterValidator(lambda card: card)], {"number": "1", "owner": "a"}, {"number": HIDDEN, "owner": "a"}),
        (Reader, {"card": {"n": "1"}}, HIDDEN),
        (Writer, {"card": {"n": "1"}}, HIDDEN),
        (Card, {"number": "1", "owner": "a", "newer": "2"}, {"number": HIDDEN, "owner": "a", "newer": HIDDEN}),
    ],
)
def test_hidden_values_are_replaced(annotation, value, kept):
    if annotation is Order:
        kept = {"card": {"number": HIDDEN}, "parts": [{"card": {"number": HIDDEN}, "note": "n"}]}
    assert replaced(annotation, value, mark) == kept


@pytest.mark.parametrize(
    "annotation",
    [
        *(str, int, bool, list[int], dict[str, int], date, UUID, Annotated[str, Field(max_length=10)], SecretStr, PositiveInt),
        *(Colour, Literal["a", "b"], Annotated[str, Field(min_length=4, max_length=4)]),
    ],
)
def test_a_stand_in_fits(annotation):
    found = stand_in(Annotated[annotation, Field(repr=False)], HIDDEN)
    TypeAdapter(annotation).validate_python(found, strict=False)


def test_nothing_fits():
    assert stand_in(Annotated[str, Field(repr=False, pattern="^[0-9]{16}$")], HIDDEN) == HIDDEN


def test_what_is_not_hidden_in_the_history_stays():
    assert stand_in(Pin, "1234") == "1234"


def test_hidden_parts_get_stand_ins():
    kept = replaced(Card, {"number": "1", "owner": "a"}, mark)
    assert Card.model_validate(replaced(Card, kept, stand_in)).owner == "a"
