"""Plain code that asks, or waits, in virtual time: it lets time pass, and what messages do meanwhile is done."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from celery_sagas import ask, ask_async
from celery_sagas.errors import AskTimeout, StepFailed, WaitTimeout
from celery_sagas.testing.harness.harness import START, SagaHarness


@pytest.fixture
def quote(shop: Any) -> Any:
    """A step that answers."""

    @shop.Order.handles
    def quote(order: Any, order_id: str) -> str:
        if order_id == "broken":
            raise ValueError("no price")
        return f"{order_id}: {order.receipt}"

    return quote


def test_whoever_asks_has_messages_delivered(harness: SagaHarness, shop: Any, quote: Any) -> None:
    harness.send(shop.place, "42")
    assert ask(quote.si("42"), timeout=5) == "42: None"  # the card is charged after that
    assert ask(quote.si("42"), timeout=5, id="k1") == "42: r-42" == ask(quote.si("42"), timeout=0, id="k1")
    assert harness.now - START < timedelta(seconds=1)
    assert harness.pending == []


def test_coroutine_asks_and_waits(harness: SagaHarness, shop: Any, quote: Any) -> None:
    async def view() -> tuple[str, str]:
        placed = await shop.Order.wait_async("42", until=lambda order: order.receipt, timeout=5)
        return placed.receipt, await ask_async(quote.si("42"), timeout=5)

    harness.send(shop.place, "42")
    assert asyncio.run(view()) == ("r-42", "42: r-42")


def test_time_passes_until_it_is_over(harness: SagaHarness, shop: Any, quote: Any) -> None:
    harness.send(shop.place, "42")
    harness.hold(quote)
    with pytest.raises(AskTimeout) as caught:
        ask(quote.si("42"), timeout=60, id="k1")
    assert timedelta(seconds=60) <= harness.now - START < timedelta(seconds=61)
    assert caught.value.seconds == 60.0

    harness.deliver(quote)
    assert ask(quote.si("42"), timeout=0, id="k1") == "42: r-42"


def test_wait_lets_time_pass_too(harness: SagaHarness, shop: Any) -> None:
    harness.send(shop.place, "42")
    assert shop.Order.wait("42", until=lambda order: order.receipt, timeout=5).receipt == "r-42"
    with pytest.raises(WaitTimeout):
        shop.Order.wait("43", until=lambda order: True, timeout=60)
    assert harness.now - START >= timedelta(seconds=60)


def test_step_that_is_retried_first(harness: SagaHarness, shop: Any, quote: Any) -> None:
    """As the settings say: the answer comes after the last retry."""
    shop.place("broken")
    with pytest.raises(StepFailed, match="ValueError: no price") as caught:
        ask(quote.si("broken"), timeout=timedelta(hours=1))
    assert [dead_letter.id for dead_letter in harness.dead] == [caught.value.letter]


def test_worker_that_is_killed_when_it_has_committed(harness: SagaHarness, shop: Any, quote: Any) -> None:
    """The message comes again, and the answer is the first one."""
    shop.place("42")
    with pytest.raises(AskTimeout):
        ask(quote.si("42"), timeout=0, id="k1")
    harness.deliver(quote, crash="after_commit")
    assert [message.task for message in harness.pending if message.task == quote.name] == [quote.name]
    assert ask(quote.si("42"), timeout=0, id="k1") == "42: None"
