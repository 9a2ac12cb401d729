"""The parameter with which a task subscribes to an event."""

from decimal import Decimal
from typing import Annotated, Any, Optional

import pytest
from pydantic import ConfigDict, Field

from celery_sagas.core.events import event_name, event_of, event_parameter
from celery_sagas.core.message import Message
from celery_sagas.errors import DefinitionError, InvalidMessage


class Placed(Message):
    """An event."""

    order_id: str
    total: Decimal = Decimal(0)


class Strict(Message):
    """An event that JSON values fit only as JSON."""

    model_config = ConfigDict(strict=True)
    total: Decimal


class Billed(Message):
    """Another event."""

    order_id: str


def test_name():
    assert event_name(Placed) == "tests.core.test_events.Placed"


@pytest.mark.parametrize(
    ("annotation", "event"),
    [
        (Placed, Placed),
        (Placed | None, Placed),
        (Optional[Placed], Placed),  # noqa: UP045
        (Annotated[Placed, Field(description="an order")], Placed),
        (Placed | Billed, None),
        (list[Placed], None),
        (dict, None),
        (Any, None),
        (Placed(order_id="1"), None),
    ],
)
def test_event_of_an_annotation(annotation, event):
    assert event_of(annotation) is event


def plain(event: Placed): ...


def positional(event: Placed | None, /, note: str = "", *more: int, **others: Any): ...


def by_name(event: "Placed"): ...


@pytest.mark.parametrize("function", [plain, positional, by_name])
def test_parameter(function):
    parameter = event_parameter("shop.on_order", function)
    assert (parameter.task, parameter.name, parameter.event) == ("shop.on_order", "event", Placed)
    assert parameter.read(({"order_id": "42", "total": "9.90", "more": 1},), {}) == (
        (Placed(order_id="42", total=Decimal("9.90")),),
        {},
    )


def test_event_by_name_and_other_arguments():
    parameter = event_parameter("task", positional)
    event, data = Placed(order_id="42"), {"order_id": "42"}
    assert parameter.read((data, "x"), {"y": 1}) == ((event, "x"), {"y": 1})
    assert parameter.read((), {"event": data, "y": 1}) == ((), {"event": event, "y": 1})
    assert parameter.read((), {}) == ((), {})  # the call says what is missing


def test_event_that_is_an_object_already():
    event = Placed(order_id="42")
    ((read,), _) = event_parameter("task", plain).read((event,), {})
    assert read is event


def test_event_is_read_as_json():
    def on(event: Strict): ...

    assert event_parameter("task", on).read(({"total": "1.5"},), {}) == ((Strict(total=Decimal("1.5")),), {})


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"total": 1}, "event.order_id: Field required"),
        ({"order_id": "42", "total": "secret"}, "event.total: Input should be a valid decimal"),
        (None, "event: Input should be an object"),
        (object(), "event: a object is no Placed"),
    ],
)
def test_event_that_does_not_fit(value, problem):
    with pytest.raises(InvalidMessage) as caught:
        event_parameter("shop.on_order", plain).read((value,), {})
    assert problem in str(caught.value)
    assert "shop.on_order" in str(caught.value)
    assert "secret" not in f"{caught.value} {caught.value.__cause__}"


def nothing(): ...


def without(event): ...


def mapping(event: dict[str, Any]): ...


def any_message(event: Message): ...


def union(event: Placed | Billed): ...


def two(event: Placed, other: Billed): ...


def optional_second(event: Placed, other: Billed | None = None): ...


def second(note: str, event: Placed): ...


def needing(event: Placed, total: int, *, note: str, more: int = 0): ...


def keyword(*, event: Placed): ...


def variable(*events: Placed): ...


def unresolvable(event: "NoSuchEvent"): ...  # noqa: F821  # pyright: ignore[reportUndefinedVariable]


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (nothing, "takes no argument first"),
        (keyword, "takes no argument first"),
        (variable, "takes no argument first"),
        (without, "its first parameter 'event' has no annotation"),
        (mapping, "its first parameter 'event' is annotated dict"),
        (any_message, "its first parameter 'event' is annotated Message, not with one class of events"),
        (union, "'event' is annotated tests.core.test_events.Placed | tests.core.test_events.Billed, not with one class"),
        (second, "its first parameter 'note' is annotated str"),
        (two, "it subscribes with two parameters, 'event' and 'other'. Write a task for each"),
        (optional_second, "it subscribes with two parameters, 'event' and 'other'"),
        (needing, "it subscribes, and needs more than the event: total, note. Give it a default"),
        (unresolvable, "an annotation cannot be resolved: name 'NoSuchEvent' is not defined"),
    ],
)
def test_function_that_cannot_subscribe(function, problem):
    with pytest.raises(DefinitionError) as caught:
        event_parameter("shop.on_order", function)
    assert problem in str(caught.value)
    assert str(caught.value).startswith("shop.on_order: ")
