"""Objects of a subclass of what an annotation names: what only the subclass has is refused, never left out in silence."""

import typing
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_origin

import pytest
from kombu.utils.json import dumps, loads
from pydantic import (
    BaseModel,
    Field,
    JsonValue,
    PlainSerializer,
    PrivateAttr,
    RootModel,
    SerializeAsAny,
    field_serializer,
    model_serializer,
)
from pydantic_core import to_json
from typing_extensions import TypedDict

from celery_sagas.core.aggregators.items import ItemType
from celery_sagas.core.arguments import arguments_of
from celery_sagas.core.message import Message, encode_event
from celery_sagas.errors import InvalidMessage


class Reading(Message):
    device: str


class Special(Reading):
    extra: int


class Renamed(Reading):
    """Has nothing of its own that would be sent."""

    note: str = Field("", exclude=True)
    _cached: int = PrivateAttr(1)

    def loud(self) -> str:
        return self.device.upper()


class Cold(Reading):
    kind: Literal["cold"] = "cold"


class Hot(Reading):
    kind: Literal["hot"] = "hot"
    alarm: bool = True


class Report(Message):
    first: Reading
    others: list[Reading] = []


class Marker(Message):
    """Has no fields: what it is annotated for has."""


class Marked(Marker):
    amount: int = 3


class Holder(BaseModel):
    readings: Annotated[list[Reading], Field(alias="Readings")]
    other: SerializeAsAny[Reading] | None = None


class Untyped(BaseModel):
    values: typing.List  # noqa: UP006
    of_base: dict[str, Any] = {}
    keyed: tuple[Special | Reading, ...] = ()


class Log(RootModel[list[Reading]]): ...


class Row(TypedDict):
    reading: Reading


class Loose(Message, extra="allow"):
    reading: Reading


class Strict(Message, extra="forbid"):
    device: str


class Wide(Strict):
    extra: int


class Terse(Message):
    """Leaves out of what it holds what it likes to."""

    reading: Reading
    others: list[Reading] = []
    count: int = 0

    @field_serializer("reading")
    def write(self, reading: Reading) -> dict[str, str]:
        return {"id": reading.device}

    @model_serializer(mode="wrap")
    def terse(self, write: Any) -> dict[str, Any]:
        return {name: value for name, value in write(self).items() if name != "count"}


@dataclass
class Part:
    name: str


@dataclass
class Screw(Part):
    length: int = 3
    threads: list[int] = field(default_factory=list)


class SerializedMessage(BaseModel, frozen=True):
    device: str


class FrozenSpecial(SerializedMessage, frozen=True):
    extra: int


class Sparse(BaseModel):
    """Is written without what is not set."""

    device: str = "d1"
    note: str | None = None

    @model_serializer(mode="wrap")
    def write(self, handler: Any) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value is not None}


FROZEN_SPECIAL = FrozenSpecial(device="d1", extra=7)
SPECIAL = Special(device="d1", extra=8)
PLAIN = Reading(device="d0")
REPORT = Report(first=SPECIAL)
HOLDER = Holder(Readings=[SPECIAL])
Tagged = Annotated[Cold | Hot, Field(discriminator="kind")]

CUT_OFF: list[tuple[Any, Any, str]] = [
    (Reading, SPECIAL, "a Special would arrive as Reading, without extra: annotate it as Special | Reading"),
    (Reading | None, SPECIAL, "without extra"),
    (list[Reading], [Reading(device="d0"), SPECIAL], "1: a Special would arrive as Reading"),
    (dict[str, Reading], {"a": SPECIAL}, "a: a Special would arrive as Reading"),
    (tuple[Reading, ...], (SPECIAL,), "0: a Special would arrive as Reading"),
    (set[SerializedMessage], {FROZEN_SPECIAL}, "a FrozenSpecial would arrive as SerializedMessage, without extra"),
    (
        frozenset[SerializedMessage],
        frozenset({SerializedMessage(device="a"), FROZEN_SPECIAL}),
        "a FrozenSpecial would arrive as SerializedMessage, without extra",
    ),
    (Part, Screw("s"), "a Screw would arrive as Part, without length, threads"),
    (Report, Report(first=SPECIAL), "first: a Special would arrive as Reading"),
    (Report, Report(first=Reading(device="a"), others=[SPECIAL]), "others.0: a Special would arrive as Reading"),
    (Report, {"first": SPECIAL}, "first: a Special would arrive as Reading"),
    (Holder, {"Readings": [SPECIAL]}, "Readings.0: a Special would arrive as Reading"),
    (Log, Log([PLAIN, SPECIAL]), "root.1: a Special would arrive as Reading"),
    (Row, {"reading": SPECIAL}, "reading: a Special would arrive as Reading"),
    (Loose, Loose(reading=SPECIAL), "reading: a Special would arrive as Reading"),
    (SerializeAsAny[Reading], SPECIAL, "a Special would arrive as Reading, without extra"),
    (Holder, Holder(Readings=[], other=SPECIAL), "other: a Special would arrive as Reading"),
    (Iterable[Reading], [SPECIAL], "0: a Special would arrive as Reading"),
    (Sequence[Reading], (SPECIAL,), "0: a Special would arrive as Reading"),
    (tuple[Reading, Special], (SPECIAL, SPECIAL), "0: a Special would arrive as Reading"),
    (dict[int, Reading], {1: SPECIAL}, "1: a Special would arrive as Reading"),
    (Message, Marked(), "a Marked would arrive as Message, without amount: annotate it as Marked | Message"),
    (Marker, Marked(), "a Marked would arrive as Marker, without amount"),
    (Any, REPORT, "first: a Special would arrive as Reading, without extra: annotate it as Special | Reading"),
    (object, REPORT, "first: a Special would arrive as Reading"),
    (dict, {"a": [REPORT]}, "a.0.first: a Special would arrive as Reading"),
    (list, [REPORT], "0.first: a Special would arrive as Reading"),
    (dict[str, Any], {"a": HOLDER}, "a.readings.0: a Special would arrive as Reading"),
    (Any, Untyped(values=[REPORT]), "values.0.first: a Special would arrive as Reading"),
    (Untyped, Untyped(values=[], of_base={"a": REPORT}), "of_base.a.first: a Special would arrive as Reading"),
    (Any, {1: REPORT}, "1.first: a Special would arrive as Reading"),
    (Any, Log([PLAIN, SPECIAL]), "1: a Special would arrive as Reading"),
    (Any, Loose(reading=SPECIAL), "reading: a Special would arrive as Reading"),
]
#: An annotation, a value, and what arrives.
WHOLE: list[tuple[Any, Any, Any]] = [
    *(
        (annotation, value, value)
        for annotation, value in [
            (Reading, PLAIN),
            (Report, Report(first=PLAIN, others=[PLAIN])),
            (Marked, Marked()),
            (Marked | Marker, Marked()),
            (Row, {"reading": PLAIN}),
            (Loose, Loose(reading=PLAIN, more=[1])),
            (Iterable[Reading], [PLAIN]),
            (Sequence[Reading], [PLAIN]),
            (dict[str, JsonValue], {"a": [1, {"b": None}]}),
            (Special | Reading, SPECIAL),
            (set[SerializedMessage], {SerializedMessage(device="a")}),
            (set[FrozenSpecial | SerializedMessage], {FROZEN_SPECIAL}),
            (list[Special | Reading], [SPECIAL, PLAIN]),
            (Tagged, Hot(device="d1")),
            (Screw | Part, Screw("s")),
            (Annotated[Reading, PlainSerializer(lambda reading: {"device": reading.device})], PLAIN),
        ]
    ),
    (Reading, Renamed(device="d1"), Reading(device="d1")),
    (Any, SPECIAL, {"device": "d1", "extra": 8}),
    (object, SPECIAL, {"device": "d1", "extra": 8}),
    (dict[str, Any], {"a": SPECIAL}, {"a": {"device": "d1", "extra": 8}}),
    (dict, {1: SPECIAL}, {"1": {"device": "d1", "extra": 8}}),
    (Any, [Report(first=PLAIN), Log([PLAIN])], [{"first": {"device": "d0"}, "others": []}, [{"device": "d0"}]]),
    (Any, Report(first=Renamed(device="d1")), {"first": {"device": "d1"}, "others": []}),
    (Any, Holder(Readings=[PLAIN], other=SPECIAL), {"Readings": [{"device": "d0"}], "other": {"device": "d1", "extra": 8}}),
    (
        Any,
        Untyped(values=[PLAIN], keyed=(SPECIAL,)),
        {"values": [{"device": "d0"}], "of_base": {}, "keyed": [{"device": "d1", "extra": 8}]},
    ),
    *((annotation, {"a": Sparse()}, {"a": {"device": "d1"}}) for annotation in (dict[str, Any], str | dict[str, Any], dict, Any)),
    (Untyped, Untyped(values=[], of_base={"a": Sparse()}), Untyped(values=[], of_base={"a": {"device": "d1"}})),
    (Any, Terse(reading=PLAIN, count=3), {"reading": {"id": "d0"}, "others": []}),
]


@pytest.mark.parametrize(("annotation", "value", "problem"), CUT_OFF)
class TestCutOff:
    """What would be left out is refused where it is given."""

    def test_argument(self, annotation: Any, value: Any, problem: str) -> None:
        def step(order: Any, given: annotation) -> None: ...

        arguments = arguments_of("order.step", step, leading=1)
        for encode in (arguments.encode, arguments.encode_partial):
            for args, kwargs in (((value,), {}), ((), {"given": value})):
                with pytest.raises(InvalidMessage) as caught:
                    encode(args, kwargs)
                assert problem in str(caught.value)

    def test_item(self, annotation: Any, value: Any, problem: str) -> None:
        with pytest.raises(InvalidMessage) as caught:
            ItemType("collect", annotation, None).encode(value)
        assert problem in str(caught.value)


@pytest.mark.parametrize(("annotation", "value", "arrives"), WHOLE)
class TestWhole:
    """What the annotation keeps arrives."""

    def test_argument(self, annotation: Any, value: Any, arrives: Any) -> None:
        def step(order: Any, given: annotation) -> None: ...

        arguments = arguments_of("order.step", step, leading=1)
        for encode in (arguments.encode, arguments.encode_partial):
            args, kwargs = encode((value,), {})
            assert all_of(arguments.validate(arguments.bind(args, kwargs))["given"]) == arrives

    def test_item(self, annotation: Any, value: Any, arrives: Any) -> None:
        items = ItemType("collect", annotation, None)
        assert all_of(items.read(to_json(items.encode(value)))) == arrives


@pytest.mark.parametrize("annotation", [Reading | Special, Special | Reading, list[Reading | Special], Reading | Special | None])
def test_ambiguous_union(annotation: Any) -> None:
    """How it is read depends on pydantic: it arrives whole, or is refused."""
    items = ItemType("collect", annotation, None)
    value = [SPECIAL] if get_origin(annotation) is list else SPECIAL
    try:
        encoded = items.encode(value)
    except InvalidMessage as exc:
        assert "without extra" in str(exc)  # noqa: PT017
    else:
        assert items.read(to_json(encoded)) == value


@pytest.mark.parametrize("annotation", [Iterable[Reading], list[Reading], Any])
def test_iterator(annotation: Any) -> None:
    """What can be read but once is read once."""

    def step(order: Any, given: annotation) -> None: ...

    arguments = arguments_of("order.step", step, leading=1)
    for encode in (arguments.encode, arguments.encode_partial):
        assert encode((iter([PLAIN]),), {}) == ([[{"device": "d0"}]], {})
        with pytest.raises(InvalidMessage, match="would arrive as Reading, without extra"):
            encode((iter([SPECIAL] if annotation is not Any else [REPORT]),), {})
    with pytest.raises(InvalidMessage, match="would arrive as Reading, without extra"):
        ItemType("collect", annotation, None).encode(iter([SPECIAL] if annotation is not Any else [REPORT]))


def test_model_without_fields() -> None:
    def step(order: Any, given: BaseModel) -> None: ...

    with pytest.raises(InvalidMessage, match="a Reading would arrive as BaseModel, without device"):
        arguments_of("order.step", step, leading=1).encode((PLAIN,), {})


def test_root_of_a_model() -> None:
    """A pydantic before 2.8 cannot write it."""

    def step(order: Any, given: Log) -> None: ...

    arguments = arguments_of("order.step", step, leading=1)
    with pytest.raises(InvalidMessage, match=r"1: a Special would arrive as Reading|cannot be encoded"):
        arguments.encode(([PLAIN, SPECIAL],), {})
    with pytest.raises(InvalidMessage, match="1: a Special would arrive as Reading"):
        arguments.encode_partial(([PLAIN, SPECIAL],), {})


def test_deque() -> None:
    with pytest.raises(InvalidMessage, match="0: a Special would arrive as Reading"):
        ItemType("collect", deque[Reading], None).encode(deque([SPECIAL]))


def all_of(arrived: Any) -> Any:
    """Return what arrived; of what is validated while it is read, all."""
    return list(arrived) if isinstance(arrived, Iterator) else arrived


class TestPartial:
    """In a signature to which an answer may be added, an argument may stand in one of two places."""

    @pytest.mark.parametrize(
        "annotations", [(int, Special), (Reading, Special), (Special, Reading), (Reading, Any), (Special | Reading,)], ids=str
    )
    def test_one_of_them_keeps_it(self, annotations: tuple[Any, ...]) -> None:
        assert self.arguments(*annotations).encode_partial((SPECIAL,), {})[0] == [{"device": "d1", "extra": 8}]

    @pytest.mark.parametrize("annotations", [(Reading,), (int, Reading), (Reading, int), (Reading, Reading)], ids=str)
    def test_none_does(self, annotations: tuple[Any, ...]) -> None:
        with pytest.raises(InvalidMessage, match="without extra"):
            self.arguments(*annotations).encode_partial((SPECIAL,), {})

    def test_base_that_forbids_more(self) -> None:
        with pytest.raises(InvalidMessage, match="without extra"):
            self.arguments(Strict).encode_partial((Wide(device="d1", extra=8),), {})

    def test_it_fits_but_one_of_them(self) -> None:
        """What cannot be written as one argument may be the other."""
        assert self.arguments(Row, Any).encode_partial(({1: SPECIAL},), {})[0] == [{"1": {"device": "d1", "extra": 8}}]

    def arguments(self, *annotations: Any) -> Any:
        def step(order: Any, a: Any, b: Any) -> None: ...

        step.__annotations__ |= dict(zip("ab", annotations, strict=False))
        step.__annotations__ |= {"b": int} if len(annotations) == 1 else {}
        return arguments_of("order.step", step, leading=1)


class Whole(Message):
    """An event that is written whole, and read as what it is annotated with."""

    reading: SerializeAsAny[Reading]


def test_event_that_is_written_whole() -> None:
    """A plain task gets what was written; who reads it by its class would lose a field."""
    event = Whole(reading=SPECIAL)
    assert loads(dumps(event)) == {"reading": {"device": "d1", "extra": 8}}
    with pytest.raises(InvalidMessage, match=r"Whole: reading: a Special would arrive as Reading"):
        encode_event(event)
    assert encode_event(Whole(reading=PLAIN)) == {"reading": {"device": PLAIN.device}}


def test_event() -> None:
    """So it is wherever kombu encodes a message."""
    with pytest.raises(InvalidMessage, match=r"Report: first: a Special would arrive as Reading"):
        Report(first=SPECIAL).__json__()
    with pytest.raises(InvalidMessage, match="would arrive as Reading"):
        dumps({"report": Report(first=SPECIAL)})
    with pytest.raises(InvalidMessage, match=r"others\.0: a Special would arrive as Reading"):
        Terse(reading=PLAIN, others=[SPECIAL]).__json__()
    assert SPECIAL.__json__() == {"device": "d1", "extra": 8}
