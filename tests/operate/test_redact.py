"""What is hidden from those who look at states and messages."""

from collections.abc import Iterator
from functools import reduce
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, SecretStr, model_validator

from celery_sagas import Batch, aggregator
from celery_sagas.core.registry import registry
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.state import State
from celery_sagas.core.step import StepDefinition, define_step
from celery_sagas.operate.redact import MARK, redacted, redacted_item, redacted_message, redacted_names
from celery_sagas.settings import HIDDEN

#: Deeper than functions may call themselves.
DEEP = 5_000


class Card(BaseModel):
    """A model with a hidden field."""

    number: str = Field(repr=False)
    owner: str = ""


class Node(BaseModel):
    """A model with a hidden field, and itself."""

    pin: str = Field(default="", repr=False)
    next: "Node | None" = None


class Strict(BaseModel):
    """A model whose fields cannot be told apart before it has read them."""

    pin: str = Field(repr=False)

    @model_validator(mode="before")
    @classmethod
    def read(cls, value: Any) -> Any:
        """Read it."""
        return value


class Order(State, correlate_by="order_id"):
    """A saga that hides much."""

    order_id: str
    note: str = ""
    pin: str | None = Field(default=None, repr=False)
    secret: SecretStr | None = None
    paid_with: Card | None = None
    cards: dict[str, SecretStr] = {}
    strict: Strict | None = None
    chain: Node | None = None


class Parcel(State, correlate_by="parcel_id"):
    """A saga that hides nothing."""

    parcel_id: str
    parts: list[dict[str, str]] = []


ORDER, PARCEL = Order.__saga__, Parcel.__saga__


def hidden_in(saga: SagaDefinition | None, state: Any, patterns: Any = ()) -> Any:
    """Return a state as it is shown."""
    assert saga is not None
    return redacted(saga, state, patterns)


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ({"order_id": "1", "note": "n"}, {"order_id": "1", "note": "n"}),
        ({"pin": "1234"}, {"pin": MARK}),
        ({"pin": None, "secret": "s"}, {"pin": None, "secret": MARK}),
        ({"paid_with": {"number": "4111", "owner": "ann"}}, {"paid_with": {"number": MARK, "owner": "ann"}}),
        ({"paid_with": {"number": "4111", "cvc": "1"}}, {"paid_with": {"number": MARK, "cvc": MARK}}),
        ({"cards": {"a": "4111"}}, {"cards": {"a": MARK}}),
        ({"strict": {"pin": "1"}}, {"strict": MARK}),
        ({"chain": {"pin": "1", "next": {"pin": "2"}}}, {"chain": {"pin": MARK, "next": {"pin": MARK}}}),
        ({"added_by_newer_code": "4111"}, {"added_by_newer_code": MARK}),
        ({"added_by_newer_code": None}, {"added_by_newer_code": None}),
    ],
)
def test_declarations_hide(state: Any, shown: Any) -> None:
    assert hidden_in(ORDER, state) == shown


def test_unknown_field_is_shown_where_nothing_is_hidden() -> None:
    assert hidden_in(PARCEL, {"added": "x"}) == {"added": "x"}


@pytest.mark.parametrize(
    ("name", "is_hidden"),
    [
        *[(name, True) for name in ("password", "DB_Password2", "client_secret", "accessToken", "card", "CardNumber")],
        *[(name, True) for name in ("Authorization",)],
        *[(name, False) for name in ("discard", "passwor", "authorizations", "", "x\ncard")],
    ],
)
def test_names_hide(name: str, is_hidden: bool) -> None:
    """At any depth, and whatever the case."""
    shown = MARK if is_hidden else {"value": 1}
    assert redacted_names({name: {"value": 1}}, HIDDEN) == {name: shown}
    assert redacted_names([{"deeper": [{name: {"value": 1}}]}], HIDDEN) == [{"deeper": [{name: shown}]}]
    assert hidden_in(PARCEL, {"parts": [{name: {"value": 1}}]}, HIDDEN) == {"parts": [{name: shown}]}


def test_value_that_is_null_is_shown() -> None:
    assert redacted_names({"token": None}, HIDDEN) == {"token": None}


@pytest.mark.parametrize("value", [0, 1.5, True, "", "card", None, [], {}])
def test_other_values_are_shown(value: Any) -> None:
    assert redacted_names(value, HIDDEN) == value
    assert hidden_in(PARCEL, value, HIDDEN) == value


def test_no_pattern_hides_no_name() -> None:
    assert redacted_names({"password": 1, "": 2}, ()) == {"password": 1, "": 2}


@pytest.mark.parametrize("state", ["4111", ["4111"], 4111])
def test_state_that_is_no_object_is_hidden_where_a_field_is(state: Any) -> None:
    assert hidden_in(ORDER, state) == MARK


@pytest.mark.parametrize(
    "state",
    [
        {"paid_with": ["4111"]},
        {"paid_with": "4111"},
        {"cards": ["4111"]},
        {"cards": "4111"},
        {"chain": {"next": ["4111"]}},
        {"strict": 4111},
        {"pin": {"deeper": ["4111"]}},
    ],
)
def test_value_that_is_not_of_its_form_is_hidden(state: Any) -> None:
    """Nobody knows where in it the hidden part is."""
    assert "4111" not in str(hidden_in(ORDER, state, HIDDEN))


@pytest.mark.parametrize("name", ["chain", "note", "unknown"])
def test_what_lies_deep_is_hidden(name: str) -> None:
    deep = reduce(lambda inner, _: {"next": inner}, range(DEEP), {"pin": "4111"})
    assert "4111" not in str(hidden_in(ORDER, {name: deep}, HIDDEN))
    assert "4111" not in str(hidden_in(PARCEL, {name: [deep]}, HIDDEN))


def test_value_is_left_as_it_was() -> None:
    state = {"pin": "1", "paid_with": {"number": "4111"}, "parts": [{"token": "t"}]}
    hidden_in(ORDER, state, HIDDEN)
    assert state == {"pin": "1", "paid_with": {"number": "4111"}, "parts": [{"token": "t"}]}


def pay(order: Order, order_id: str, pin: Annotated[str, Field(repr=False)], card: str, paid_with: Card | None = None) -> None:
    """Pay."""


@pytest.fixture
def step() -> Iterator[StepDefinition]:
    """A step with hidden arguments."""
    assert Order.__saga__ is not None
    kept = dict(registry.steps)
    step = define_step(Order.__saga__, pay, starts=False, policy="ignore", by=None, formerly=None, options={})
    registry.add_step(step)
    yield step
    registry.steps = kept


class TestMessages:
    @pytest.mark.parametrize(
        ("args", "kwargs", "shown_args", "shown_kwargs"),
        [
            (["42", "1234", "4711"], {}, ["42", MARK, MARK], {}),
            (["42"], {"pin": "1234", "card": "4711"}, ["42"], {"pin": MARK, "card": MARK}),
            ([], {"order_id": "42", "pin": None}, [], {"order_id": "42", "pin": None}),
            (["42", "1", "2", {"number": "9", "owner": "Ann"}], {}, ["42", MARK, MARK, {"number": MARK, "owner": "Ann"}], {}),
            (["42", "1", "2", None, "too many"], {"new": 1}, ["42", MARK, MARK, None, "too many"], {"new": 1}),
            ("not a list", 5, "not a list", 5),
        ],
    )
    def test_arguments_of_a_step(self, step: StepDefinition, args: Any, kwargs: Any, shown_args: Any, shown_kwargs: Any) -> None:
        """As they are declared, wherever they stand, and by their names."""
        message = {"task": step.name, "args": args, "kwargs": kwargs, "options": {"headers": {"token": "t", "x": 1}}}
        shown = {**message, "args": shown_args, "kwargs": shown_kwargs, "options": {"headers": {"token": MARK, "x": 1}}}
        assert redacted_message(message, HIDDEN) == shown
        chain = {"task": "celery.chain", "kwargs": {"tasks": [message]}, "subtask_type": "chain"}
        assert redacted_message(chain, HIDDEN) == {**chain, "kwargs": {"tasks": [shown]}}

    @pytest.mark.parametrize("message", [None, "text", 5, [], {"task": 5, "args": ["42"]}, {"task": "shop.pay", "args": ["42"]}])
    def test_what_hides_nothing(self, message: Any) -> None:
        assert redacted_message(message, HIDDEN) == message

    def test_deep_message(self) -> None:
        deep = reduce(lambda inner, _: {"a": inner}, range(DEEP), "secret")
        assert "secret" not in str(redacted_message(deep, HIDDEN))


class Reading(BaseModel):
    """An item with hidden parts."""

    meter: str
    pin: str = Field(repr=False)
    paid_with: Card | None = None


@pytest.fixture
def readings(definitions: None) -> str:
    """The name of an aggregator of such items."""

    @aggregator(name="meters.store_readings", size=100)
    def store_readings(batch: Batch[Reading]) -> None: ...

    return "meters.store_readings"


class TestItems:
    @pytest.mark.parametrize(
        ("item", "shown"),
        [
            ({"meter": "m1", "pin": "1234"}, {"meter": "m1", "pin": MARK}),
            (
                {"meter": "m1", "paid_with": {"number": "9", "owner": "Ann"}},
                {"meter": "m1", "paid_with": {"number": MARK, "owner": "Ann"}},
            ),
            ({"meter": "m1", "newer": "1234"}, {"meter": "m1", "newer": MARK}),
            (["1234"], MARK),
            (None, None),
        ],
    )
    def test_of_an_aggregator(self, readings: str, item: Any, shown: Any) -> None:
        """What its type hides, also in a message to it, given by position or by name."""
        assert redacted_item(readings, item, HIDDEN) == shown
        message = {"task": readings, "args": [item], "kwargs": {}}
        assert redacted_message(message, HIDDEN) == {**message, "args": [shown]}
        if isinstance(item, dict):
            assert redacted_message({"task": readings, "kwargs": item}, HIDDEN) == {"task": readings, "kwargs": shown}

    @pytest.mark.parametrize("item", [5, "text", {"meter": "m1", "parts": [{"token": "t"}]}, {"task": "meters.gone", "args": []}])
    def test_of_other_code(self, item: Any) -> None:
        """Names alone are known."""
        assert redacted_item("meters.gone", item, HIDDEN) == redacted_names(item, HIDDEN)
