"""``gather`` as type checkers see it, with and without celery-types. Checked, never run; see ``sagas.py``."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, assert_type

from celery_sagas import Failure, Gathered, GatherView, Saga


class Order(Saga, correlate_by="order_id"):
    order_id: str


class Other(Saga, correlate_by="other_id"):
    other_id: str


@Order.starts
def place(order: Order, order_id: str) -> None: ...


@Order.handles
def quoted(order: Order, came: Gathered[int]) -> None:
    assert_type(came.values, list[int])
    assert_type(came.answers, dict[int, int])
    assert_type(came.failures, dict[int, Failure])
    assert_type(came.silent, list[int])


@Order.handles
def quoted_for(order: Order, came: Gathered[str], customer: str) -> None: ...


@Order.handles(bind=True)
def quoted_bound(self: Any, order: Order, came: Gathered[Any]) -> None: ...


@Order.handles
def failed(order: Order, failure: Failure) -> None: ...


@Order.handles
def ended(order: Order) -> None: ...


@Other.handles
def elsewhere(other: Other, came: Gathered[int]) -> None: ...


def gathers(order: Order) -> None:
    members = [place.si("1"), place.si("2")]
    assert_type(order.gather(members, then=quoted), str)
    order.gather(members, then=quoted, otherwise=quoted, at_least=1, within=timedelta(hours=1))
    order.gather((place.si(key) for key in "123"), then=quoted_bound, otherwise="quoted", within=3)
    order.gather(members, then=quoted_for.s(customer="Mr Smith"))
    order.gather(members, then="quoted")
    order.gather(members, then=quoted, otherwise=quoted, at_least=1, early=True)


def watched(order: Order) -> None:
    assert_type(order.saga.gathers, Mapping[str, GatherView])
    for id, gather in order.saga.gathers.items():
        assert_type(id, str)
        assert_type(gather.answered, tuple[int, ...])
        assert_type(gather.failed, tuple[int, ...])
        assert_type(gather.silent, list[int])
        assert_type(gather.deadline, datetime | None)
        assert_type(order.cancel(id), bool)


def wrong_gathers(order: Order) -> None:
    members = [place.si("1"), place.si("2")]
    order.gather(members, then=elsewhere)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.gather(members, then=failed)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.gather(members, then=ended)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.gather(members, then=quoted, otherwise=failed)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.gather(members, then=quoted, at_least=1, early="yes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.gather(members, then=quoted, at_least="1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.gather(members)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    order.gather("quote", then=quoted)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.gather(members, quoted)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
