"""What the journal keeps of the difference of two states."""

import json
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr

from celery_sagas.core.changes import MOST_COMPARED, MOST_NAMED, MOST_OF_A_VALUE, MOST_OF_ALL_VALUES, changes_of
from celery_sagas.core.state import State


class Line(BaseModel):
    """A line of an order."""

    sku: str = ""
    tags: frozenset[str] = frozenset()


class Card(BaseModel):
    """A card, a part of which is hidden."""

    owner: str = ""
    number: str = Field("", repr=False)


class Order(State, correlate_by=("shop", "order_id"), history="values"):
    """An order."""

    model_config = ConfigDict(extra="allow")

    order_id: str
    shop: str = "eu"
    total: int
    note: str | None = None
    lines: list[Line] = []
    marks: set[int] = set()
    more: dict[str, Any] = Field(default_factory=dict)


class Payment(State, correlate_by="order_id", history="values"):
    """One with hidden fields."""

    order_id: str
    card: Card = Card()
    pin: str = Field("", repr=False)
    other: SecretStr | None = None


class Named(State, correlate_by="k", history="names"):
    """One of which the names are kept."""

    k: str
    size: int = 0


class Completed(State, correlate_by="k", history="names"):
    """One with a method that needs the key."""

    k: str
    size: int = 0
    label: str = ""
    other: str = ""
    labels: list[str] = Field(default_factory=list)
    _seen: int = PrivateAttr(0)

    def model_post_init(self, context: Any, /) -> None:
        self.other = f"order {self.k}"


class Mapped(State, correlate_by="k", history="names"):
    """One with maps of sets."""

    k: str
    shops: dict[str, set[str]] = {}
    sizes: dict[int, frozenset[int]] = {}


class Undefined(State, correlate_by="k", history="names"):
    """One with a default that cannot be made."""

    k: str
    size: int = 0
    more: int = Field(default_factory=lambda: {"a": 1}["b"])


BEFORE: dict[str, Any] = {
    **{"order_id": "42", "shop": "eu", "total": 1, "note": None},
    **{"lines": [{"sku": "a", "tags": ["x", "y"]}], "marks": [1, 2], "more": {"a": 1, "b": [1]}},
}


def changes(before: dict[str, Any] | None, after: dict[str, Any], saga: Any = Order) -> dict[str, Any]:
    texts = (None if fields is None else json.dumps(fields) for fields in (before, after))
    return changes_of(saga.__saga__, *texts, saga.model_validate_json(json.dumps(after)))


@pytest.mark.parametrize(
    ("after", "values"),
    [
        ({}, {}),
        ({"total": 2}, {"total": [1, 2]}),
        ({"note": "x", "total": 2}, {"total": [1, 2], "note": [None, "x"]}),
        ({"more": {"b": [1], "a": 1}}, {}),
        ({"more": {"a": 1, "b": [2]}}, {"more": [{"a": 1, "b": [1]}, {"a": 1, "b": [2]}]}),
        ({"marks": [2, 1]}, {}),
        ({"marks": [2, 3]}, {"marks": [[1, 2], [2, 3]]}),
        ({"marks": []}, {"marks": [[1, 2], []]}),
        ({"lines": [{"sku": "a", "tags": ["y", "x"]}]}, {}),
        (
            {"lines": [{"sku": "b", "tags": ["y", "x"]}]},
            {"lines": [[{"sku": "a", "tags": ["x", "y"]}], [{"sku": "b", "tags": ["y", "x"]}]]},
        ),
        ({"new": 1}, {"new": [None, 1]}),
        ({"order_id": "43"}, {"order_id": ["42", "43"]}),
    ],
)
def test_fields_that_have_another_value(after, values):
    found = changes(BEFORE, {**BEFORE, **after})
    assert found == {"changed": list(values), **({"values": values} if values else {})}


EQUAL = [(0, False), (True, 1), (1, 1.0), (1.0, True), ([1, {"a": 0}], [1, {"a": False}]), ({"a": [1]}, {"a": [1.0]})]


@pytest.mark.parametrize(("old", "new"), EQUAL)
def test_equal_value_of_another_type(old, new):
    found = changes({**BEFORE, "new": old}, {**BEFORE, "new": new})
    assert repr(found) == repr({"changed": ["new"], "values": {"new": [old, new]}})
    assert changes({**BEFORE, "new": old}, {**BEFORE, "new": old, "total": 2})["changed"] == ["total"]


def test_order_of_keys_is_no_change():
    assert changes({**BEFORE, "new": [{"a": 1, "b": 0}]}, {**BEFORE, "new": [{"b": 0, "a": 1}]}) == {"changed": []}
    assert changes({**BEFORE, "new": [{"a": 1, "b": 0}]}, {**BEFORE, "new": [{"b": False, "a": 1}]})["changed"] == ["new"]


def test_order_of_keys_and_of_sets_is_no_change():
    before = {"k": "1", "shops": {"x": ["b", "a"], "y": ["c"]}, "sizes": {"1": [2, 1], "2": [3]}}
    after = {"k": "1", "shops": {"y": ["c"], "x": ["a", "b"]}, "sizes": {"2": [3], "1": [1, 2]}}
    assert changes(before, after, Mapped) == changes(after, before, Mapped) == {"changed": []}
    assert changes(before, {**after, "shops": {"y": ["d"], "x": ["a", "b"]}}, Mapped) == {"changed": ["shops"]}
    assert changes(before, {**after, "sizes": {"2": [3], "3": [1, 2]}}, Mapped) == {"changed": ["sizes"]}


def test_field_that_is_gone_comes_last():
    assert changes({"old": 5, **BEFORE}, {**BEFORE, "total": 2}) == {
        "changed": ["total", "old"],
        "values": {"total": [1, 2], "old": [5, None]},
    }


def test_first_message_names_what_is_not_as_by_default():
    """Without the key, whatever its default."""
    first = {**BEFORE, "shop": "us", "lines": [], "marks": [], "more": {}}
    assert changes(None, first) == {"changed": ["total"], "values": {"total": [None, 1]}}
    assert changes(None, BEFORE)["changed"] == ["total", "lines", "marks", "more"]


def test_default_that_cannot_be_made():
    """Only that one is unknown."""
    assert changes(None, {"k": "1", "size": 0, "more": 0}, Undefined) == {"changed": ["more"]}


@pytest.mark.parametrize("labels", [[], ["a"]])
def test_defaults_of_a_state_that_is_completed_by_its_key(labels):
    """They are known without it."""
    after = {"k": "1", "size": 0, "label": "", "other": "order 1", "labels": labels}
    assert changes(None, after, Completed) == {"changed": ["other", *(["labels"] if labels else [])]}


def test_names_alone():
    assert changes({"k": "1", "size": 0}, {"k": "1", "size": 5}, Named) == {"changed": ["size"]}


def test_large_state_is_not_compared():
    note = "x" * (MOST_COMPARED - len(json.dumps({**BEFORE, "note": ""})))
    assert changes(BEFORE, {**BEFORE, "note": note})["changed"] == ["note"]
    large = {**BEFORE, "note": note + "x"}
    assert changes(BEFORE, large) == changes(large, BEFORE) == changes(None, large) == {"changed": "many"}
    assert changes(large, large) == {"changed": []}


def test_many_fields_are_not_named():
    names = [f"field-{number}" for number in range(MOST_NAMED + 1)]
    assert changes(BEFORE, {**BEFORE, **dict.fromkeys(names[1:], 1)})["changed"] == names[1:]
    assert changes(BEFORE, {**BEFORE, **dict.fromkeys(names, 1)}) == {"changed": "many"}
    assert changes(BEFORE, {**BEFORE, "n" * 5_000: 1}) == {"changed": "many"}


def test_large_value_is_named_with_its_size():
    note = "x" * (MOST_OF_A_VALUE - 2)
    assert changes(BEFORE, {**BEFORE, "note": note}) == {"changed": ["note"], "values": {"note": [None, note]}}
    kept = changes({**BEFORE, "note": note + "x"}, {**BEFORE, "total": 2, "note": "y"})
    assert kept == {
        "changed": ["total", "note"],
        "values": {"total": [1, 2], "note": [None, "y"]},
        "sizes": {"note": [MOST_OF_A_VALUE + 1, 0]},
    }


def test_deeply_nested_value_is_named_with_its_size():
    """Else the entry could not be read again."""
    deep, deeper = (json.loads("[" * levels + "]" * levels) for levels in (50, 52))
    assert changes(BEFORE, {**BEFORE, "more": {"a": [{}] * 99}})["values"]["more"][1] == {"a": [{}] * 99}
    assert changes(BEFORE, {**BEFORE, "new": deep}) == {"changed": ["new"], "values": {"new": [None, deep]}}
    kept = {"changed": ["new"], "values": {"new": [None, None]}, "sizes": {"new": [0, 104]}}
    assert changes(BEFORE, {**BEFORE, "new": deeper}) == kept


def test_all_values_together_are_bounded():
    names = [f"field-{number}" for number in range(20)]
    kept = changes(BEFORE, {**BEFORE, **dict.fromkeys(names, "x" * 1_000)})
    assert kept["changed"] == names
    assert len(kept["sizes"]) == 4
    assert len(json.dumps(kept["values"])) < MOST_OF_ALL_VALUES + 1_000


def test_hidden_values_are_not_kept():
    before = {"order_id": "1", "card": {"owner": "Ada", "number": "4242"}, "pin": "9", "other": None}
    after = {"order_id": "1", "card": {"owner": "Bob", "number": "4343"}, "pin": "8", "gone": "7"}
    assert changes_of(Payment.__saga__, json.dumps(before), json.dumps(after), Payment(order_id="1")) == {
        "changed": ["card", "pin", "gone", "other"],
        "values": {
            "card": [{"owner": "Ada", "number": "(hidden)"}, {"owner": "Bob", "number": "(hidden)"}],
            "pin": ["(hidden)", "(hidden)"],
            "gone": [None, "(hidden)"],
            "other": [None, None],
        },
    }


def test_hidden_values_of_another_form_are_not_kept():
    before, after = {"order_id": "1", "card": [4242]}, {"order_id": "1", "card": {"4343": 1}}
    kept = changes_of(Payment.__saga__, json.dumps(before), json.dumps(after), Payment(order_id="1"))
    assert "4242" not in str(kept)
    assert "4343" not in str(kept["values"]["card"][1].values())
