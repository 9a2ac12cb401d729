"""Items: sorted into groups by what they share."""

import enum
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, SecretStr

from celery_sagas.core.aggregators.items import ItemType
from celery_sagas.core.message import Message
from celery_sagas.errors import DefinitionError, InvalidMessage


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Reading(Message):
    device_id: str


def items(annotation: Any = Reading, group_by: Any = None) -> ItemType:
    return ItemType("shop.collect", annotation, group_by)


def refused(items: ItemType, item: object) -> list[tuple[str, str]]:
    with pytest.raises(InvalidMessage) as caught:
        items.group_of(item)
    return list(caught.value.problems)


ID = UUID("12345678-1234-5678-1234-567812345678")


class Device(BaseModel):
    model_config = ConfigDict(extra="allow")

    id: str | int | UUID | Colour | Level | float | bool | None

    @property
    def short(self) -> str:
        return str(self.id)[:2]


class Nested(Message):
    device: Device
    shop: str = "s1"


@pytest.mark.parametrize(
    ("value", "text"),
    [("d1", "d1"), (5, "5"), (-5, "-5"), (ID, str(ID)), (Colour.RED, "red"), (Level.LOW, "1"), ("ß " * 50, "ß " * 50)],
)
def test_group_of_a_field(value, text):
    assert items(Device, "id").group_of(Device.model_construct(id=value)) == text
    assert items(dict, "id").group_of({"id": value}) == text


@pytest.mark.parametrize("value", [None, True, False, 1.5, "", [], {}, "x" * 256, "a\0b", "\ud800", b"x", SecretStr("x")])
def test_group_that_has_no_text(value):
    [(path, problem)] = refused(items(dict, "id"), {"id": value})
    assert path == "id"
    assert "key" in problem


def test_no_group_by_is_one_group():
    assert items().group_of(Reading(device_id="d1")) == ""


def test_group_of_a_path_and_of_several_fields():
    nested = Nested(device=Device(id="d1", floor=3))
    assert items(Nested, "device.id").group_of(nested) == "d1"
    assert items(Nested, "device.short").group_of(nested) == "d1"
    assert items(Nested, "device.floor").group_of(nested) == "3"
    assert items(Nested, ("shop", "device.id")).group_of(nested) == '["s1","d1"]'
    assert items(Nested, ("shop",)).group_of(nested) == "s1"


def test_groups_of_several_fields_are_told_apart():
    texts = {items(dict, ("a", "b")).group_of({"a": a, "b": b}) for a, b in [("1", "2,3"), ("1,2", "3"), ('1","2', "3")]}
    assert len(texts) == 3


@pytest.mark.parametrize(("group_by", "missing"), [("floor", "floor"), ("id.x", "id.x"), (("id", "floor"), "floor")])
def test_item_without_the_field(group_by, missing):
    [(_, problem)] = refused(items(dict, group_by), {"id": "d1"})
    assert problem == f"{missing} is missing"


def test_group_of_a_function():
    assert items(int, lambda item: item % 3).group_of(5) == "2"
    assert items(int, str).group_of(5) == "5"


def by_nothing(item: object) -> object:
    return None


def by_mistake(item: Any) -> object:
    return item["device"]


@pytest.mark.parametrize(
    ("function", "problem"), [(by_nothing, "None is no key: it is null"), (by_mistake, "the function raised TypeError")]
)
def test_function_that_names_no_group(function, problem):
    assert refused(items(int, function), 5) == [(function.__name__, problem)]


def test_check():
    items(Nested, ("shop", "device.id", "device.short")).check()
    with pytest.raises(DefinitionError, match="group_by= names 'number'"):
        items(Reading, "number").check()


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (Nested(device=Device(id=5)), "5"),
        (Nested(device=Device(id=Colour.RED)), "red"),
        ({"device": {"id": str(ID)}}, str(ID)),
        (Nested(device=Device(id=None)), None),
        (Nested(device=Device(id=1.5)), None),
        (Nested(device=Device(id="")), None),
        ({"device": {}}, None),
        ({}, None),
        ([5], None),
        (None, None),
    ],
)
def test_correlation_id(item, text):
    """Items may have none."""
    assert ItemType("shop.collect", Nested, None, "device.id").correlation_of(item) == text
    assert ItemType("shop.collect", Nested, None).correlation_of(item) is None
