"""How deeply JSON texts are nested."""

import pytest
from pydantic_core import from_json

from celery_sagas.core.nesting import LEVELS, is_deeper


@pytest.mark.parametrize("levels", [2, 50, LEVELS])
@pytest.mark.parametrize(("opening", "closing"), [("[[", "]]"), ('{"a":[', "]}"), ('[{"[":', "}]"), ('{"a":{"b":', "}}")])
def test_levels(levels: int, opening: str, closing: str) -> None:
    text = f"{opening * (levels // 2)}1{closing * (levels // 2)}"
    assert (is_deeper(text, levels), is_deeper(f"[[{text}]]", levels)) == (False, True)


@pytest.mark.parametrize("text", ["{}", "[]", '{"a":1}', "[1]"])
def test_what_is_not_deeper_can_be_read(text: str) -> None:
    for around in range(LEVELS - 3, LEVELS + 3):
        nested = "[" * around + text + "]" * around
        if not is_deeper(nested, LEVELS):
            from_json(nested)
    assert is_deeper(nested, LEVELS)


def test_what_is_side_by_side_is_not_deep() -> None:
    assert not is_deeper(f"[{','.join(['[]'] * 500)}]", 2)
