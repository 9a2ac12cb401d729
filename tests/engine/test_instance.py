"""The keys of a state, and how they differ from what the store has indexed."""

from enum import StrEnum
from uuid import UUID

import pytest

from celery_sagas.core.state import State
from celery_sagas.engine.instance import alternate_keys_of, difference, key_of
from celery_sagas.errors import InvalidState


class Colour(StrEnum):
    """A colour."""

    RED = "red"


class Item(State, correlate_by=("shop", "number"), also_by=("code", "colour", "serial")):
    """An item, found by nearly everything."""

    shop: str
    number: int
    code: UUID | None = None
    colour: Colour | None = None
    serial: int | None = None


ITEM = Item.__saga__
assert ITEM is not None


def test_composite_key() -> None:
    """One text of both parts."""
    assert key_of(ITEM, "", Item(shop="a", number=1)) == '["a",1]'.replace("1", '"1"')


def test_texts_are_canonical() -> None:
    code = UUID("12345678-1234-5678-1234-567812345678")
    item = Item(shop="a", number=1, code=code, colour=Colour.RED, serial=0)

    assert alternate_keys_of(ITEM, "", item) == {"code": str(code), "colour": "red", "serial": "0"}


def test_null_and_unset_are_not_indexed() -> None:
    assert alternate_keys_of(ITEM, "", Item(shop="a", number=1)) == {}
    assert alternate_keys_of(ITEM, "", Item.model_construct(shop="a", number=1)) == {}


@pytest.mark.parametrize("value", ["", "x" * 256, True, 1.5])
def test_value_that_is_no_key(value: object) -> None:
    """It says which field."""
    item = Item.model_construct(shop="a", number=1, colour=None, serial=value)

    with pytest.raises(InvalidState, match="serial"):
        alternate_keys_of(ITEM, "k", item)


def test_key_that_is_none_or_unset() -> None:
    """Never null."""
    for item in (Item.model_construct(shop=None, number=1), Item.model_construct(number=1)):
        with pytest.raises(InvalidState, match="shop, number"):
            key_of(ITEM, "k", item)


def test_difference_is_sorted() -> None:
    """Two commits lock the keys in one order."""
    before = {"b": "1", "a": "1", "c": "1", "z": "1"}
    after = {"z": "1", "c": "2", "a": "2", "d": "1"}

    assert difference(before, after) == (
        (("a", "2"), ("c", "2"), ("d", "1")),
        (("a", "1"), ("b", "1"), ("c", "1")),
    )
