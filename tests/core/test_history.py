"""What the journal keeps of a message, and of the state after it."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated

import pytest
from pydantic import BaseModel, Field

from celery_sagas.core.context import MessageView, SagaView
from celery_sagas.core.hidden import HIDDEN
from celery_sagas.core.history import MOST_BYTES, HandledMessage, History, digests_of, keep_message, shown_fields
from celery_sagas.core.message import Message
from celery_sagas.core.requests.requests import Addressed
from celery_sagas.core.state import State
from celery_sagas.core.step import define_step
from celery_sagas.errors import HistoryError

NOW = datetime(2026, 11, 26, 12, 0, 0, 123456, tzinfo=UTC)


class Card(Message):
    """A card."""

    number: str = Field(repr=False)
    owner: str = ""


class Order(State, correlate_by="order_id", history="messages"):
    """An order."""

    order_id: str
    card: Card | None = None
    pin: str = Field("", repr=False)
    tags: set[str] = set()
    nested: dict[str, list[frozenset[int]]] = {}
    other: object = None


def place(order: Order, order_id: str, card: Card | None = None, pin: Annotated[str, Field(repr=False)] = "") -> None:
    """Start."""


PLACE = define_step(Order.__saga__, place, starts=True, policy="handle", by=None, formerly=None, options={})


NEW = SagaView("i1", "order", "42", 0, True, None, None, MessageView("m1", "order.place", at=NOW))


def keep(**bound):
    return keep_message(PLACE, bound, view=NEW, sent_to=None, asked_by=None)


def test_arguments_are_kept_by_name_as_they_were_received():
    assert keep(order_id="42") == {"now": NOW.isoformat(), "arguments": {"order_id": "42"}}


def test_the_times_that_the_step_saw_are_kept():
    kept = keep_message(PLACE, {}, view=NEW._replace(created_at=NOW, updated_at=NOW), sent_to=None, asked_by=None)
    assert (kept["created_at"], kept["updated_at"]) == (NOW.isoformat(), NOW.isoformat())


def test_hidden_arguments_are_not_kept():
    kept = keep(order_id="42", card={"number": "visa-4242", "owner": "me"}, pin="secret-pin")
    assert kept["arguments"] == {"order_id": "42", "card": {"number": HIDDEN, "owner": "me"}, "pin": HIDDEN}
    assert kept["hidden"] == ["card", "pin"]
    assert "visa-4242" not in json.dumps(kept)


def test_values_that_the_broker_has_decoded_are_json():
    kept = keep(order_id=Decimal("4.20"), card={"number": "1"})
    assert kept["arguments"]["order_id"] == "4.20"


def test_large_arguments_are_not_kept():
    kept = keep(order_id="x" * MOST_BYTES)
    assert kept["arguments"] is None
    assert kept["omitted"] == "its arguments have 16,399 bytes, and 16,384 are kept"


@pytest.mark.parametrize("levels", [51, 199, 300])
def test_deeply_nested_arguments_are_not_kept(levels):
    """Else the entry could not be read again."""
    value = []
    for _ in range(levels - 1):
        value = [value]
    if levels == 51:
        assert keep(order_id=value[0][0])["arguments"] == {"order_id": value[0][0]}
    kept = keep(order_id=value, pin="secret-pin")
    assert kept["arguments"] is None
    assert kept["omitted"] == "its arguments are nested too deeply, and 50 levels are kept"


def test_the_address_and_the_requester_are_kept():
    address = {"saga": "shop", "instance": "i", "request": "r", "then": ["shop.done", ["secret"], {}, True, {}]}
    kept = keep_message(PLACE, {}, view=NEW, sent_to=Addressed("i1", "t1", "answer"), asked_by=address)
    assert kept["address"] == {"id": "t1", "came": "answer"}
    assert kept["asked_by"] == {"saga": "shop", "instance": "i", "request": "r"}


def fields(**values):
    return shown_fields(Order.__saga__, Order(order_id="42", **values))


def test_hidden_fields_have_no_digest():
    shown = fields(card=Card(number="visa-4242", owner="me"), pin="secret-pin")
    assert shown["card"] == {"number": HIDDEN, "owner": "me"}
    assert "pin" not in digests_of(shown)


def test_sets_have_an_order():
    class Part(BaseModel):
        tags: set[str]

    many = {str(number) for number in range(100)}
    sets = {frozenset(str(number) for number in range(first, first + 9)) for first in range(9)}
    assert fields(other=sets)["other"] == sorted(sorted(each) for each in sets)
    shown = fields(tags=many, nested={"a": [frozenset(range(100))]}, other=[Part(tags=many)])
    assert shown["tags"] == shown["other"][0]["tags"] == sorted(many)
    assert shown["nested"]["a"][0] == sorted(range(100), key=str)


def test_digests_show_which_field_differs():
    one, other = digests_of(fields(tags={"a"})), digests_of(fields(tags={"b"}))
    assert {name for name in one if one[name] != other[name]} == {"tags"}
    assert all(len(digest) == 12 for digest in one.values())


def test_keys_have_no_order():
    assert digests_of({"a": {"x": 1, "y": 2}}) == digests_of({"a": {"y": 2, "x": 1}})


def test_a_field_that_cannot_be_encoded_is_left_out():
    """The state of an instance that ends is never stored."""

    class Odd(Enum):
        ODD = object()

    assert fields(other=Odd.ODD).keys() == {"order_id", "card", "tags", "nested"}


def test_a_history_is_read_as_it_was_written():
    message = HandledMessage(
        step="order.place", id="m1", at=NOW, now=NOW, outcome="started", version=1, arguments={"total": float("inf")}
    )
    history = History(saga="order", key="42", instance="i1", messages=[message])
    assert json.loads(history.to_text())["format"] == 1
    assert History.from_text(history.to_text()) == history


@pytest.mark.parametrize("text", ["", "{}", '{"format": 2, "saga": "order", "key": "42", "instance": "i", "messages": []}'])
def test_what_is_no_history_is_refused(text):
    with pytest.raises(HistoryError, match=r"it is no history that this code can read.*celery sagas export"):
        History.from_text(text)
