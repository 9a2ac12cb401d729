"""Patches of states, by paths."""

from typing import Any

import pytest

from celery_sagas.operate.patching import NOTHING, patched, restored
from celery_sagas.operate.redact import MARK


def fields() -> dict[str, Any]:
    """Return the fields of an order."""
    return {"total": 5, "lines": [{"sku": "a"}, {"sku": "b", "note": "n"}], "to": {"city": "Oslo"}}


@pytest.mark.parametrize(
    ("values", "removed", "changes"),
    [
        ({"total": 7}, (), {"total": 7}),
        ({"lines.1.sku": "x"}, (), {"lines": [{"sku": "a"}, {"sku": "x", "note": "n"}]}),
        ({"to.street": "Main"}, (), {"to": {"city": "Oslo", "street": "Main"}}),
        ({"new": None}, (), {"new": None}),
        ({"lines.0": {"sku": "z"}}, (), {"lines": [{"sku": "z"}, {"sku": "b", "note": "n"}]}),
        ({}, ("lines.0", "to.city"), {"lines": [{"sku": "b", "note": "n"}], "to": {}}),
        ({"total": 1}, ("lines.1.note",), {"total": 1, "lines": [{"sku": "a"}, {"sku": "b"}]}),
    ],
)
def test_values_are_set_and_removed(values: dict[str, Any], removed: tuple[str, ...], changes: dict[str, Any]) -> None:
    assert patched(fields(), values, removed) == {**fields(), **changes}


@pytest.mark.parametrize(
    ("values", "removed", "problem"),
    [
        ({"lost.part": 1}, (), "there is no lost in the state, on the way to lost.part"),
        ({"total.part": 1}, (), "total has no parts, on the way to total.part"),
        ({"total.part.more": 1}, (), "there is no total.part in the state"),
        ({"lines.2": 1}, (), "there is no lines.2 in the state: lines has 2 parts, counted from 0"),
        ({"lines.-1": 1}, (), "'-1' is no position in a list"),
        ({"lines.x.sku": 1}, (), "'x' is no position in a list"),
        ({}, ("lost",), "there is no lost that could be removed"),
        ({}, ("lines.2",), "there is no lines.2 in the state"),
    ],
)
def test_path_that_leads_nowhere(values: dict[str, Any], removed: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ValueError, match=problem.replace(".", r"\.")):
        patched(fields(), values, removed)


class TestRestored:
    def test_hidden_values_stay(self) -> None:
        stored = {"pin": "secret", "cards": [{"number": "1"}, {"number": "2"}], "total": 1}
        edited = {"pin": MARK, "cards": [{"number": MARK}, {"number": "3"}], "total": 2}
        assert restored(edited, stored) == {"pin": "secret", "cards": [{"number": "1"}, {"number": "3"}], "total": 2}

    def test_part_of_a_list_without_marks_is_what_is_written(self) -> None:
        stored = [{"name": "ann", "pin": "1"}, {"name": "bob", "pin": "2"}]
        edited = [{"name": "ann", "pin": MARK}, {"name": "cyd", "pin": "3"}]
        assert restored(edited, stored) == [stored[0], edited[1]]

    @pytest.mark.parametrize(
        "edited",
        [
            [{"name": "bob", "pin": MARK}, {"name": "cyd", "pin": "3"}],
            [{"name": "ann", "pin": MARK, "note": "n"}, {"name": "bob", "pin": "2"}],
            [{"name": "ann", "pin": "1"}, {"pin": MARK}],
            [{"name": "ann", "pin": "1"}, ["bob", MARK]],
        ],
    )
    def test_mark_in_a_part_of_a_list_that_is_another_one(self, edited: Any) -> None:
        """It does not get what is hidden in the one that was there."""
        stored = [{"name": "ann", "pin": "1"}, {"name": "bob", "pin": "2"}]
        with pytest.raises(ValueError, match="in a part of a list that is not the one stored at its place"):
            restored(edited, stored)

    def test_mark_in_a_list_of_lists(self) -> None:
        stored = [["a", [{"name": "ann", "pin": "1"}]], ["b", []]]
        assert restored([["a", [{"name": "ann", "pin": MARK}]], ["c", []]], stored) == [stored[0], ["c", []]]
        for moved in (["b", [{"name": "ann", "pin": MARK}]], ["a", [{"name": "bob", "pin": MARK}]]):
            with pytest.raises(ValueError, match="not the one stored at its place"):
                restored([moved, ["b", []]], stored)

    @pytest.mark.parametrize(("edited", "stored"), [({"new": MARK}, {}), ([MARK, MARK], ["a"]), (MARK, NOTHING)])
    def test_mark_without_a_value(self, edited: Any, stored: Any) -> None:
        with pytest.raises(ValueError, match="stands where no hidden value is"):
            restored(edited, stored)
