"""What an aggregator's annotation says of its items, what they are grouped by, and who has its names."""

from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NewType, TypeVar
from uuid import UUID

import pytest
from pydantic import Field, SecretStr, create_model

from celery_sagas.core.aggregators.batch import Batch
from celery_sagas.core.aggregators.definition import AS_JOURNAL, define_aggregator
from celery_sagas.core.message import Message
from celery_sagas.core.registry import Registry
from celery_sagas.errors import DefinitionError

ItemT = TypeVar("ItemT")


class Reading(Message):
    device_id: str
    celsius: float = 20.0


def store(batch: Batch[Reading]) -> None: ...


def define(function=store, *, size=2, name=None, group_by=None, correlate_by=None):
    return define_aggregator(
        function,
        name=name,
        size=size,
        within=None,
        idle=None,
        group_by=group_by,
        dedupe_for=AS_JOURNAL,
        max_buffered=None,
        correlate_by=correlate_by,
        options={},
    )


def refused(function=store, **declared):
    with pytest.raises(DefinitionError) as caught:
        define(function, **declared).resolve()
    return str(caught.value)


# --- the type of the items


def bare(batch): ...


def really_any(batch: Any): ...


def any_batch(batch: Batch): ...


def any_items(batch: Batch[Any]): ...


def generic(batch: Batch[ItemT]): ...


@pytest.mark.parametrize("function", [bare, really_any, any_batch, any_items, generic])
def test_untyped(function):
    assert define(function).items.annotation is Any


def text(batch: "Batch[Reading]"): ...


def text_within(batch: Batch["Reading"]): ...


def later(batch: "Batch[Below]"): ...


@pytest.mark.parametrize("function", [text, text_within, later])
def test_forward_reference(function):
    definition = define(function)
    definition.resolve()
    assert definition.items.annotation in (Reading, Below)


class Below(Message):
    device_id: str


def of_a_list(batch: list[Reading]): ...


def of_a_sequence(batch: Sequence[Reading]): ...


def of_one(reading: Reading): ...


def of_none(batch: Batch[Reading] | None): ...


@pytest.mark.parametrize("function", [of_a_list, of_a_sequence, of_one, of_none])
def test_annotation_that_is_no_batch(function):
    text = refused(function)
    assert "is the batch, but is annotated" in text
    assert f"def {function.__name__}(" in text
    assert ": Batch[Reading])" in text


def unimported(batch: "Batch[NotImported]"): ...  # noqa: F821


class Unfinished(Message):
    lines: "list[NotImported]"  # noqa: F821


def unfinished(batch: Batch[Unfinished]): ...


@pytest.mark.parametrize("function", [unimported, unfinished])
def test_name_that_does_not_exist_at_run_time(function):
    """It may be defined later in the module, so that the definition itself is fine."""
    definition = define(function)
    with pytest.raises(DefinitionError, match=r"'NotImported'.*Import what it names at run time"):
        definition.resolve()


class Unknown:
    """A class that pydantic does not know."""


def of_unknown(batch: Batch[Unknown]): ...


def test_type_that_pydantic_does_not_know():
    assert "its items has a type that pydantic cannot validate" in refused(of_unknown)


def test_local_function_and_type():
    class Local(Message):
        device_id: str

    def collect(batch: Batch[Local]): ...

    definition = define(collect, group_by="device_id")
    definition.resolve()
    assert definition.name == f"{__name__}.collect"
    assert definition.items.read('{"device_id": "d1"}') == Local(device_id="d1")


# --- groups


@pytest.mark.parametrize("group_by", ["device_id", ("device_id",), ("device_id", "celsius"), lambda item: 1, str])
def test_group_by(group_by):
    define(group_by=group_by).resolve()


@pytest.mark.parametrize("group_by", ["", "a..b", (), ("device_id", ""), ("device_id", 3), ["device_id"], 3, {"device_id"}])
def test_group_by_that_is_no_name(group_by):
    assert f"group_by={group_by!r} names no field. Give a field, a tuple of fields or a function" in refused(group_by=group_by)


@pytest.mark.parametrize("group_by", ["device", "device_id.x", ("device_id", "device")])
def test_group_by_that_names_nothing(group_by):
    text = refused(group_by=group_by)
    assert "group_by= names 'device" in text
    assert "which its items do not have. Name a field, or give a function" in text


@pytest.mark.parametrize("correlate_by", ["", ".", "a..b", ("device_id",), 3, len])
def test_correlate_by_that_is_no_name(correlate_by):
    assert f"correlate_by={correlate_by!r} names no field. Give a field or a path" in refused(correlate_by=correlate_by)


@pytest.mark.parametrize("correlate_by", ["device", "device_id.x"])
def test_correlate_by_that_names_nothing(correlate_by):
    assert f"correlate_by= names {correlate_by!r}, which its items do not have" in refused(correlate_by=correlate_by)


class Colour(Enum):
    RED = "red"


class Share(Enum):
    HALF = 0.5


class Answer(Enum):
    YES = True


def test_correlate_by_that_names_no_correlation_id():
    text = refused(correlate_by="celsius")
    assert "correlate_by= names 'celsius', declared as float: it never is a correlation id" in text
    assert "Name a field that holds a text, an int, a UUID or an enum of these" in text


@pytest.mark.parametrize(
    "declared",
    [
        bool,
        float,
        float | None,
        Annotated[float, "mark"],
        NewType("Celsius", float),
        Decimal,
        date,
        datetime,
        time,
        timedelta,
        bytes,
        list,
        list[str],
        tuple[int, str],
        set[int],
        dict[str, int],
        Sequence[str],
        Reading,
        Share,
        Answer,
    ],
)
def test_correlate_by_of_a_type_that_is_none(declared):
    assert "it never is a correlation id" in _refused_field(declared)


@pytest.mark.parametrize(
    "declared",
    [
        str,
        int,
        UUID,
        Colour,
        IntEnum("Number", ["ONE"]),
        str | None,
        Annotated[int, Field(gt=0)],
        Literal["a"],
        float | str,
        Any,
        object,
        SecretStr,
    ],
)
def test_correlate_by_of_a_type_that_may_be_one(declared):
    assert _refused_field(declared) == ""


def _refused_field(declared):
    """Return why a field of this type, within an item, is refused to be a correlation id."""
    part = create_model("Part", field=(declared, ...))
    item = create_model("Item", part=(part | None, None))

    def collect(batch: Batch[item]): ...

    try:
        define(collect, correlate_by="part.field").resolve()
    except DefinitionError as exc:
        return str(exc)
    return ""


def test_group_by_of_untyped_items_is_not_known_before_they_come():
    define(bare, group_by="whatever.there.is").resolve()


# --- the registry


def local(stem="one"):
    """Return an aggregator of a function of its own place."""

    def collect(batch): ...

    collect.__qualname__ = f"{stem}.collect"
    return collect


def test_same_place_replaces():
    """A reload, a notebook, a test."""
    registry = Registry()
    registry.add_aggregator(define(local(), size=1))
    again = define(local(), size=3)
    registry.add_aggregator(again)
    assert registry.aggregators == {again.name: again}


def test_same_place_under_another_name_replaces():
    registry = Registry()
    registry.add_aggregator(define(local(), size=1))
    again = define(local(), size=2, name="shop.collect")
    registry.add_aggregator(again)
    assert registry.aggregators == {"shop.collect": again}


@pytest.mark.parametrize("name", [f"{__name__}.collect", f"{__name__}.collect.flush"])
def test_names_of_another(name):
    registry = Registry()
    registry.add_aggregator(define(local(), size=1))
    with pytest.raises(DefinitionError, match=r"is a name of the aggregator .*one\.collect\. Set name="):
        registry.add_aggregator(define(local("two"), size=1, name=name))
    assert len(registry.aggregators) == 1
