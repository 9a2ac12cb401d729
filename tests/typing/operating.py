"""Operators as type checkers see them, with and without celery-types. Checked, never run; see ``sagas.py``."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, assert_type

from celery import Celery

from celery_sagas import Saga
from celery_sagas.operate import (
    Call,
    Changed,
    ChangedValue,
    DeadLetters,
    Done,
    OperatedInstance,
    Operator,
    OutgoingMessage,
    Switched,
    Treated,
    Tried,
)


class Order(Saga, correlate_by="order_id", also_by="tracking"):
    order_id: str
    tracking: str | None = None


@Order.starts
def place(order: Order, order_id: str) -> None: ...


@Order.handles
def pay(order: Order, order_id: str, receipt: str) -> None: ...


ann = Operator(Celery("shop"), actor="ann", dry_run=True, batch="INC-1")
order = ann.instance(Order, "42")
assert_type(order, OperatedInstance)
assert_type(ann.instance("order", tracking="1Z"), OperatedInstance)
assert_type(ann.instances(Order, idle=3_600), Iterator[OperatedInstance])
ann.instances(Order, paused=True, where='tracking == "1Z"')
ann.instance(int, "42")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

assert_type(order.show(), dict[str, Any] | None)
changed = order.changes(limit=10)
assert_type(changed, list[Changed])
assert_type((changed[0].by, changed[0].at, changed[0].names, changed[0].many), tuple[str, datetime, tuple[str, ...], bool])
assert_type(changed[0].values["tracking"], ChangedValue)
order.changes(values=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
assert_type(order.pause("carrier down"), Done)
order.pause()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
order.resume("it is back", expected_version=4)
order.resume("it is back", expected_version="4")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
order.terminate("it is lost", leave_undone=True)
order.patch("a typo", values={"tracking": "2Z"}, removed=["note"])
order.patch("a typo", change=lambda fields: {**fields, "tracking": "2Z"})
order.fire("delivery", "it is lost")
order.skip("delivery", "it is not needed")
order.answer("shop.charge", {"receipt": 1}, "by hand", arguments={"by": "visa"})
order.fail("shop.charge", "the bank is closed", "by hand")
letters = ann.dead_letters("the step is fixed")
assert_type(letters, DeadLetters)
assert_type(letters.retry("6f1"), Treated)
assert_type(letters.discard("6f1").text, str)
letters.retry(6)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
tried = order.try_step(pay.s(receipt="r-17"), awaited="delivery")
assert_type(tried, Tried)
assert_type(ann.try_step(pay), Tried)
assert_type(ann.try_step("order.pay"), Tried)
order.try_step(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
assert_type((tried.key, tried.before, tried.changed), tuple[str, dict[str, Any] | None, tuple[str, ...]])
assert_type(tried.messages, tuple[OutgoingMessage, ...])
assert_type(tried.messages[0].calls, tuple[Call, ...])
assert_type(tried.error, Exception | None)
order.reindex("search_by has carrier", expected_version=4)
order.upgrade("release 7", always=True, expected_version=4)
done = order.pause("again")
assert_type((done.saga, done.key, done.version, done.changed, done.text), tuple[str, str, int, bool, str])

assert_type(ann.hold(Order, "the bank is closed"), Switched)
assert_type(ann.hold(place, reason="the bank is closed"), Switched)
assert_type(ann.release("order.place", "it is open"), Switched)
ann.hold(Order)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
ann.hold(7, "why")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
ann.release(int, "why")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
switched = ann.release(place, "it is open")
assert_type((switched.name, switched.changed, switched.text, switched.planned), tuple[str, bool, str, bool])
