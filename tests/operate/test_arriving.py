"""How a message that an operator makes up arrives: the rules, without a store."""

from typing import Any

import pytest
from celery import Celery

from celery_sagas.core.pending import Pending
from celery_sagas.core.registry import registry
from celery_sagas.core.requests.requests import ReplyKind, Request
from celery_sagas.core.step import StepDefinition
from celery_sagas.core.timeouts import Timeout
from celery_sagas.errors import MisuseError
from celery_sagas.operate.arriving import came_of, chosen, with_keys
from tests.operate import shops


@pytest.fixture
def shop(app: Celery) -> Any:
    return shops.define()


def step_named(name: str) -> StepDefinition:
    return registry.steps[f"order.{name}"]


TIMEOUT = Timeout("t", "row", "order.remind", 1)
REQUEST = Request("r", "shop.charge", "order.charged", "order.failed", progress="order.note_paid")


@pytest.mark.parametrize(
    ("step", "members", "came"),
    [
        ("charged", 0, ReplyKind.ANSWER),
        ("failed", 0, ReplyKind.FAILURE),
        ("note_paid", 0, ReplyKind.PROGRESS),
        ("charged", 2, ReplyKind.GATHERED),
        ("failed", 2, ReplyKind.GATHERED),
        ("remind", 0, None),
    ],
)
def test_outcome(shop: Any, step: str, members: int, came: ReplyKind | None) -> None:
    request = Request("r", "shop.charge", "order.charged", "order.failed", progress="order.note_paid", members=members)
    assert came_of(step_named(step), request) is came


class TestChosen:
    def test_the_only_one(self, shop: Any) -> None:
        pending = Pending(timeouts={"reminder": TIMEOUT}, requests={"r": REQUEST})
        assert chosen(step_named("remind"), pending, "order", None) is TIMEOUT
        assert chosen(step_named("charged"), pending, "order", None) is REQUEST
        assert chosen(step_named("pay"), pending, "order", None) is None

    def test_one_that_is_named(self, shop: Any) -> None:
        pending = Pending(timeouts={"a": TIMEOUT, "b": Timeout("u", "row", "order.remind", 1)}, requests={"r": REQUEST})
        assert chosen(step_named("remind"), pending, "order", "a") is TIMEOUT
        assert chosen(step_named("charged"), pending, "order", "shop.charge") is REQUEST

    def test_several(self, shop: Any) -> None:
        pending = Pending(timeouts={"a": TIMEOUT, "b": Timeout("u", "row", "order.remind", 1)})
        with pytest.raises(MisuseError, match=r"order waits for several that go to order.remind. Name one: a, b"):
            chosen(step_named("remind"), pending, "order", None)

    def test_one_that_has_timed_out(self, shop: Any) -> None:
        request = Request("r", "shop.charge", "order.charged", has_timed_out=True)
        assert chosen(step_named("charged"), Pending(requests={"r": request}), "order", None) is None


class TestKeys:
    def test_what_names_the_instance_is_added(self, shop: Any) -> None:
        state = shop.Order(order_id="42", tracking="1Z")
        assert with_keys(step_named("pay"), {"receipt": "r"}, state) == {"receipt": "r", "order_id": "42"}
        assert with_keys(step_named("parcel"), {}, state) == {"tracking": "1Z"}
        assert with_keys(step_named("remind"), {}, state) == {}

    def test_what_is_given_stays(self, shop: Any) -> None:
        assert with_keys(step_named("pay"), {"order_id": "43"}, shop.Order(order_id="42")) == {"order_id": "43"}

    def test_what_lies_in_a_message_is_not_made_up(self, shop: Any) -> None:
        assert with_keys(step_named("note_paid"), {}, shop.Order(order_id="42")) == {}
