"""Which rule a step gets, and where that rule leads."""

import itertools
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass
from decimal import Decimal
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Optional
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, StringConstraints, create_model

from celery_sagas.core.correlation import (
    ID,
    KEY,
    Address,
    ArgumentRule,
    CausationRule,
    SagaKeys,
    choose_rule,
)
from celery_sagas.core.keys import KeyProperty
from celery_sagas.core.message import Message, SagaKey
from celery_sagas.errors import CorrelationError, DefinitionError

ORDER = UUID("6f1f0a3e-52c4-4c3f-9c69-0c6a3a6f9d11")


def keys(key: dict[str, Any], alternates: dict[str, Any] | None = None, saga: str = "order", **options: Any) -> SagaKeys:
    """Declare a saga's properties by their types."""
    declared = {**key, **(alternates or {})}
    fields = create_model("Saga", **{name: (kind, ...) for name, kind in declared.items()}).model_fields
    made = {name: KeyProperty(saga, name, fields[name]) for name in declared}
    return SagaKeys(saga, tuple(made[name] for name in key), {name: made[name] for name in alternates or {}}, **options)


NUMBER = keys({"number": str}, {"tracking": str | None, "invoice": int | None})
COMPOSITE = keys({"region": str, "number": int}, {"tracking": str | None})


class Placed(Message):
    number: str


class Paid(Message):
    id: str
    reference: str
    tracking: str | None = None


class OrderSeen(Message):
    order_id: str
    id: str


class Marked(Message):
    id: str
    number: str
    order: Annotated[str, SagaKey]


class MarkedToo(Marked):
    other: str = ""


class MarkedOptional(Message):
    order: Annotated[str, SagaKey()] | None = None


class MarkedTwice(Message):
    a: Annotated[str, SagaKey]
    b: Annotated[str, SagaKey]


class Forward(Message):
    order: "Later"


Later = Annotated[str, SagaKey]


class Region(Message):
    region: str
    reference: str = ""


@dataclass
class Parcel:
    code: str
    region: str = "north"


class Plain(BaseModel):
    parcel: Parcel
    number: str = "1"


def handler(parameters: Mapping[str, Any], by: Any = None, of: SagaKeys = NUMBER) -> Any:
    return choose_rule(of, step="order.step", parameters=parameters, starter=False, by=by)


def starter(parameters: Mapping[str, Any], by: Any = None, of: SagaKeys = NUMBER) -> Any:
    return choose_rule(of, step="order.step", parameters=parameters, starter=True, by=by)


CAUSATION = "number from the causation header"
MARK = Annotated[str, SagaKey]

ORDER_OF_CHOICE = [
    # a flush request goes before names
    ({"number": str, "other": MARK}, "number from argument other"),
    ({"other": Annotated[str, SagaKey()]}, "number from argument other"),
    ({"other": Annotated[str | None, SagaKey]}, "number from argument other"),
    ({"number": str, "event": Marked}, "number from event.order"),
    ({"event": MarkedToo}, "number from event.order"),
    ({"event": MarkedOptional}, "number from event.order"),
    ({"event": Marked, "other": MARK}, "number from argument other"),
    # the key by its name goes before an alternate
    ({"tracking": str, "number": str}, "number from argument number"),
    ({"event": Placed}, "number from event.number"),
    ({"event": Annotated[Placed | None, "mark"]}, "number from event.number"),
    ({"event": Placed, "number": str}, "number from argument number"),
    ({"event": Placed, "order_id": str}, "number from event.number"),
    # {saga}_id goes before id
    ({"order_id": str}, "number from argument order_id"),
    ({"event": OrderSeen}, "number from event.order_id"),
]
FOR_HANDLERS_ONLY = [
    ({"tracking": str}, "tracking from argument tracking"),
    ({"invoice": int, "tracking": str}, "tracking from argument tracking"),
    ({"order_id": str, "tracking": str}, "tracking from argument tracking"),
    ({"event": Paid}, "tracking from event.tracking"),
    ({"event": Paid, "invoice": int}, "tracking from event.tracking"),
    ({"invoice": int}, "invoice from argument invoice"),
    ({"event": create_model("Bare", __base__=Message, id=(str, ...))}, "number from event.id"),
    ({}, CAUSATION),
    ({"receipt": str}, CAUSATION),
    ({"id": str}, CAUSATION),
    ({"event": Plain}, CAUSATION),
    ({"event": list[Placed]}, CAUSATION),
    ({"event": Placed | Paid}, CAUSATION),
    ({"event": Placed, "other": Paid}, CAUSATION),
    ({"untyped": Any}, CAUSATION),
]


@pytest.mark.parametrize(("parameters", "described"), ORDER_OF_CHOICE + FOR_HANDLERS_ONLY)
def test_rule_of_a_handler(parameters, described):
    """The rules in order: mark, name, {saga}_id, id; then the causation."""
    assert handler(parameters).describe() == described


@pytest.mark.parametrize(("parameters", "described"), ORDER_OF_CHOICE)
def test_rule_of_a_starter(parameters, described):
    """The message contains the new identity."""
    assert starter(parameters).describe() == described


@pytest.mark.parametrize("parameters", [parameters for parameters, _ in FOR_HANDLERS_ONLY if "order_id" not in parameters])
def test_starter_without_its_key_is_a_definition_error(parameters):
    """Neither an alternate, nor a bare id, nor the causation starts a saga: nearly every event's id is its own."""
    with pytest.raises(DefinitionError, match=r"order\.step: a starter must name its instance.* argument number"):
        starter(parameters)


def test_starter_is_not_found_by_an_alternate_that_a_handler_would_prefer():
    assert starter({"order_id": str, "tracking": str}).describe() == "number from argument order_id"


@pytest.mark.parametrize(
    ("parameters", "of", "example"),
    [
        ({"code": str}, NUMBER, 'by={"number": "code"}'),
        ({"payment": Paid}, NUMBER, 'by={"number": "payment.id"}'),
        ({"order": Plain}, NUMBER, 'by={"number": "order.number"}'),
        ({"parcel": Parcel}, NUMBER, 'by={"number": "parcel.code"}'),
        ({"a": str, "b": int}, COMPOSITE, 'by={"region": "a", "number": "b"}'),
        ({"event": Region}, COMPOSITE, 'by={"region": "event.region", "number": "event.reference"}'),
        ({"region": str, "data": dict}, COMPOSITE, 'by={"region": "region", "number": "data"}'),
    ],
)
def test_definition_error_shows_by_for_this_very_step(parameters, of, example):
    with pytest.raises(DefinitionError) as caught:
        starter(parameters, of=of)
    assert example in str(caught.value)


@pytest.mark.parametrize(("parameters", "of"), [({}, NUMBER), ({"region": str}, COMPOSITE)])
def test_definition_error_invents_no_path(parameters, of):
    with pytest.raises(DefinitionError) as caught:
        starter(parameters, of=of)
    assert "by=" not in str(caught.value)


@pytest.mark.parametrize("parameters", [{"a": MARK, "b": MARK}, {"event": MarkedTwice}])
def test_two_marks_are_a_definition_error(parameters):
    with pytest.raises(DefinitionError, match=r"SagaKey marks (event\.)?a and (event\.)?b"):
        handler(parameters)


@pytest.mark.parametrize(
    ("parameters", "described"),
    [
        ({"number": int, "region": str}, "region from argument region, number from argument number"),
        ({"number": int, "event": Region}, "region from event.region, number from argument number"),
        ({"number": int, "region": str, "tracking": str}, "region from argument region, number from argument number"),
        ({"number": int, "tracking": str}, "tracking from argument tracking"),
        ({"number": int}, "region and number from the causation header"),
        ({"order_id": str}, "region and number from the causation header"),
        ({"event": OrderSeen}, "region and number from the causation header"),
        ({"event": MarkedOptional}, "region and number from the causation header"),
    ],
)
def test_composite_key_needs_all_its_parts_by_name(parameters, described):
    """No single value is a composite key; a flush request in a Message was meant for another saga."""
    assert handler(parameters, of=COMPOSITE).describe() == described


def test_mark_on_an_argument_of_a_composite_key_is_a_definition_error():
    """Position would have to say which part it is: moving an argument would silently find other instances."""
    with pytest.raises(DefinitionError, match=r"SagaKey cannot say which part .*by=.*region.*number"):
        handler({"a": MARK, "b": MARK}, of=COMPOSITE)


@pytest.mark.parametrize("saga", ["shop.order", "order-v2"])
def test_saga_whose_name_is_no_identifier_has_no_id_argument(saga):
    assert isinstance(handler({"order_id": str}, of=keys({"number": str}, saga=saga)), CausationRule)


def test_mark_behind_a_forward_reference_is_seen():
    assert handler({"event": Forward}).describe() == "number from event.order"


def second(arguments: Mapping[str, Any]) -> object:
    return arguments["code"].split("/")[1]


@pytest.mark.parametrize(
    ("by", "parameters", "described"),
    [
        ("tracking", {"number": str, "tracking": str}, "tracking from argument tracking"),
        ("tracking", {"event": Paid}, "tracking from event.tracking"),
        ("number", {"number": str, "other": MARK}, "number from argument number"),
        ("number", {"other": MARK, "tracking": str}, "number from argument other"),
        ("number", {"order_id": str, "tracking": str}, "number from argument order_id"),
        ("number", {"event": Paid}, "number from event.id"),
        (("tracking",), {"tracking": str}, "tracking from argument tracking"),
        (["number"], {"number": str}, "number from argument number"),
        ({"number": "code"}, {"code": str, "number": str}, "number from argument code"),
        ({"number": "payment.reference"}, {"payment": Paid}, "number from payment.reference"),
        ({"number": "event.parcel.code"}, {"event": Plain}, "number from event.parcel.code"),
        ({"number": "a.b.c"}, {"a": dict[str, Any]}, "number from a.b.c"),
        ({"tracking": "code"}, {"code": str, "number": str}, "tracking from argument code"),
        ({"number": second}, {"code": str}, "number from the function second"),
        ({"number": lambda arguments: "1"}, {}, "number from the function <lambda>"),
        ({"number": partial(second)}, {"code": str}, "number from the function partial"),
    ],
)
def test_by_goes_before_every_other_rule(by, parameters, described):
    assert handler(parameters, by).describe() == described


@pytest.mark.parametrize(
    ("by", "parameters", "described"),
    [
        (("region", "number"), {"number": int, "region": str}, "region from argument region, number from argument number"),
        (("number", "region"), {"number": int, "region": str}, "region from argument region, number from argument number"),
        (
            {"number": "a.parcel.code", "region": second},
            {"a": Plain, "code": str},
            "region from the function second, number from a.parcel.code",
        ),
        ("tracking", {"number": int, "region": str, "tracking": str}, "tracking from argument tracking"),
    ],
)
def test_by_of_a_composite_key(by, parameters, described):
    assert handler(parameters, by, COMPOSITE).describe() == described


@pytest.mark.parametrize(
    "by", ["total", ("total",), {"total": "code"}, ("number", "total"), ("number", "tracking"), "$key", "order_id"]
)
def test_by_what_is_no_property_is_a_definition_error(by):
    """It is an error on every store, so that what works in memory works in production."""
    with pytest.raises(DefinitionError, match=r"order\.step: by= names .* found by number or tracking or invoice"):
        handler({"code": str, "total": str, "number": str, "tracking": str}, by)


@pytest.mark.parametrize(
    ("by", "of", "says"),
    [
        ("payment.reference", NUMBER, """stands there. Write a mapping: by={"number": "payment.reference"}."""),
        ("order.parcel.code", NUMBER, """stands there. Write a mapping: by={"number": "order.parcel.code"}."""),
        ("payment.reference", COMPOSITE, """stands there. Write a mapping: by={"region": "payment.reference", …}."""),
        ("payment.user", NUMBER, "stands there; and there is no payment.user. Give it the argument number, or say where"),
        ("event.user", NUMBER, "stands there; and there is no argument 'event'. Give it the argument number, or say where"),
    ],
)
def test_by_a_path_alone_is_a_definition_error_with_the_mapping(by, of, says):
    with pytest.raises(DefinitionError) as caught:
        handler({"payment": Paid, "order": Plain}, by, of)
    assert f"order.step: by={by!r} is a path, and does not say which property {says}" in str(caught.value)
    assert "by={" in str(caught.value)


@pytest.mark.parametrize("by", ["", (), {}, [], 1, object(), second, {1: "code"}, (None,), {"number"}])
def test_by_of_a_wrong_kind_is_a_definition_error(by):
    with pytest.raises(DefinitionError, match=r"order\.step: by="):
        handler({"code": str}, by)


@pytest.mark.parametrize("by", ["tracking", ("tracking",), {"tracking": "tracking"}])
def test_starter_by_an_alternate_is_a_definition_error(by):
    with pytest.raises(DefinitionError, match=r"a starter is found by its key, and tracking is an alternate"):
        starter({"tracking": str, "number": str}, by)


@pytest.mark.parametrize("by", ["number", ("region",), {"number": "number"}])
def test_by_a_part_of_the_key_is_a_definition_error(by):
    with pytest.raises(DefinitionError, match=r"by= names only \w+ of the key region and number"):
        handler({"number": int, "region": str}, by, COMPOSITE)


@pytest.mark.parametrize(
    ("by", "parameters", "choose"),
    [
        ("tracking", {"number": str, "code": str}, handler),
        ("tracking", {"order_id": str, "other": MARK}, handler),
        ("number", {"code": str}, handler),
        ("number", {"event": Paid}, starter),
    ],
)
def test_by_a_property_that_stands_nowhere_is_a_definition_error(by, parameters, choose):
    """It is never found by the causation instead."""
    with pytest.raises(DefinitionError, match=rf"by= names {by}, and none of its arguments.* such as by="):
        choose(parameters, by)


@pytest.mark.parametrize(
    ("target", "missing"),
    [
        ("nothing", "argument 'nothing'"),
        ("reference", "argument 'reference'"),
        ("", "argument ''"),
        (".reference", "argument ''"),
        (7, "argument ''"),
        (None, "argument ''"),
        ("payment.refrence", "payment.refrence"),
        ("payment.reference.upper", "payment.reference.upper"),
        ("order.parcel.weight", "order.parcel.weight"),
        ("code.upper", "code.upper"),
    ],
)
def test_by_a_path_that_cannot_exist_is_a_definition_error(target, missing):
    with pytest.raises(DefinitionError) as caught:
        handler({"payment": Paid, "order": Plain, "code": str}, {"number": target})
    assert f"by= takes number from {target!r}, and there is no {missing}." in str(caught.value)


def test_address_of_a_key():
    """The value has the property's declared type, and its canonical text."""
    rule = handler({"number": str}, of=keys({"number": UUID}))
    assert rule.correlate({"number": str(ORDER).upper()}, {}) == Address(KEY, str(ORDER), {"number": ORDER})


def test_address_of_a_composite_key():
    rule = handler({"number": int, "region": str}, of=COMPOSITE)
    address = rule.correlate({"number": "7", "region": "north"}, {})
    assert address == Address(KEY, '["north","7"]', {"region": "north", "number": 7})


def test_address_of_an_alternate_key():
    rule = handler({"invoice": str})
    assert rule.correlate({"invoice": "7"}, {}) == Address("invoice", "7", {"invoice": 7})


def test_address_through_the_field_s_validation():
    rule = handler({"number": str}, of=keys({"number": Annotated[str, StringConstraints(to_lower=True)]}))
    assert rule.correlate({"number": "AbC"}, {}).text == "abc"


@pytest.mark.parametrize(
    ("by", "parameters", "arguments"),
    [
        (None, {"event": Optional[Placed]}, {"event": Placed(number="42")}),  # noqa: UP045
        (None, {"event": MarkedToo}, {"event": MarkedToo(id="1", number="2", order="42")}),
        (None, {"event": OrderSeen}, {"event": OrderSeen(id="1", order_id="42")}),
        ({"number": "event.parcel.code"}, {"event": Plain}, {"event": Plain(parcel=Parcel("42"))}),
        ({"number": "a.b.c"}, {"a": dict[str, Any]}, {"a": {"b": {"c": 42}}}),
        ({"number": second}, {"code": str}, {"code": "x/42"}),
    ],
)
def test_value_is_read_where_the_rule_says(by, parameters, arguments):
    assert handler(parameters, by).correlate(arguments, {"order": "i-1"}).text == "42"


def test_function_of_by_cannot_change_the_arguments():
    seen = []
    handler({"code": str}, {"number": lambda arguments: seen.append(arguments) or "1"}).correlate({"code": "x"}, {})
    assert seen == [{"code": "x"}]
    assert type(seen[0]) is MappingProxyType


@pytest.mark.parametrize(
    ("rule", "arguments", "problem"),
    [
        (handler({"number": str}), {"number": None}, "number from argument number: None is no key: it is null"),
        (handler({"number": str}), {"number": ""}, "number from argument number: '' is no key: it is empty"),
        (handler({"number": str}), {"number": 1.5}, "number from argument number: 1.5 is no key"),
        (handler({"number": str}), {}, "number from argument number: number is missing"),
        (handler({"tracking": str}), {"tracking": None}, "tracking from argument tracking: None is no key"),
        (handler({"invoice": str}), {"invoice": "x"}, "invoice from argument invoice: 'x' is no key"),
        (handler({"event": Placed | None}), {"event": None}, "number from event.number: event.number is missing"),
        (handler({"a": dict}, {"number": "a.b.c"}), {"a": {"b": {}}}, "number from a.b.c: a.b.c is missing"),
        (handler({"code": str}, {"number": second}), {"code": "x"}, "number from the function second: IndexError("),
        (handler({}, {"number": lambda _: int("x")}), {}, "number from the function <lambda>: invalid literal"),
        (handler({}, {"number": lambda _: None}), {}, "number from the function <lambda>: None is no key"),
        (
            handler({"region": str, "number": int}, of=COMPOSITE),
            {"region": "x" * 250, "number": 42},
            "region from argument region, number from argument number: ",
        ),
        (
            handler({"region": str, "number": int}, of=COMPOSITE),
            {"region": "x", "number": None},
            "number from argument number: None",
        ),
    ],
)
def test_value_that_is_no_key_raises(rule, arguments, problem):
    """There is never a silent miss, and never another rule, though the causation would lead somewhere."""
    with pytest.raises(CorrelationError) as caught:
        rule.correlate(arguments, {"order": "i-1"})
    assert caught.value.step == "order.step"
    assert caught.value.problem.startswith(problem)
    assert isinstance(caught.value.__cause__, Exception)


@pytest.mark.parametrize("names", [("order",), ("purchase", "order"), ("purchase", "old", "order")])
def test_causation_leads_to_the_instance_s_id(names):
    """A header that was written before the saga was renamed leads there too."""
    rule = handler({"receipt": str}, of=keys({"number": str}, saga=names[0], formerly=names[1:]))
    assert rule.correlate({"receipt": "r"}, {"shipment": "s-1", "order": "i-1"}) == Address(ID, "i-1", {})


def test_causation_of_the_present_name_goes_first():
    rule = handler({}, of=keys({"number": str}, formerly=("old",)))
    assert rule.correlate({}, {"old": "i-1", "order": "i-2"}).text == "i-2"


def test_handler_that_reaches_nothing_raises_and_says_which_ways_there_are():
    """An indeterminate identity is an error."""
    with pytest.raises(CorrelationError) as caught:
        handler({"receipt": str}).correlate({"receipt": "r"}, {"shipment": "s-1"})
    for way in ("caused it", "a step of order", "named number or tracking or invoice, or order_id,", "SagaKey", "by="):
        assert way in str(caught.value)


def test_ways_of_a_composite_key():
    with pytest.raises(CorrelationError) as caught:
        handler({}, of=COMPOSITE).correlate({}, {})
    assert "named region and number or tracking; or" in str(caught.value)
    assert "SagaKey" not in str(caught.value)


def test_property_of_a_rule():
    properties = [handler({name: str}).property for name in ("number", "tracking", "other")]
    assert properties == [KEY, "tracking", ID]


@pytest.mark.parametrize("rule", [handler({"number": str}), handler({})])
def test_rule_is_frozen(rule):
    with pytest.raises(FrozenInstanceError):
        rule.step = "other"


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@pytest.mark.parametrize(
    ("declared", "values"),
    [
        (int, [42, "42", 42.0, Decimal(42)]),
        (str, [42, "42"]),
        (UUID, [ORDER, str(ORDER), ORDER.hex, ORDER.urn]),
        (str, [ORDER, str(ORDER)]),
        (Colour, [Colour.RED, "red"]),
    ],
)
def test_every_form_of_a_value_leads_to_one_address(declared, values):
    """A number and its text find the same instance."""
    rule = starter({"number": Any}, of=keys({"number": declared}))
    addresses = [rule.correlate({"number": value}, {}) for value in values]
    assert all(one == other for one, other in itertools.pairwise(addresses))


PARTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30)
PAIRS = st.tuples(PARTS, st.integers(-(10**9), 10**9))


@given(one=PAIRS, other=PAIRS)
def test_distinct_composite_keys_have_distinct_addresses(one, other):
    rule = starter({"region": str, "number": int}, of=COMPOSITE)
    texts = [rule.correlate({"region": region, "number": number}, {}).text for region, number in (one, other)]
    assert (texts[0] == texts[1]) is (one == other)


KINDS = [str, int, Any, MARK, Placed, Paid, OrderSeen, Marked, MarkedOptional, Plain, Region]
NAMES = ["number", "region", "tracking", "invoice", "order_id", "id", "event", "other"]


@given(
    parameters=st.dictionaries(st.sampled_from(NAMES), st.sampled_from(KINDS), max_size=4),
    of=st.sampled_from([NUMBER, COMPOSITE]),
)
def test_every_step_has_a_rule_or_a_definition_error(parameters, of):
    """A starter is found by its key and by nothing else; a handler always has a rule, unless its marks are ambiguous."""
    for choose in (handler, starter):
        try:
            rule = choose(parameters, of=of)
        except DefinitionError as exc:
            assert choose is starter or "SagaKey" in exc.problem  # noqa: PT017
        else:
            assert isinstance(rule, ArgumentRule | CausationRule)
            assert choose is handler or rule.property == KEY
