"""Items: encoded where they are given, read where they are flushed, and sorted into groups."""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, PlainSerializer, PlainValidator
from pydantic_core import to_json
from typing_extensions import TypedDict

from celery_sagas.core.aggregators.items import ItemType
from celery_sagas.core.message import Message
from celery_sagas.errors import InvalidMessage


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Reading(Message):
    device_id: str
    celsius: float = 20.0


class Rich(Message):
    """Everything that JSON has no word for."""

    device_id: str = Field(alias="deviceId")
    total: Decimal
    at: datetime
    wait: timedelta
    colour: Colour
    blob: bytes
    tags: frozenset[int] = frozenset()


class Typed(TypedDict):
    day: date
    amounts: list[Decimal]


@dataclass
class Point:
    x: int
    colour: Colour


class Money:
    """A class that pydantic does not know."""

    def __init__(self, cents: int) -> None:
        self.cents = cents


Price = Annotated[Money, PlainValidator(Money), PlainSerializer(lambda money: money.cents)]


@dataclass
class Line:
    price: Price


RICH = Rich(
    device_id="d1",
    total=Decimal("9.990"),
    at=datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
    wait=timedelta(seconds=90),
    colour=Colour.RED,
    blob=b"\x00abc",
    tags=frozenset({1, 2}),
)


def items(annotation: Any = Reading, group_by: Any = None) -> ItemType:
    return ItemType("shop.collect", annotation, group_by)


def refused(work: Callable[[], Any]) -> InvalidMessage:
    with pytest.raises(InvalidMessage) as caught:
        work()
    assert caught.value.step == "shop.collect"
    return caught.value


# --- encoded, and read again


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Reading, Reading(device_id="d1", celsius=20.5)),
        (Rich, RICH),
        (Typed, {"day": date(2026, 1, 2), "amounts": [Decimal("1.10")]}),
        (Point, Point(3, Colour.RED)),
        (int, 5),
        (float, 0.1),
        (str, "größe 😀\n"),
        (Decimal, Decimal("1.10")),
        (datetime, datetime(2026, 1, 2, tzinfo=UTC)),
        (UUID, UUID(int=5)),
        (Colour, Colour.RED),
        (bytes, b"abc"),
        (bool, False),
        (tuple[int, str], (1, "a")),
        (set[int], {1, 2}),
        (int | None, None),
        (Reading | Point, Point(3, Colour.RED)),
        (dict[str, Reading], {"a": Reading(device_id="d1")}),
        (dict, {"a": [1, None, {"b": 0.5}]}),
        (Any, {"a": [1, None, {"b": 0.5}]}),
        (Any, None),
    ],
)
def test_item_comes_back_equal(annotation, value):
    encoded = items(annotation).encode(value)
    read = items(annotation).read(to_json(encoded).decode())
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [(Reading, Reading(device_id="d1")), (Rich, RICH), (Point, Point(3, Colour.RED)), (Price, Money(5)), (Any, [1])],
)
def test_encoded_again_stays_as_it_is(annotation, value):
    """A signature is encoded when it is made, and when it is sent."""
    encoded = items(annotation).encode(value)
    assert items(annotation).encode(encoded) == encoded


def test_encoded_under_aliases():
    assert items(Rich).encode(RICH)["deviceId"] == "d1"
    assert items(Rich).encode({**items(Rich).encode(RICH), "tags": [3]})["tags"] == [3]


def test_encoded_by_its_type():
    """Not by what it happens to be, wherever that is known."""
    assert items(Price).encode(Money(5)) == 5
    assert items(Line).encode(Line(Money(5))) == {"price": 5}
    assert items(TypedDict("Order", {"price": Price})).encode({"price": Money(5)}) == {"price": 5}
    assert items(Line).read('{"price": 5}').price.cents == 5


def test_untyped_items_become_values_of_json():
    value = {"reading": RICH, "point": Point(3, Colour.RED), "days": {date(2026, 1, 2)}}
    assert items(Any).encode(value) == {
        "reading": items(Rich).encode(RICH),
        "point": {"x": 3, "colour": "red"},
        "days": ["2026-01-02"],
    }


def test_converted_by_its_type():
    assert items().encode({"device_id": "d1", "celsius": "20.5", "unknown": 1}) == {"device_id": "d1", "celsius": 20.5}
    assert items(int).encode("5") == 5


# --- what does not fit


@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        (Reading, {"celsius": 1}, "device_id"),
        (Reading, {"device_id": "d1", "celsius": "hot"}, "celsius"),
        (Reading, RICH, ""),
        (Reading, None, ""),
        (Reading, Reading.model_construct(device_id="d1", celsius="hot"), "celsius"),
        (Typed, {"day": "yesterday", "amounts": []}, "day"),
        (Point, {"x": 1, "colour": "blue"}, "colour"),
        (int, "five", ""),
        (int, 1.5, ""),
    ],
)
def test_that_does_not_fit(annotation, value, path):
    assert refused(lambda: items(annotation).encode(value)).problems[0][0] == path


class OneWay(BaseModel):
    device_id: str = Field(serialization_alias="deviceId")


@pytest.mark.parametrize("value", [OneWay(device_id="d1"), {"device_id": "d1"}])
def test_that_could_not_be_read_again(value):
    assert refused(lambda: items(OneWay).encode(value)).problems == [("device_id", "Field required")]


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("annotation", "value", "kind"),
    [
        (Any, object(), "object"),
        (Any, {"a": object()}, "dict"),
        (Any, endless(), "list"),
        (Any, b"\xff", "bytes"),
        (str, "\ud800", "str"),
        (Price, object(), "object"),
    ],
)
def test_that_json_cannot_hold(annotation, value, kind):
    assert refused(lambda: items(annotation).encode(value)).problems == [("", f"a {kind} cannot be encoded as JSON")]


@pytest.mark.parametrize("payload", ["", "{", '{"device_id": 5}', "[]", "null", '{"device_id": "d1", "celsius": []}'])
def test_payload_that_cannot_be_read_is_refused(payload):
    refused(lambda: items().read(payload))


def test_validator_that_fails():
    def fail(value: object) -> object:
        raise KeyError(value)

    error = refused(lambda: items(Annotated[int, PlainValidator(fail)]).read("5"))
    assert error.problems == [("", "its validation raised KeyError")]


# --- one argument, or named ones


@pytest.mark.parametrize("value", [Reading(device_id="d1"), 5, None, 0, "", [], {"device_id": "d1"}])
def test_one_argument_is_the_item(value):
    assert items().value_of((value,), {}) is value


def test_named_arguments_are_the_item_together():
    assert items().value_of((), {"device_id": "d1", "celsius": 5}) == {"device_id": "d1", "celsius": 5}


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, 2), {}), ((1,), {"celsius": 5})])
def test_other_arguments(args, kwargs):
    error = refused(lambda: items().value_of(args, kwargs))
    assert f"it has {len(args)} positional and {len(kwargs)} named arguments: an item is one argument" in str(error)
