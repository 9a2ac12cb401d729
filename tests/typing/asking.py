"""Asking, and the async variants, as type checkers see them, also without celery-types. Checked, never run; see ``sagas.py``."""

from datetime import timedelta
from decimal import Decimal
from typing import Any, assert_type

from celery_sagas import Message, Outcome, Saga, ask, ask_async


class Total(Message):
    items: int


class Cart(Saga, correlate_by="cart_id", also_by="coupon"):
    cart_id: str
    coupon: str | None = None
    paid: bool = False


@Cart.starts(if_exists="ignore")
def begin(cart: Cart, cart_id: str) -> None: ...


@Cart.handles
def add_item(cart: Cart, cart_id: str, price: Decimal) -> Total:
    return Total(items=1)


@Cart.handles(bind=True, max_retries=3)
def look(self: Any, cart: Cart, cart_id: str) -> list[str]:
    return []


@Cart.handles
def total_came(cart: Cart, total: Decimal) -> None: ...


def asks() -> None:
    assert_type(ask(add_item.si("c1", Decimal(1)), timeout=5), Total)
    assert_type(ask(add_item.s("c1", price=Decimal(1)), timeout=timedelta(seconds=5), id="k1"), Total)
    assert_type(ask(add_item.si("c1", Decimal(1)).set(priority=3), timeout=5), Total)
    assert_type(ask(look.si("c1"), timeout=0.5, id=None), list[str])
    ask(begin.si("c1"), timeout=5)


async def asks_and_waits() -> None:
    assert_type(await ask_async(add_item.si("c1", Decimal(1)), timeout=5, id="k1"), Total)
    assert_type(await Cart.find_async("c1"), Cart | None)
    assert_type(await Cart.find_async(coupon="T1"), Cart | None)
    assert_type(await Cart.find_async(id="3f1c"), Cart | None)
    assert_type(await Cart.outcome_async("c1"), Outcome[Cart] | None)
    assert_type(await Cart.wait_async("c1", until=lambda cart: cart.paid, timeout=5), Cart)
    assert_type(await Cart.wait_async("c1", until="completed", timeout=5), Outcome[Cart])


def what_send_takes_too(cart: Cart) -> None:
    """A step that begins an instance answers with what that replies."""
    cart.send(begin.si("c1"), then=total_came, otherwise="failed", within=60)
    cart.send(add_item.si("c1", Decimal(1)), then=total_came)


def wrong_questions() -> None:
    ask(add_item.si("c1", Decimal(1)))  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    ask(add_item.si("c1", Decimal(1)), timeout="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ask(add_item.si("c1", Decimal(1)), timeout=5, id=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ask(add_item, timeout=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ask("c1", timeout=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def wrong_waits() -> None:
    await Cart.wait_async("c1", until="paid", timeout=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    await Cart.wait_async("c1", timeout=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
