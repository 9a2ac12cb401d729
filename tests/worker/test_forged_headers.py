"""Headers that anybody may have written: reading them raises nothing but ``InvalidMessage``, and yields what it says it does."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from celery.app.task import Context
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic_core import to_json

from celery_sagas.core.requests.requests import Addressed, ReturnAddress
from celery_sagas.engine.dead_letters.dead_lettering import dead_letter_of
from celery_sagas.errors import InvalidMessage
from celery_sagas.worker import headers
from celery_sagas.worker.failures.dead_letters import payload_of
from celery_sagas.worker.failures.notifications import failure_of
from celery_sagas.worker.sessions import session_of

#: Lone surrogates, which both brokers deliver, among the rest.
TEXTS = st.text(st.characters(exclude_categories=()), max_size=300)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.binary(max_size=20) | st.datetimes() | st.decimals()
ANYTHING = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=6
)
NAMES = [value for name, value in vars(headers).items() if name.isupper() and isinstance(value, str)]
#: Of Celery's headers, those that are read here; and names by which a header hides what a request can do, or this library keeps.
CELERY = ["id", "task", "retries", "headers", "get", "update", "as_execution_options", "__dict__"]
CELERY += ["_celery_sagas_session", "_celery_sagas_over", "_celery_sagas_running"]
ADDRESSES = st.fixed_dictionaries(
    {}, optional={name: st.just("a") | ANYTHING for name in ("instance", "timeout", "request", "came")}
)


def near(fields: Mapping[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for headers of which some are of their form, and some nearly."""
    return st.fixed_dictionaries({}, optional={**dict.fromkeys([*NAMES, *CELERY], ANYTHING), **fields})


def texts_of_addresses() -> st.SearchStrategy[str]:
    """Return a strategy for texts that are nearly return addresses."""
    json = st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
        max_leaves=5,
    )
    target = st.tuples(st.just("task") | json, st.just([]) | json, st.just({}) | json, st.booleans() | json, st.just({}) | json)
    fields = dict.fromkeys(("saga", "instance", "request"), st.just("a") | json) | dict.fromkeys(
        ("then", "otherwise"), target | json
    )
    return st.fixed_dictionaries(fields).map(lambda noted: to_json(noted).decode())


REQUESTS = near(
    {
        headers.ADDRESS: ADDRESSES | ANYTHING,
        headers.RETURN_ADDRESS: texts_of_addresses() | ANYTHING,
        headers.CAUSATION: st.dictionaries(TEXTS, TEXTS, max_size=12) | ANYTHING,
    }
).map(lambda fields: Context(fields, called_directly=False))

#: What each reader returns.
READERS: dict[Callable[[Any], Any], type | tuple[type, ...]] = {
    headers.stamped_causation: dict,
    headers.read_address: (Addressed, type(None)),
    headers.read_return_address_of: (ReturnAddress, type(None)),
    headers.read_message_id: str,
    headers.read_publication: str,
    headers.read_question: str,
    headers.read_retry_of: str,
    headers.is_answer: bool,
    headers.read_redeliveries: int,
    headers.read_retries: int,
    headers.read_step_retries: int,
    headers.read_pause_left: int,
    headers.read_looks: int,
    headers.read_waited: bool,
    headers.headers_of: Mapping,
    headers.task_of: str,
    headers.id_of: str,
}


@given(request=REQUESTS)
@example(request=Context({headers.RETURN_ADDRESS: "\ud800"}))
@example(request=Context({headers.RETURN_ADDRESS: "[" * 30_000}))
@example(request=Context({headers.ADDRESS: {"instance": "a", "request": "a", "came": []}}))
@example(request=Context({"get": 1, "headers": 1, "retries": "\0"}))
def test_readers_are_total(request: Context) -> None:
    for read, returned in READERS.items():
        with suppress(InvalidMessage):
            assert isinstance(read(request), returned), read.__name__


def test_each_reader_is_tested() -> None:
    """Add a new one to ``READERS``."""
    taking = [
        function
        for _, function in inspect.getmembers(headers, inspect.isfunction)
        if function.__module__ == headers.__name__ and not function.__name__.startswith("_")
        if list(inspect.signature(function).parameters) == ["request"]
    ]

    assert set(taking) == set(READERS)


@given(request=REQUESTS)
def test_what_is_handed_over_is_read_alike(request: Context) -> None:
    handed: dict[str, Any] = {}
    headers.hand_over(handed, request, "another")
    again = Context(handed)

    assert headers.stamped_causation(again) == headers.stamped_causation(request)
    assert headers.read_return_address_of(again) == headers.read_return_address_of(request)
    assert headers.read_publication(again) == "another"


@given(value=ANYTHING)
def test_message_id_is_refused_or_can_be_stored(value: Any) -> None:
    with suppress(InvalidMessage):
        headers.check_message_id("step", value)
        assert value is None or (value.isprintable() and 0 < len(value.encode()) < 1_024)


@given(request=REQUESTS)
def test_any_message_can_be_a_dead_letter(request: Context) -> None:
    """And somebody can be told that it has failed."""
    task = headers.task_of(request)

    dead_letter = dead_letter_of(task, session_of(request).message_id, "", ValueError(), payload_of(task, request))

    assert all("\0" not in text and text.encode() for text in dead_letter if isinstance(text, str) and text)
    assert failure_of(request, "it failed").retries >= 0
