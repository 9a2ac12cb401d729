"""Differences of states."""

import json
import random
import re
from typing import Any

import pytest

from celery_sagas.operate.difference import difference


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a": 1, "b": {"c": 2, "d": [{"e": 3, "f": 4}]}}, {"b": {"d": [{"f": 4, "e": 3}], "c": 2}, "a": 1}),
        ([], []),
        (None, None),
    ],
)
def test_order_of_fields_says_nothing(before: Any, after: Any) -> None:
    assert list(difference(before, after)) == []


def test_what_is_other() -> None:
    before, after = {"a": 1, "b": [{"c": 2}], "z": 3}, {"z": 4, "b": [{"c": 5}], "a": 1}
    changed = [line for line in difference(before, after) if line[:1] in "+-"]
    assert changed == ["--- before", "+++ after", '-      "c": 2', '+      "c": 5', '-  "z": 3', '+  "z": 4']


def test_what_is_new() -> None:
    assert [line for line in difference([1], [1, {"b": 2}]) if line[:1] in "+-"][2:] == [
        "-  1",
        "+  1,",
        "+  {",
        '+    "b": 2',
        "+  }",
    ]


ITEMS = [{"sku": f"sku-{number}", "count": number} for number in range(10_000)]


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ({"a": 1, "b": ITEMS, "c": 1}, {"a": 2, "b": ITEMS, "c": 2}, ['+  "a": 2,', '+  "c": 2']),
        ({"a": ITEMS, "b": 1}, {"a": ["new", *ITEMS], "b": 2}, ['+    "new",', '+  "b": 2']),
        ({"a": ITEMS}, {"a": ["new"]}, ["- … 39,980 more lines", '+    "new"']),
        ({"a": "x" * 1_000}, {"a": 1}, [f'-  "a": "{"x" * 191}… (1,010 characters)']),
        (ITEMS, [{**each, "count": 0} for each in ITEMS], ["… more has changed"]),
        ([number % 101 for number in range(99_999)], [number**2 % 101 for number in range(99_999)], ["… more has changed"]),
    ],
)
def test_long_ones_are_bounded(before: Any, after: Any, shown: list[str]) -> None:
    """Comparing each line with each would take minutes."""
    lines = list(difference(before, after))
    assert set(shown) <= set(lines)
    assert len(lines) <= 203
    assert max(map(len, lines)) < 230


def test_it_leads_from_the_one_to_the_other() -> None:
    chance = random.Random(1)
    for _ in range(300):
        before = [chance.randrange(6) for _ in range(chance.choice((3, 12, 700)))]
        after = list(before)
        for _ in range(chance.randrange(1, 4)):
            after.insert(chance.randrange(len(after) + 1), chance.randrange(6))
            del after[chance.randrange(len(after))]
        assert applied(before, list(difference(before, after))) == json.dumps(after, indent=2).splitlines()


def applied(before: Any, lines: list[str]) -> list[str]:
    """Return the lines that a difference makes of a state's."""
    old, new, at = json.dumps(before, indent=2).splitlines(), list[str](), 0
    for line in lines[2:]:
        if header := re.fullmatch(r"@@ -(\d+),\d+ \+(\d+),\d+ @@", line):
            new += old[at : int(header[1]) - 1]
            at = int(header[1]) - 1
            assert len(new) == int(header[2]) - 1
            continue
        if line[0] in " -":
            assert old[at] == line[1:]
            at += 1
        if line[0] in " +":
            new.append(line[1:])
    return new + old[at:]
