"""Messages that are models: they survive Celery's JSON wherever they stand; and the paths into messages."""

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from typing import Annotated, Any, NotRequired
from uuid import UUID, uuid4

import pytest
from kombu.utils import json
from pydantic import AliasChoices, AliasGenerator, AliasPath, BaseModel, ConfigDict, Field, ValidationError, computed_field
from pydantic.alias_generators import to_camel
from typing_extensions import TypedDict

from celery_sagas.core.message import Message, members_of, missing_part, read_path, type_at
from celery_sagas.errors import DefinitionError


class Line(Message):
    sku: str
    amount: Decimal = Field(alias="amt")


class Placed(Message):
    order_id: UUID
    at: datetime
    lines: tuple[Line, ...] = ()
    note: str | None = Field(None, alias="remark")

    @computed_field
    @property
    def size(self) -> int:
        return len(self.lines)


@pytest.fixture
def placed():
    line = Line(sku="a", amount=Decimal("1.50"))
    return Placed(order_id=uuid4(), at=datetime(2025, 1, 1, tzinfo=UTC), lines=(line,), note="hi")


def test_message_is_frozen(placed):
    with pytest.raises(ValidationError, match="frozen"):
        placed.note = "other"
    assert hash(placed) == hash(placed.model_copy())


@pytest.mark.parametrize("wrap", [lambda m: m, lambda m: [m], lambda m: {"deep": [{"er": m}]}], ids=["bare", "list", "nested"])
def test_message_survives_kombu_wherever_it_stands(placed, wrap):
    sent = json.loads(json.dumps(wrap(placed)))
    while not isinstance(sent, dict) or "order_id" not in sent:
        sent = sent[0] if isinstance(sent, list) else next(iter(sent.values()))
    assert Placed.model_validate(sent) == placed


def test_dump_holds_aliases_and_no_computed_fields(placed):
    dumped = placed.__json__()
    assert dumped["remark"] == "hi"
    assert dumped["lines"] == [{"sku": "a", "amt": "1.50"}]
    assert "size" not in dumped


def test_message_loads_by_name_and_by_alias():
    assert Line(sku="a", amt=1) == Line(sku="a", amount=1) == Line.model_validate_json('{"sku": "a", "amt": 1}')


def test_alias_generator_holds_both_ways():
    class Camel(Message, alias_generator=to_camel):
        order_id: str

    assert Camel(order_id="1").__json__() == {"orderId": "1"}
    assert Camel.model_validate({"orderId": "1"}) == Camel(order_id="1")


@pytest.mark.parametrize(
    "field",
    [
        Field(alias="x"),
        Field(validation_alias="x"),
        Field(validation_alias=AliasPath("x", 0)),
        Field(validation_alias=AliasChoices("x", "y"), serialization_alias="y"),
        Field(serialization_alias="number"),
    ],
)
def test_field_that_can_be_read_again_is_accepted(field):
    class Event(Message):
        number: int = field

    event = Event(number=1)
    assert Event.model_validate(event.__json__()) == event


def test_names_are_enough_without_aliases():
    class Event(Message, populate_by_name=False):
        number: int

    assert Event.model_validate(Event(number=1).__json__()) == Event(number=1)


@pytest.mark.parametrize(
    ("field", "config"),
    [
        (Field(serialization_alias="x"), {}),
        (Field(validation_alias="x", serialization_alias="y"), {}),
        (Field(validation_alias=AliasPath("x", 0), serialization_alias="x"), {}),
        (Field(validation_alias="x"), {"populate_by_name": False}),
        (Field(), {"alias_generator": AliasGenerator(serialization_alias=to_camel)}),
    ],
)
def test_field_that_could_not_be_read_again_is_a_definition_error(field, config):
    """A message that cannot be loaded where it is handled would be a dead letter each time."""
    with pytest.raises(DefinitionError, match=r"Event\.the_number: .*alias"):

        class Event(Message):
            model_config = ConfigDict(**config)
            the_number: int = field


@dataclass
class Address:
    city: str
    extra: dict[str, Any]

    @property
    def where(self) -> str:
        return self.city


class Customer(TypedDict):
    name: str
    address: NotRequired[Address]


class Payment(BaseModel):
    reference: str
    customer: Customer | None = None
    address: Annotated[Address | None, "mark"] = None

    @cached_property
    def short(self) -> str:
        return self.reference[:2]


class Open(BaseModel, extra="allow"):
    known: str


ADDRESS = Address("Rome", {"zip": "00100"})
PAYMENT = Payment(reference="r-1", customer={"name": "Ada", "address": ADDRESS}, address=ADDRESS)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("number", 1),
        ("payment.reference", "r-1"),
        ("payment.short", "r-"),
        ("payment.address.where", "Rome"),
        ("payment.address.extra.zip", "00100"),
        ("payment.customer.name", "Ada"),
        ("payment.customer.address.city", "Rome"),
        ("open.unknown", 3),
    ],
)
def test_path_leads_to_a_value(path, expected):
    arguments = {"number": 1, "payment": PAYMENT, "open": Open(known="1", unknown=3)}
    assert read_path(tuple(path.split(".")), arguments) == expected


@pytest.mark.parametrize(
    ("path", "missing"),
    [
        ("other", "other"),
        ("payment.customer.name", "payment.customer.name"),
        ("payment.address.extra", "payment.address.extra"),
        ("table.b", "table.b"),
        ("table.a.c.d", "table.a.c"),
        ("number.x", "number.x"),
    ],
)
def test_missing_part_of_a_path_is_named(path, missing):
    arguments = {"number": 1, "payment": Payment(reference="r"), "table": {"a": {"b": 1}}}
    with pytest.raises(ValueError, match=f"^{missing} is missing$"):
        read_path(tuple(path.split(".")), arguments)


@pytest.mark.parametrize(
    ("path", "annotation", "missing"),
    [
        ("p", str, ""),
        ("p.reference", Payment, ""),
        ("p.reference", Annotated[Payment | None, "mark"], ""),
        ("p.short", Payment, ""),
        ("p.refrence", Payment, "p.refrence"),
        ("p.model_dump", Payment, "p.model_dump"),
        ("p.model_extra", Payment, "p.model_extra"),
        ("p.reference.upper", Payment, "p.reference.upper"),
        ("p.address.where", Payment, ""),
        ("p.address.street", Payment, "p.address.street"),
        ("p.address.extra.any.thing", Payment, ""),
        ("p.customer.name", Payment, ""),
        ("p.customer.age", Payment, "p.customer.age"),
        ("p.customer.address.city", Payment, ""),
        ("p.customer.address.town", Payment, "p.customer.address.town"),
        ("p.", Payment, "p."),
        ("p.any", Open, ""),
        ("p.any", dict, ""),
        ("p.any", dict[str, int], ""),
        ("p.any", Any, ""),
        ("p.any", object, ""),
        ("p.any", Payment | Open, ""),
        ("p.hex", UUID, "p.hex"),
        ("p.first", list[str], "p.first"),
    ],
)
def test_path_is_checked_as_far_as_annotations_go(path, annotation, missing):
    assert missing_part(tuple(path.split(".")), annotation) == missing


@pytest.mark.parametrize(
    ("path", "annotation", "expected"),
    [
        ("p", str, str),
        ("p.reference", Annotated[Payment | None, "mark"], str),
        ("p.customer.address.city", Payment, str),
        ("p.short", Payment, Any),
        ("p.any.thing", Any, Any),
        ("p.any", dict[str, int], Any),
    ],
)
def test_type_of_what_stands_at_a_path(path, annotation, expected):
    assert type_at(tuple(path.split(".")), annotation) is expected


def test_members_that_only_pydantic_can_resolve_are_not_known():
    @dataclass
    class Local:
        other: "Hidden"  # noqa: F821

    assert members_of(Local) is None
