"""The arguments of a message: what may be sent, and what a handler gets."""

import enum
import functools
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Optional
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils.json import dumps, loads
from pydantic import BaseModel, Field, PlainSerializer, PlainValidator, SecretBytes, SecretStr, computed_field, field_validator
from typing_extensions import TypedDict

from celery_sagas.core.arguments import arguments_of
from celery_sagas.core.message import Message, SagaKey
from celery_sagas.errors import DefinitionError, InvalidMessage


class Colour(enum.Enum):
    RED = "red"


class Size(enum.StrEnum):
    LARGE = "L"


class Line(BaseModel):
    sku: str
    amount: Decimal = Field(Decimal(1), alias="amt")


class Placed(Message):
    order_id: UUID
    lines: tuple[Line, ...] = ()


@dataclass
class Part:
    name: str
    made: date | None = None


class Point(NamedTuple):
    x: int
    y: int


class Options(TypedDict, total=False):
    until: date


def read(function: Callable[..., Any], *, leading: int = 1, **known: Any) -> Any:
    return arguments_of("order.step", function, leading=leading, known=known)


def one(annotation: Any) -> Any:
    def step(order, value): ...

    step.__annotations__ = {"value": annotation}
    return read(step)


def through_celery(arguments: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Send a message, as JSON that kombu writes and reads, and return what the handler gets."""
    args, kwargs = loads(dumps(arguments.encode(args, kwargs)))
    return arguments.validate(arguments.bind(*arguments.encode(args, kwargs)))


def problems_of(call: Callable[[], Any]) -> dict[str, str]:
    with pytest.raises(InvalidMessage) as caught:
        call()
    assert caught.value.step == "order.step"
    return dict(caught.value.problems)


def place(order, order_id: str, total: Decimal, card: str = "none", *, gift: bool = False): ...


# --- names


def test_parameters():
    arguments = read(place)
    assert list(arguments.annotations) == ["order_id", "total", "card", "gift"]
    assert arguments.annotations["total"] is Decimal
    assert arguments.defaults == {"card": "none", "gift": False}


def test_task_and_state_are_no_part_of_the_message():
    def step(self, order, n: int): ...

    assert list(read(step, leading=2).annotations) == ["n"]


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (("1", "9.99"), {}),
        (("1",), {"total": "9.99"}),
        ((), {"total": 9.99, "order_id": "1"}),
        (("1", "9.99", "none"), {"gift": False}),
    ],
)
def test_positions_and_names(args, kwargs):
    arguments = read(place)
    values = arguments.validate(arguments.bind(args, kwargs))
    assert values == {"order_id": "1", "total": Decimal("9.99"), "card": "none", "gift": False}
    assert list(values) == list(arguments.annotations)


@pytest.mark.parametrize(
    ("args", "kwargs", "problems"),
    [
        ((), {}, {"order_id": "Field required", "total": "Field required"}),
        (("1",), {}, {"total": "Field required"}),
        (("1", 2), {"nothing": 3}, {"nothing": "Extra inputs are not permitted"}),
        (("1", 2), {"order_id": "1"}, {"order_id": "it is given twice"}),
        (("1", 2, "c", True), {}, {"": "it has 4 positional arguments, and 3 are known"}),
        (("1", None), {}, {"total": "Decimal input should be an integer, float, string or Decimal object"}),
        ((1, 2), {}, {"order_id": "Input should be a valid string"}),
    ],
)
def test_what_does_not_fit(args, kwargs, problems):
    arguments = read(place)
    assert problems_of(lambda: arguments.validate(arguments.bind(args, kwargs))) == problems


def test_a_step_without_arguments():
    arguments = read(lambda order: None)
    assert through_celery(arguments) == {}
    assert problems_of(lambda: through_celery(arguments, 1))
    assert problems_of(lambda: through_celery(arguments, a=1))


def test_parameters_may_be_called_anything():
    def step(order, json: int, copy: int, self: int, model_dump: int, _private: int, name: int, args: int, kwargs: int): ...

    names = ["json", "copy", "self", "model_dump", "_private", "name", "args", "kwargs"]
    arguments = read(step)
    assert list(arguments.annotations) == names
    assert through_celery(arguments, *range(8)) == through_celery(arguments, **dict(zip(names, range(8), strict=True)))


def test_positional_and_keyword_only_parameters():
    def step(order, /, a: int, *, b: int): ...

    arguments = read(step)
    assert through_celery(arguments, 1, b=2) == {"a": 1, "b": 2}
    assert problems_of(lambda: arguments.bind((1, 2), {})) == {"": "it has 2 positional arguments, and 1 are known"}


# --- defaults


def test_defaults_are_not_validated_and_not_encoded():
    marker = object()

    def step(order, n: int = None, other: Any = marker, size: Size = Size.LARGE): ...  # noqa: RUF013

    values = through_celery(read(step))
    assert values == {"n": None, "other": marker, "size": Size.LARGE}
    assert values["other"] is marker


def test_nothing_is_shared_between_runs():
    def step(order, a: list[int] = [], b: dict[str, list[int]] = {"x": []}, c: Line = Line(sku="a"), d: Any = None): ...  # noqa: B006, B008

    arguments = read(step)
    bound = {"d": {"e": [1]}}
    first = arguments.validate(bound)
    first["a"].append(1)
    first["b"]["x"].append(1)
    first["c"].sku = "b"
    first["d"]["e"].append(2)
    assert arguments.validate(bound) == {"a": [], "b": {"x": []}, "c": Line(sku="a"), "d": {"e": [1]}}
    assert bound == {"d": {"e": [1]}}


def test_field_as_a_default():
    def step(order, n: int = Field(3, gt=0)): ...

    with pytest.raises(DefinitionError, match=r"the default of 'n' is a Field\(\)\. Write name: Annotated"):
        read(step)


def test_constraints_and_defaults_in_annotations():
    def step(order, n: Annotated[int, Field(gt=0)], m: Annotated[int, Field(default=4)], k: Annotated[int, Field(lt=9)] = 10): ...

    arguments = read(step)
    assert through_celery(arguments, 1) == {"n": 1, "m": 4, "k": 10}
    assert problems_of(lambda: through_celery(arguments, 0, k=9)) == {
        "n": "Input should be greater than 0",
        "k": "Input should be less than 9",
    }


def test_aliases():
    """Other publishers may use them; names are known all the same."""

    def step(order, order_id: Annotated[str, Field(alias="orderId")], line: Line): ...

    arguments = read(step)
    expected = {"order_id": "1", "line": Line(sku="a", amt=2)}
    assert arguments.validate(arguments.bind((), {"orderId": "1", "line": {"sku": "a", "amt": "2"}})) == expected
    assert through_celery(arguments, "1", Line(sku="a", amt=2)) == expected
    assert problems_of(lambda: through_celery(arguments, "1", Line(sku="a"), orderId="2"))


def test_saga_key_is_only_a_mark():
    def step(order, reference: Annotated[str, SagaKey]): ...

    assert through_celery(read(step), "1") == {"reference": "1"}


# --- values

SENT = [
    (int, 3),
    (int, 10**30),
    (float, 1.5),
    (str, "größer \U0001f600 \0"),
    (bool, True),
    (None, None),
    (Decimal, Decimal("9.990")),
    (UUID, UUID(int=3)),
    (datetime, datetime(2025, 1, 1, 2, 3, 4, 5, UTC)),
    (datetime, datetime(2025, 1, 1)),
    (date, date(2025, 1, 1)),
    (timedelta, timedelta(days=-1, microseconds=1)),
    (bytes, b"abc"),
    (Colour, Colour.RED),
    (Size, Size.LARGE),
    (set[str], {"a", "b"}),
    (frozenset[int], frozenset({1})),
    (tuple[int, str], (1, "a")),
    (dict[int, date], {1: date(2025, 1, 1)}),
    (list[Line], [Line(sku="a", amt=2)]),
    (Line, Line(sku="a")),
    (Placed, Placed(order_id=UUID(int=1), lines=(Line(sku="a"),))),
    (list[Placed], [Placed(order_id=UUID(int=1))]),
    (Part, Part("a", date(2025, 1, 1))),
    (Point, Point(1, 2)),
    (Options, {"until": date(2025, 1, 1)}),
    (Line | None, None),
    (Optional[Line], Line(sku="a")),  # noqa: UP045
    (Literal["a", "b"], "b"),
    (dict[str, Any], {"a": [1, None, {"b": 2.5}]}),
]


@pytest.mark.parametrize(("annotation", "value"), SENT, ids=lambda value: getattr(value, "__name__", ""))
def test_value_arrives_as_it_was_sent(annotation, value):
    arguments = one(annotation)
    for received in (through_celery(arguments, value), through_celery(arguments, value=value)):
        assert received == {"value": value}
        assert type(received["value"]) is type(value)


@pytest.mark.parametrize(("annotation", "value"), SENT, ids=lambda value: getattr(value, "__name__", ""))
def test_encoding_again_changes_nothing(annotation, value):
    """``s()`` encodes, and ``apply_async`` of that signature encodes again."""
    arguments = one(annotation)
    for encode in (arguments.encode, arguments.encode_partial):
        once = encode([value], {})
        assert encode(*once) == once
        assert arguments.encode(*encode([], {"value": value})) == encode([], {"value": value})
        assert loads(dumps(once)) == [once[0], once[1]]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(JSON)
def test_what_is_json_stays_as_it_is(value):
    """Whatever the annotation says: it is for the handler's side to judge."""
    for annotation in (Any, int, Line, set[str]):
        assert one_of[annotation].encode([value], {"value": value}) == ([value], {"value": value})


one_of = {annotation: one(annotation) for annotation in (Any, int, Line, set[str])}


def test_unannotated_is_whatever_json_says():
    def step(order, value): ...

    arguments = read(step)
    assert through_celery(arguments, {"a": [1]}) == {"value": {"a": [1]}}
    assert through_celery(arguments, Line(sku="a", amt=2)) == {"value": {"sku": "a", "amt": "2"}}
    assert through_celery(arguments, Size.LARGE) == {"value": "L"}
    assert through_celery(arguments, Decimal("1.50")) == {"value": "1.50"}


def test_what_kombu_decodes_by_itself():
    """A plain ``send_task`` from elsewhere: the arguments arrive as Python objects, not as JSON."""

    def step(order, at: datetime, uid: UUID, total: Decimal, day: date, ratio: float, text: str, raw: bytes): ...

    arguments = read(step)
    at, uid = datetime(2025, 1, 1, tzinfo=UTC), UUID(int=1)
    args = loads(dumps([at, uid, Decimal("1.50"), date(2025, 1, 1), Decimal("0.5"), uid, b"abc"]))
    assert isinstance(args[1], UUID)
    values = arguments.validate(arguments.bind(*arguments.encode(args, {})))
    assert list(values.values()) == [at, uid, Decimal("1.50"), date(2025, 1, 1), 0.5, str(uid), b"abc"]


def test_json_mode():
    """A string stands for what JSON has no value for; what JSON has is converted without loss, or not at all."""
    assert through_celery(one(set[int]), [1, 1]) == {"value": {1}}
    assert through_celery(one(Colour), "red") == {"value": Colour.RED}
    assert through_celery(one(timedelta), "PT1M") == {"value": timedelta(minutes=1)}
    assert through_celery(one(Annotated[UUID, Field(strict=True)]), str(UUID(int=1))) == {"value": UUID(int=1)}
    assert through_celery(one(int), 3.0) == {"value": 3}
    for annotation, value in [
        (int, 3.5),
        (str, 3),
        (bool, "maybe"),
        (list[int], {"0": 1}),
        (Annotated[int, Field(strict=True)], "3"),
    ]:
        assert problems_of(lambda a=annotation, v=value: through_celery(one(a), v))


def test_value_of_another_type_than_annotated_is_judged_on_arrival():
    assert problems_of(lambda: through_celery(one(Line), Part("a"))).keys() >= {"value.sku"}
    assert through_celery(one(Line | Part), Part("a")) == {"value": Part("a")}


class Money:
    """A class that pydantic does not know."""

    def __init__(self, cents: int) -> None:
        self.cents = cents


def test_type_that_only_its_annotation_can_write():
    arguments = one(Annotated[Money, PlainValidator(Money), PlainSerializer(lambda money: money.cents)])
    assert through_celery(arguments, Money(3))["value"].cents == 3
    assert through_celery(arguments, value=Money(3))["value"].cents == 3
    assert problems_of(lambda: arguments.encode_partial([Money(3)], {})) == {"": "a Money cannot be encoded as JSON"}


def test_partial_signature():
    """An answer may still be put before the arguments, so that a position has no annotation yet."""
    arguments = read(place)
    assert arguments.encode_partial([Decimal("1.50")], {"total": Decimal("2.50")}) == (["1.50"], {"total": "2.50"})
    assert arguments.encode_partial([Line(sku="a", amt=2)], {}) == ([{"sku": "a", "amt": "2"}], {})


class Strict(BaseModel, extra="forbid"):
    n: int

    @computed_field
    @property
    def double(self) -> int:
        return self.n * 2


@pytest.mark.parametrize("annotation", [Strict, Any])
def test_computed_fields_are_not_sent(annotation):
    arguments = one(annotation)
    for encode in (arguments.encode, arguments.encode_partial):
        assert encode([Strict(n=1)], {"value": Strict(n=2)}) == ([{"n": 1}], {"value": {"n": 2}})


@pytest.mark.parametrize("args", [(1, 2, 3, {4}), (Line(sku="a"),) * 5])
def test_too_many_arguments_are_encoded_all_the_same(args):
    """``bind`` then names the problem."""
    arguments = read(place)
    encoded, _ = arguments.encode(args, {"nothing": {1}})
    assert len(encoded) == len(args)
    assert problems_of(lambda: arguments.bind(encoded, {}))


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize("value", [object(), LOOP, {"a": LOOP}, b"\xff", [object()], {object(): 1}, Line])
@pytest.mark.parametrize("annotation", [Any, int, list[Any], Line])
def test_what_cannot_be_encoded(annotation, value):
    arguments = one(annotation)
    assert problems_of(lambda: arguments.encode([value], {})) == {"value": f"a {type(value).__name__} cannot be encoded as JSON"}


def test_unencodable_without_a_name():
    assert problems_of(lambda: read(place).encode_partial([object()], {})) == {"": "a object cannot be encoded as JSON"}


def test_missing_annotation_of_what_cannot_be_encoded_is_named() -> None:
    def place(order, value): ...  # type: ignore[no-untyped-def]

    problem = {"value": "a object cannot be encoded as JSON, and the argument has no annotation that says how"}
    assert problems_of(lambda: read(place).encode([object()], {})) == problem
    assert problems_of(lambda: read(place).encode([], {"value": object()})) == problem


@pytest.mark.parametrize("value", ["\ud800", {"\ud800": 1}, ["a\udfff"]])
def test_half_a_surrogate_pair(value):
    """kombu writes it and reads it again."""
    arguments = one(Any)
    assert problems_of(lambda: through_celery(arguments, value)) == {
        "value": f"a {type(value).__name__} cannot be encoded as JSON"
    }


@dataclass
class Card:
    number: SecretStr


class Payment(BaseModel):
    cards: list[SecretStr]


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (SecretStr, SecretStr("4111")),
        (SecretBytes, SecretBytes(b"4111")),
        (list[SecretStr], [SecretStr("4111")]),
        (Card, Card(SecretStr("4111"))),
        (Payment, Payment(cards=["4111"])),
        (Any, {"a": [Payment(cards=["4111"])]}),
    ],
)
def test_secrets_are_not_sent_as_asterisks(annotation, value):
    problem = "it holds a secret, which would be sent as asterisks: send its plain value"
    assert problems_of(lambda: one(annotation).encode([value], {})) == {"value": problem}
    assert problems_of(lambda: one(annotation).encode_partial([], {"value": value})) == {"value": problem}


def test_secret_without_an_annotation():
    assert problems_of(lambda: one(Any).encode([SecretStr("4111")], {})).keys() == {"value"}


def test_plain_value_of_a_secret_and_plain_asterisks():
    assert through_celery(one(SecretStr), "4111")["value"].get_secret_value() == "4111"
    assert through_celery(one(set[str]), {"**********"}) == {"value": {"**********"}}


def test_no_value_stands_in_an_error_or_its_trace():
    secret = "tok_" + "secret"
    with pytest.raises(InvalidMessage) as caught:
        through_celery(read(place), secret, secret, gift=secret)
    assert secret not in "".join(traceback.format_exception(caught.value))
    assert {path for path, _ in caught.value.problems} == {"total", "gift"}


def test_validator_that_breaks():
    class Broken(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def check(cls, value: int) -> int:
            raise KeyError("tok_secret")

    assert problems_of(lambda: through_celery(one(Broken), {"n": 1})) == {"": "its validation raised KeyError"}


def test_error_of_a_large_message_is_small():
    problems = problems_of(lambda: through_celery(one(list[int]), ["a"] * 50_000))
    assert len(problems) == 21
    assert problems[""] == "and 49980 more"
    assert len(next(iter(problems_of(lambda: through_celery(one(int), 3, **{"n" * 100_000: 1}))))) == 200


def test_large_message():
    value = [{"sku": str(number), "amt": "1"} for number in range(50_000)]
    received = through_celery(one(list[Line]), value)
    assert len(received["value"]) == 50_000


# --- annotations


def test_annotations_as_strings():
    def step(order: "Order", line: "Line", later: "list[Later] | None" = None): ...  # noqa: F821

    assert through_celery(read(step, Order=object), {"sku": "a"}, [{"n": 1}])["later"] == [Later(n=1)]


class Later(BaseModel):
    n: int


class Tree(BaseModel):
    children: "list[Tree]" = []
    leaf: "Leaf | None" = None


class Leaf(BaseModel):
    tree: Tree | None = None


def test_recursive_and_circular_models():
    tree = Tree(children=[Tree(leaf=Leaf(tree=Tree()))])
    assert through_celery(one(Tree), tree) == {"value": tree}


class Unfinished(BaseModel):
    leaf: "NotImported"  # noqa: F821


@pytest.mark.parametrize(
    ("annotation", "problem"),
    [
        ("NotImported", "an annotation cannot be resolved: name 'NotImported' is not defined"),
        ("enum.NotThere", "an annotation cannot be resolved: module 'enum' has no attribute 'NotThere'"),
        ("list[", "an annotation cannot be resolved: "),
        (Unfinished, "an annotation cannot be resolved: its message needs the name 'NotImported', which is not defined"),
        (list[Unfinished], "needs the name 'NotImported'"),
    ],
)
def test_name_that_does_not_exist_at_run_time(annotation, problem):
    with pytest.raises(DefinitionError) as caught:
        one(annotation)
    assert str(caught.value).startswith("order.step: ")
    assert problem in str(caught.value)
    assert "outside TYPE_CHECKING" in str(caught.value)


@pytest.mark.parametrize("annotation", [Colour.RED, object(), type("Strange", (), {}), ClassVar[int]])
def test_annotation_that_is_no_type(annotation):
    with pytest.raises(DefinitionError):
        one(annotation)


def test_decorated_handler():
    def log(function):
        @functools.wraps(function)
        def inner(*args, **kwargs):
            return function(*args, **kwargs)

        return inner

    assert list(read(log(place)).annotations) == ["order_id", "total", "card", "gift"]
