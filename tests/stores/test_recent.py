"""The place of an entry in the journal, as text that a call returns and takes."""

import json

import pytest

from celery_sagas.stores.recent import EntryPlace
from celery_sagas.testing.contract.sagas.text import LOOK_ALIKES


@pytest.mark.parametrize("text", LOOK_ALIKES)
def test_it_is_read_as_it_was(text: str) -> None:
    place = EntryPlace(1_700_000_000_000, text, f"order.{text}")
    assert EntryPlace.read(str(place)) == place


@pytest.mark.parametrize(
    "after",
    [
        "[]",
        "{}",
        "null",
        "7",
        '[1, "a"]',
        '[1, "a", "b", "c"]',
        '["1", "a", "b"]',
        '[1.5, "a", "b"]',
        '[true, "a", "b"]',
        '[-1, "a", "b"]',
        f'[{2**53}, "a", "b"]',
        '[1, 2, "b"]',
        '[1, "a", null]',
        '[1, "\\u0000", "b"]',
        '[1, "a", "\\ud800"]',
        '[1, "a", "b"] ]',
        json.dumps({"at": 1, "message_id": "a", "step": "b"}),
    ],
)
def test_text_that_is_no_place(after: str) -> None:
    """What a database would refuse, is refused before it is asked."""
    with pytest.raises(ValueError, match="no place in the journal") as caught:
        EntryPlace.read(after)
    assert "\ud800" not in str(caught.value)
