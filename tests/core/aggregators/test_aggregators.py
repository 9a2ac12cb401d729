"""What an aggregator may declare, and what it may not."""

import functools
from datetime import timedelta

import pytest

from celery_sagas.core.aggregators.batch import Batch
from celery_sagas.core.aggregators.definition import AS_JOURNAL, define_aggregator
from celery_sagas.core.aggregators.rules import LARGEST_SIZE
from celery_sagas.core.message import Message
from celery_sagas.errors import DefinitionError

LIMITS = {"retention_ms": 7_000, "max_attempts": 10, "lease_ms": 60_000}


class Reading(Message):
    device_id: str
    celsius: float = 20.0


def store(batch: Batch[Reading]) -> None: ...


def bound(self, batch: Batch[Reading]) -> None: ...


def define(
    function=store,
    *,
    name=None,
    size=None,
    within=None,
    idle=None,
    group_by=None,
    dedupe_for=AS_JOURNAL,
    max_buffered=None,
    **options,
):
    return define_aggregator(
        function,
        name=name,
        size=size,
        within=within,
        idle=idle,
        group_by=group_by,
        dedupe_for=dedupe_for,
        max_buffered=max_buffered,
        correlate_by=None,
        options=options,
    )


def refused(function=store, **declared):
    with pytest.raises(DefinitionError) as caught:
        define(function, **({"size": 2} | declared)).resolve()
    return str(caught.value)


# --- names and rules


def test_default_name_is_module_and_function():
    definition = define(size=2)
    assert definition.name == f"{__name__}.store"
    assert definition.names == (f"{__name__}.store", f"{__name__}.store.flush")
    assert definition.location == (__name__, "store")


def test_name_may_be_given():
    definition = define(size=2, name="shop.readings")
    assert definition.names == ("shop.readings", "shop.readings.flush")


@pytest.mark.parametrize("name", ["a b", "1st", "x" * 101, "größe", 3])
def test_name_that_is_no_stored_name(name):
    assert f"{name!r} is no stored name" in refused(name=name)


def test_lambda_has_no_stored_name():
    assert "is no stored name" in refused(lambda batch: None)
    assert define(lambda batch: None, size=2, name="shop.readings").name == "shop.readings"


def test_every_rule():
    definition = define(
        size=3, within=timedelta(minutes=1), idle=0.5, dedupe_for=timedelta(hours=1), max_buffered=9, group_by="device_id"
    )
    rules = definition.rules(**LIMITS)
    assert (rules.name, rules.size, rules.within_ms, rules.idle_ms) == (definition.name, 3, 60_000, 500)
    assert (rules.max_buffered, rules.remember_ms, rules.max_attempts, rules.lease_ms) == (9, 3_600_000, 10, 60_000)


def test_rules_that_are_not_given():
    rules = define(idle=5).rules(**LIMITS)
    assert (rules.size, rules.within_ms, rules.idle_ms, rules.max_buffered) == (0, 0, 5_000, 0)


@pytest.mark.parametrize(("dedupe_for", "remember_ms"), [(AS_JOURNAL, 7_000), (None, 0), (1, 1_000)])
def test_ids_are_remembered_for_as_long_as_dedupe_for_says(dedupe_for, remember_ms):
    assert define(size=2, dedupe_for=dedupe_for).rules(**LIMITS).remember_ms == remember_ms


def test_shortest_time():
    assert define(within=1e-9).within_ms == 1


# --- what would never be flushed, or never fit


def test_no_trigger():
    with pytest.raises(DefinitionError, match=r"store: nothing would ever flush it\. Give it size=, within= or idle="):
        define(max_buffered=5, group_by="device_id")


@pytest.mark.parametrize("value", [0, -1, True, False, 1.0, "2", float("nan")])
@pytest.mark.parametrize("keyword", ["size", "max_buffered"])
def test_wrong_number(keyword, value):
    assert f"{keyword}={value!r} is no positive whole number" in refused(**{keyword: value})


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        0.0,
        True,
        "5",
        "forever",
        float("nan"),
        float("inf"),
        timedelta(0),
        timedelta(-1),
        1e10,
        10**400,
        timedelta.max,
        [1],
    ],
)
@pytest.mark.parametrize("keyword", ["within", "idle", "dedupe_for"])
def test_wrong_time(keyword, value):
    text = refused(**{keyword: value})
    assert f"{keyword}={value!r} is no time. Give a timedelta or seconds, more than zero" in text


def test_largest_size():
    assert define(size=LARGEST_SIZE).size == 10_000
    assert "size=10001 is more than one flush can have. At most 10,000" in refused(size=LARGEST_SIZE + 1)


def test_size_that_is_never_reached():
    assert define(size=2, max_buffered=2).max_buffered == 2
    assert "size=3 is more than max_buffered=2. It would never be reached" in refused(size=3, max_buffered=2)


# --- options


def test_task_options_are_kept():
    options = {"queue": "slow", "max_retries": 3, "bind": False, "serializer": "json", "pydantic": False, "time_limit": 9}
    assert define(size=2, **options).options == options


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ({"pydantic": True}, "pydantic= cannot be set on an aggregator. Its items are validated anyway"),
        ({"serializer": "pickle"}, "serializer='pickle' cannot be set on an aggregator. Items are JSON"),
        ({"serializer": "yaml"}, "serializer='yaml' cannot be set on an aggregator"),
    ],
)
def test_refused_option(option, problem):
    assert problem in refused(**option)


# --- the function


async def coroutine(batch): ...


def generator(batch):
    yield


async def stream(batch):
    yield


@pytest.mark.parametrize("function", [coroutine, generator, stream])
def test_not_synchronous(function):
    assert "an aggregator is a plain function. Celery tasks are synchronous: def, without yield" in refused(function)


class Callable_:
    def __call__(self, batch): ...


@pytest.mark.parametrize("function", [functools.partial(store), Callable_(), Callable_, None, "store", object()])
def test_no_function(function):
    assert "an aggregator is a plain function. Decorate a def" in refused(function)


def without(): ...


def two(batch, more): ...


def only_keyword(*, batch): ...


def only_arguments(*batch): ...


def keyword_needed(batch, *, more): ...


@pytest.mark.parametrize("function", [without, two, only_keyword, only_arguments, keyword_needed])
def test_function_that_does_not_take_one_batch(function):
    assert f"its function does not take one batch. def {function.__name__}(batch: Batch[Reading])" in refused(function)


@pytest.mark.parametrize("function", [without, store, only_arguments])
def test_bound_function_that_does_not_take_the_task_first(function):
    text = refused(function, bind=True)
    assert f"does not take the task and a batch. def {function.__name__}(self, batch: Batch[Reading])" in text


def with_defaults(batch: Batch[Reading], more: int = 0, *rest: int, other: int = 1, **others: int) -> None: ...


def positional(batch: Batch[Reading], /) -> None: ...


@pytest.mark.parametrize("function", [with_defaults, positional])
def test_function_that_takes_more_than_it_gets(function):
    define(function, size=2).resolve()


def test_bound_function():
    definition = define(bound, size=2, bind=True)
    definition.resolve()
    assert definition.bind
    assert definition.items.annotation is Reading
