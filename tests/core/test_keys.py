"""Correlation properties: what is converted, what is refused, and the one text of each value."""

import json
import sys
from datetime import date, datetime
from decimal import Decimal
from enum import Enum, Flag, IntEnum, IntFlag, StrEnum
from typing import Annotated, Any, Literal, NewType, Optional
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import UUID4, AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, create_model
from typing_extensions import TypeAliasType

from celery_sagas.core.keys import TEXT_LIMIT, KeyProperty, key_text, unwrap
from celery_sagas.errors import DefinitionError

SOME_ID = UUID("6f1f0a3e-52c4-4c3f-9c69-0c6a3a6f9d11")


class Region(StrEnum):
    NORTH = "north"
    ONE = "1"


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 20


class Shelf(Enum):
    TOP = 1
    BOTTOM = -2


class Mixed(Enum):
    TEXT = "1"
    NUMBER = 1


class Switch(Enum):
    ON = True
    OFF = False


class Ratio(float, Enum):
    HALF = 0.5


class Nothing(Enum):
    pass


class Rights(IntFlag):
    READ = 1


class Signs(Flag):
    PLUS = 1


class Lenient(StrEnum):
    NORTH = "north"

    @classmethod
    def _missing_(cls, value):
        if value == "boom":
            raise KeyError(value)
        return next((member for member in cls if member.value == str(value).lower()), None)


class Name(str):
    """A str that shows itself in another way."""

    def __str__(self) -> str:
        return "another"


class Number(int):
    """An int that shows itself in another way."""

    def __str__(self) -> str:
        return "another"


class Model(BaseModel):
    id: str


OrderNumber = NewType("OrderNumber", int)
Code = TypeAliasType("Code", Annotated[str, StringConstraints(to_lower=True)])
MaybeCode = TypeAliasType("MaybeCode", Optional[Code])  # noqa: UP045


def prop(annotation: Any, default: Any = ..., **options: Any) -> KeyProperty:
    """Declare a property as a saga would: as a field of a model."""
    model = create_model("Order", number=(annotation, default))
    return KeyProperty("order", "number", model.model_fields["number"], **options)


@pytest.mark.parametrize(
    ("annotation", "declared"),
    [
        (str, str),
        (int, int),
        (UUID, UUID),
        (UUID4, UUID),
        (Region, Region),
        (Colour, Colour),
        (Level, Level),
        (Shelf, Shelf),
        (str | None, str),
        (Optional[int], int),  # noqa: UP045
        (Annotated[str, Field(max_length=5)], str),
        (Annotated[str, Field(max_length=5)] | None, str),
        (Annotated[Optional[Level], "mark"], Level),  # noqa: UP045
        (OrderNumber, int),
        (OrderNumber | None, int),
        (Code, str),
        (Code | None, str),
        (MaybeCode, str),
        (Annotated[MaybeCode, Field(max_length=5)], str),
        (NewType("Nested", Code), str),
        (Literal["new", "paid"], str),
        (Literal[1, 2] | None, int),
    ],
)
def test_declared_type_is_seen_through_what_wraps_it(annotation, declared):
    """The declared type decides."""
    assert prop(annotation).type is declared


@pytest.mark.parametrize(
    "annotation",
    [
        *(type(None), bool, float, Decimal, bytes, datetime, date, Any, Literal["a", 1], Literal[True], Model),
        *(str | int, str | int | None, list[str], dict[str, str], tuple[str, int]),
        *(Mixed, Switch, Ratio, Nothing, Rights, Signs),
        *(Annotated[float, Field(gt=0)], NewType("Rate", float)),
    ],
    ids=str,
)
def test_type_without_canonical_text_is_a_definition_error(annotation):
    """A value of such a type has several texts, such as 1.0 and 1.00."""
    with pytest.raises(DefinitionError) as caught:
        prop(annotation)
    for part in ("order", "number", "str, int, UUID", "enum"):
        assert part in str(caught.value)


def test_definition_error_spells_the_type():
    with pytest.raises(DefinitionError, match=r"declared as Decimal, whose"):
        prop(Decimal)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the type statement is new in Python 3.12")
def test_type_statement():
    scope: dict[str, Any] = {}
    exec("type Plain = int\ntype Maybe = Plain | None", scope)
    assert unwrap(scope["Plain"]) == unwrap(scope["Maybe"]) == (int, ())


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (str, "42", "42"),
        (str, " 42 ", " 42 "),
        (str, 42, "42"),
        (str, -1, "-1"),
        (str, SOME_ID, str(SOME_ID)),
        (str, Region.NORTH, "north"),
        (str, Colour.RED, "red"),
        (str, Level.HIGH, "20"),
        (str, Name("x"), "x"),
        (str, Number(7), "7"),
        (int, 42, 42),
        (int, "42", 42),
        (int, "-7", -7),
        (int, "0", 0),
        (int, 42.0, 42),
        (int, -0.0, 0),
        (int, float(2**53 - 1), 2**53 - 1),
        (int, Decimal("42"), 42),
        (int, Decimal("42.000"), 42),
        (int, Decimal("4.2E+1"), 42),
        (int, Decimal("0E+999999999"), 0),
        (int, Decimal("123456789012345678901234567890123456789"), 123456789012345678901234567890123456789),
        (int, Level.LOW, 1),
        (int, Shelf.BOTTOM, -2),
        (int, Region.ONE, 1),
        (int, Number(7), 7),
        (UUID, SOME_ID, SOME_ID),
        (UUID, str(SOME_ID), SOME_ID),
        (UUID, str(SOME_ID).upper(), SOME_ID),
        (UUID, SOME_ID.hex, SOME_ID),
        (UUID, SOME_ID.urn, SOME_ID),
        (UUID, f"{{{SOME_ID}}}", SOME_ID),
        (Region, "north", Region.NORTH),
        (Region, Region.NORTH, Region.NORTH),
        (Region, 1, Region.ONE),
        (Region, Level.LOW, Region.ONE),
        (Lenient, "NORTH", Lenient.NORTH),
        (Colour, "red", Colour.RED),
        (Level, 1, Level.LOW),
        (Level, "1", Level.LOW),
        (Level, 20.0, Level.HIGH),
        (Level, Shelf.TOP, Level.LOW),
        (Shelf, "-2", Shelf.BOTTOM),
        (OrderNumber, "7", 7),
        (str | None, "x", "x"),
    ],
)
def test_value_becomes_the_declared_type(annotation, value, expected):
    """A message's value is converted to the property's declared type."""
    converted = prop(annotation).convert(value)
    assert (type(converted), converted) == (type(expected), expected)


@pytest.mark.parametrize("annotation", [str, int, UUID, Region, Level, str | None])
@pytest.mark.parametrize("value", [None, True, False, Switch.ON, b"x", [], {}, object(), Model(id="1"), date(2025, 1, 1), 1j])
def test_no_key_at_all(annotation, value):
    """A null, a bool or a value of a strange type is an error, never a silent miss."""
    with pytest.raises(ValueError, match="is no key"):
        prop(annotation).convert(value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (str, 1.0),
        (str, Decimal("1")),
        (str, Ratio.HALF),
        (int, ""),
        (int, "01"),
        (int, "+1"),
        (int, "-0"),
        (int, " 1"),
        (int, "1\n"),
        (int, "1_0"),
        (int, "1.0"),
        (int, "0x1"),
        (int, "\u0661"),
        (int, "9" * 300),
        (int, 1.5),
        (int, float(2**53)),
        (int, float("nan")),
        (int, float("-inf")),
        (int, Decimal("1.5")),
        (int, Decimal("1E-999999")),
        (int, Decimal("1E+999999999999")),
        (int, Decimal("NaN")),
        (int, Decimal("sNaN")),
        (int, Decimal("Infinity")),
        (int, SOME_ID),
        (UUID, "42"),
        (UUID, 42),
        (UUID, SOME_ID.bytes),
        (UUID, f"0x{'1' * 30}"),
        (UUID, f"1_{'1' * 30}"),
        (UUID, f" {'1' * 31}"),
        (Region, "south"),
        (Region, "NORTH"),
        (Region, 1.0),
        (Lenient, "boom"),
        (Colour, 1),
        (Level, 2),
        (Level, "low"),
        (Level, "01"),
    ],
)
def test_loss_is_an_error(annotation, value):
    """A value is converted without loss, or an error is raised."""
    with pytest.raises(ValueError, match="is no key"):
        prop(annotation).convert(value)


@pytest.mark.parametrize("value", ["", "\0", "a\0b", "\ud800", "x\udfff", "x" * (TEXT_LIMIT + 1)])
def test_text_that_no_store_keeps_is_an_error(value):
    """An empty key is most often a form field that nobody filled in: all such messages would meet in one instance."""
    with pytest.raises(ValueError, match="is no key"):
        prop(str).convert(value)
    with pytest.raises(ValueError, match="is no key"):
        prop(str).text(value)


@pytest.mark.parametrize("annotation", [str, int, Level])
def test_int_that_python_does_not_spell_is_an_error(annotation):
    with pytest.raises(ValueError, match="4300"):
        prop(annotation).convert(10**5000)


def test_longest_texts():
    assert prop(str).convert("é" * TEXT_LIMIT) == "é" * TEXT_LIMIT
    assert prop(int).text(10**TEXT_LIMIT - 1) == "9" * TEXT_LIMIT
    with pytest.raises(ValueError, match="255"):
        prop(int).text(10**TEXT_LIMIT)


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (Annotated[str, StringConstraints(to_lower=True, strip_whitespace=True)], " AbC ", "abc"),
        (Annotated[str, StringConstraints(to_upper=True)] | None, "abc", "ABC"),
        (Code, "ABC", "abc"),
        (Code, Colour.RED, "red"),
        (Annotated[int, AfterValidator(abs)], "-7", 7),
        (Annotated[str, BeforeValidator(lambda value: value.strip())], " 1 ", "1"),
        (Annotated[Level, Field(strict=True)], "1", Level.LOW),
        (Annotated[UUID, Field(strict=True)], str(SOME_ID), SOME_ID),
        (UUID4, str(SOME_ID), SOME_ID),
    ],
)
def test_validation_of_the_field_is_applied(annotation, value, expected):
    """The message's value becomes what the field would hold."""
    assert prop(annotation).convert(value) == expected


@pytest.mark.parametrize(
    ("annotation", "value", "reason"),
    [
        (Annotated[str, Field(max_length=3)], "abcd", "at most 3"),
        (Annotated[str, Field(max_length=3)] | None, "abcd", "at most 3"),
        (Annotated[int, Field(gt=0)], "-1", "greater than 0"),
        (UUID4, "00000000-0000-1000-8000-000000000000", "version 4"),
        (Annotated[str, AfterValidator(lambda value: value + "!")], "a", "again each time"),
        (Annotated[str, AfterValidator(lambda value: None)], "a", "valid string"),
        (Annotated[str, AfterValidator(lambda value: value.strip())], "  ", "empty"),
        (Annotated[str, AfterValidator(len)], "abc", "valid string"),
        (Annotated[str, AfterValidator(lambda value: {}[value])], "a", "failed: KeyError"),
    ],
)
def test_value_that_the_field_refuses_is_an_error(annotation, value, reason):
    with pytest.raises(ValueError, match=f"is no key: .*({reason})"):
        prop(annotation).convert(value)


def test_constraints_of_the_default_s_field_count():
    with pytest.raises(ValueError, match="at least 2"):
        prop(Annotated[str, Field(max_length=3)], Field("xx", min_length=2)).convert("a")


def test_saga_s_configuration_counts():
    """A saga's ``model_config`` changes what its fields hold, and so their text."""
    config = ConfigDict(str_strip_whitespace=True, use_enum_values=True)
    assert prop(str, config=config).convert(" a ") == "a"
    colour = prop(Colour, config=config)
    assert colour.text(colour.convert("red")) == colour.text(Colour.RED) == "red"


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (str, "A b", "A b"),
        (str, Name("x"), "x"),
        (int, -12, "-12"),
        (int, Number(7), "7"),
        (UUID, UUID(str(SOME_ID).upper()), str(SOME_ID)),
        (Region, Region.NORTH, "north"),
        (Colour, Colour.RED, "red"),
        (Level, Level.HIGH, "20"),
        (Shelf, Shelf.BOTTOM, "-2"),
    ],
)
def test_text_of_a_value(annotation, value, expected):
    """An index row holds the value's text."""
    assert prop(annotation).text(value) == expected


@pytest.mark.parametrize(
    ("annotation", "value"), [(str, 1), (str, None), (int, "1"), (int, True), (UUID, str(SOME_ID)), (Level, "1")]
)
def test_text_of_a_value_that_the_field_cannot_hold(annotation, value):
    with pytest.raises(ValueError, match="is no key"):
        prop(annotation).text(value)


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=TEXT_LIMIT)
VALUES = {
    str: TEXTS,
    int: st.integers(min_value=-(10**254) + 1, max_value=10**255 - 1),
    UUID: st.uuids(),
    Region: st.sampled_from(Region),
    Shelf: st.sampled_from(Shelf),
}
PROPERTIES = {kind: prop(kind) for kind in VALUES}
kinds = pytest.mark.parametrize("kind", VALUES)


@kinds
@given(data=st.data())
def test_text_leads_back_to_its_value(kind, data):
    """The text says all of the value, so ``find`` by the text and by the value are the same."""
    value = data.draw(VALUES[kind])
    number = PROPERTIES[kind]
    assert number.convert(number.text(value)) == number.convert(value) == value


@kinds
@given(data=st.data())
def test_distinct_values_never_share_a_text(kind, data):
    one, other = data.draw(VALUES[kind]), data.draw(VALUES[kind])
    number = PROPERTIES[kind]
    assert (number.text(one) == number.text(other)) is (one == other)


ANYTHING = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.decimals() | st.text() | st.uuids() | st.binary() | st.dates()
) | st.sampled_from([*Region, *Level, *Mixed, *Switch, *Ratio])


@kinds
@given(value=ANYTHING)
def test_any_value_is_converted_or_a_value_error(kind, value):
    """What was converted stays what it is."""
    number = PROPERTIES[kind]
    try:
        converted = number.convert(value)
    except ValueError:
        return
    assert type(converted) is kind
    assert number.convert(converted) == number.convert(number.text(converted)) == converted


@given(value=st.text() | st.text("0123456789+-_ \n\u0660\u0661", max_size=6))
def test_str_to_int_keeps_the_spelling(value):
    try:
        converted = PROPERTIES[int].convert(value)
    except ValueError:
        return
    assert str(converted) == value


@given(value=st.floats(allow_nan=False) | st.decimals(allow_nan=False, allow_infinity=False))
def test_number_to_int_keeps_the_value(value):
    try:
        converted = PROPERTIES[int].convert(value)
    except ValueError:
        return
    assert converted == value


def test_key_of_one_part_is_its_text():
    assert key_text(['["a"]']) == '["a"]'


def test_key_of_several_parts_is_a_compact_array():
    assert key_text(["é", 'a"b', "1"]) == '["é","a\\"b","1"]'


@given(one=st.lists(TEXTS, min_size=2, max_size=4), other=st.lists(TEXTS, min_size=2, max_size=4))
def test_distinct_keys_never_share_a_text(one, other):
    texts = [json.dumps(parts, ensure_ascii=False, separators=(",", ":")) for parts in (one, other)]
    if max(map(len, texts)) <= TEXT_LIMIT:
        assert [key_text(one), key_text(other)] == texts
        assert (key_text(one) == key_text(other)) is (one == other)


def test_key_may_shift_nothing_between_its_parts():
    texts = {key_text(parts) for parts in (["a", "b,c"], ["a,b", "c"], ['a","b', "c"], ["a", "b", "c"], ["ab", "c"])}
    assert len(texts) == 5


@pytest.mark.parametrize("parts", [["x" * 256], ["x" * 200, "y" * 50], ["x" * 124, "\n" * 124]])
def test_key_is_limited_in_all(parts):
    with pytest.raises(ValueError, match="255"):
        key_text(parts)


def test_longest_key_of_parts():
    assert len(key_text(["x" * 125, "y" * 123])) == TEXT_LIMIT


def test_unwrap_collects_what_annotated():
    inner = TypeAliasType("inner", Annotated[str, "a"])
    assert unwrap(Annotated[Annotated[inner, "b"] | None, "c"]) == (str, ("a", "b", "c"))
    assert unwrap(str | int | None) == (str | int | None, ())
