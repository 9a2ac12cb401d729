"""Items: what is secret in them is neither lost nor told."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import SecretStr, field_serializer
from pydantic_core import to_json

from celery_sagas.core.aggregators.items import ItemType
from celery_sagas.core.message import Message
from celery_sagas.errors import InvalidMessage

SECRET = "4111-1111"


def items(annotation: Any, group_by: Any = None) -> ItemType:
    return ItemType("shop.collect", annotation, group_by)


def refused(work: Callable[[], Any]) -> InvalidMessage:
    with pytest.raises(InvalidMessage) as caught:
        work()
    return caught.value


def told(error: BaseException | None) -> str:
    """Return everything that a traceback would show."""
    texts = []
    while error is not None:
        texts.append(f"{error} {error!r}")
        error = error.__cause__ or error.__context__
    return "\n".join(texts)


class Card(Message):
    number: SecretStr
    year: int = 2030


class Open(Card):
    @field_serializer("number")
    def show(self, number: SecretStr) -> str:
        return number.get_secret_value()


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Card, Card(number=SECRET)),
        (Card, {"number": SECRET}),
        (Card, {"number": SecretStr(SECRET)}),
        (Any, {"number": SecretStr(SECRET)}),
        (Any, [Card(number=SECRET)]),
    ],
)
def test_secret_would_be_lost(annotation, value):
    """It would be flushed as asterisks."""
    error = refused(lambda: items(annotation).encode(value))
    assert "it holds a secret, which would be sent as asterisks" in str(error) or "cannot be encoded as JSON" in str(error)
    assert SECRET not in told(error)


def test_secret_whose_model_shows_it():
    encoded = items(Open).encode(Open(number=SECRET))
    assert items(Open).read(to_json(encoded).decode()).number.get_secret_value() == SECRET


def test_asterisks_are_no_secret():
    assert items(str).encode("**********") == "**********"


@pytest.mark.parametrize(
    "work",
    [
        lambda: items(Card).encode({"number": "5", "year": SECRET}),
        lambda: items(Card).read(f'{{"number": "5", "year": "{SECRET}"}}'),
        lambda: items(Card).read(f'{{"year": "{SECRET}"'),
        lambda: items(int).encode(SECRET),
    ],
)
def test_values_are_not_told(work):
    """Not in the error, nor in what caused it: both stand in logs."""
    assert SECRET not in told(refused(work))


def test_error_of_a_function_is_not_told():
    """It may quote anything; what caused the error has it."""
    error = refused(lambda: items(dict, lambda item: item[SECRET]).group_of({}))
    assert SECRET not in str(error)
    assert isinstance(error.__cause__.__cause__, KeyError)
