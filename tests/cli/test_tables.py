"""What stored text looks like on a terminal, whoever wrote it."""

import json
from itertools import chain
from unicodedata import category

import pytest

from celery_sagas.cli import tables

#: C0, DEL and C1; line and paragraph separators; marks that turn the direction; what is no character.
CONTROLS = [
    *map(chr, chain(range(0x20), range(0x7F, 0xA0))),
    *"\u2028\u2029",
    *"\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069",
    *"\udfff\ufeff\ud800\U000e0001",
]


def is_safe(text: str) -> bool:
    """Whether it is in one line, and writes characters alone."""
    return not any(category(char).startswith("C") or category(char) in ("Zl", "Zp") for char in text)


@pytest.mark.parametrize("char", CONTROLS, ids=ascii)
def test_controls_are_escaped(char: str) -> None:
    shown = tables.line(f"a{char}b")

    assert is_safe(shown)
    assert shown.startswith("a\\")
    assert tables.short(f"a{char}b") == shown
    assert tables.line(shown) == shown


@pytest.mark.parametrize("text", ["a b", "ärger", "注文-42", "٣", "€ 😀", r"\x1b", "e\u0301"])
def test_characters_are_shown(text: str) -> None:
    assert tables.line(text) == text


def test_block_keeps_its_lines() -> None:
    assert tables.block("a\n\n  b\r\x1b[2J\u2028") == "a\n\n  b" + r"\r\x1b[2J\u2028"


def test_row_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    tables.print_table(("A", "B"), [("one\ntwo\x1b[2J", ""), ("three", "four")], "nothing")

    assert capsys.readouterr().out.splitlines() == ["A                B", r"one\ntwo\x1b[2J  -", "three            four"]


def test_json_is_one_line_of_characters(capsys: pytest.CaptureFixture[str]) -> None:
    facts = [{"key": " ".join(CONTROLS)}, {"key": "ä"}]
    tables.print_json(facts)
    lines = capsys.readouterr().out.splitlines()

    assert [json.loads(line) for line in lines] == facts
    assert all(map(is_safe, lines))


def test_columns_of_a_feed_grow(capsys: pytest.CaptureFixture[str]) -> None:
    feed = tables.Feed(("A", "B"))
    feed.print([("one", "x"), ("two\nlines", "")])
    feed.print([])
    feed.print([("1", "y\x1b")])

    assert capsys.readouterr().out.splitlines() == ["A  B", "one  x", r"two\nlines  -", r"1           y\x1b"]


def test_long_cell_moves_those_of_its_own_row_alone(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("x" * 2_000, "1"), ("y", "2")]
    tables.print_table(("A", "B"), rows, "nothing")
    tables.Feed(("A", "B")).print(rows)
    lines = capsys.readouterr().out.splitlines()

    assert [len(line) for line in lines] == [103, 2_003, 103, 4, 2_003, 103]
    assert lines[1] == f"{'x' * 2_000}  1"


def test_error_of_several_lines_is_one_sentence() -> None:
    assert tables.sentence("it is away\n\tIs it running\x1b?\n\n") == r"it is away Is it running\x1b?"


def test_json_text_says_the_same() -> None:
    text = json.dumps(CONTROLS, ensure_ascii=False, indent=2)
    shown = tables.json_text(text)

    assert json.loads(shown) == CONTROLS
    assert all(map(is_safe, shown.split("\n")))
