"""Batches: sequences whose items can be rejected."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from celery_sagas.core.aggregators.batch import Batch


@dataclass
class Reading:
    device: str
    celsius: float = 20.0


def test_is_a_sequence_in_the_order_of_its_items():
    batch = Batch(["a", "b", "c", "a"])
    assert isinstance(batch, Sequence)
    assert (len(batch), list(batch), batch[0], batch[-1]) == (4, ["a", "b", "c", "a"], "a", "a")
    assert list(batch[1:3]) == ["b", "c"]
    assert (batch.count("a"), batch.index("c"), list(reversed(batch))) == (2, 2, ["a", "c", "b", "a"])
    assert "b" in batch
    assert "d" not in batch
    with pytest.raises(IndexError):
        batch[4]


def test_what_a_test_of_ones_own_need_not_say():
    batch = Batch([1, 2])
    assert (batch.ids, batch.name, batch.group, batch.reason) == (("0", "1"), "", "", "size")
    assert (batch.unresolved_count, batch.rejected) == (0, {})


def test_what_a_flush_says():
    batch = Batch([1], ids=["m1"], name="shop.collect", group="d1", reason="age", unresolved_count=3)
    assert (batch.ids, batch.name, batch.group, batch.reason, batch.unresolved_count) == (("m1",), "shop.collect", "d1", "age", 3)
    assert repr(batch) == "<Batch of 1: name='shop.collect', group='d1', reason='age'>"
    assert repr(Batch([1])) == "<Batch of 1: name='', reason='size'>"


def test_does_not_change_with_the_list_that_it_was_made_of():
    items = [1, 2]
    batch = Batch(items)
    items.append(3)
    assert list(batch) == [1, 2]


def test_rejects_this_very_object_among_equal_ones():
    first, second = Reading("d1"), Reading("d1")
    batch = Batch([first, second])
    batch.reject(second, "fault")
    assert batch.rejected == {1: "fault"}


def test_rejects_the_first_that_is_equal():
    batch = Batch([Reading("d0"), Reading("d1"), Reading("d1")])
    batch.reject(Reading("d1"), "one")
    assert batch.rejected == {1: "one"}
    batch.reject(Reading("d1"), "two")
    assert batch.rejected == {1: "one", 2: "two"}


def test_rejects_each_of_several_that_are_one_object():
    batch = Batch([7, 7, 8])
    batch.reject(7, "one")
    batch.reject(7, "two")
    assert batch.rejected == {0: "one", 1: "two"}


def test_to_reject_an_object_again_changes_its_reason():
    """And rejects none that is equal to it."""
    first, second = Reading("d1"), Reading("d1")
    batch = Batch([first, second])
    for reason in ("one", "two"):
        batch.reject(second, reason)
    assert batch.rejected == {1: "two"}


def test_to_reject_when_all_that_are_equal_were_changes_the_first():
    batch = Batch(["a", "b", "a"])
    for reason in ("one", "two", "three"):
        batch.reject("a", reason)
    assert batch.rejected == {0: "three", 2: "two"}


def test_looks_for_the_very_object_first():
    """Arrays, for one, have no plain answer to whether they are equal."""

    class Array:
        def __eq__(self, other):
            raise ValueError("the truth value is ambiguous")

        __hash__ = None

    arrays = [Array(), Array()]
    batch = Batch(arrays)
    batch.reject(arrays[1])
    assert batch.rejected == {1: ""}


def test_item_of_no_batch():
    batch = Batch(["a"])
    with pytest.raises(ValueError, match="the item is none of this batch"):
        batch.reject("b")
    assert batch.rejected == {}


def test_reason_may_be_an_exception():
    batch = Batch(["a", "b"])
    batch.reject("a", ValueError("no such shop"))
    batch.reject("b", ValueError("x" * 3_000))
    assert batch.rejected == {0: "no such shop", 1: "x" * 2_000}


def test_reason_is_cut_off():
    batch = Batch(["a"])
    batch.reject("a", "x" * 3_000)
    assert batch.rejected == {0: "x" * 2_000}


def test_rejections_are_seen_and_not_changed():
    batch = Batch(["a"])
    batch.rejected[0] = "mine"
    assert batch.rejected == {}
