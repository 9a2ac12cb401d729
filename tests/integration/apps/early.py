"""Orders whose messages come in any order, also before the order itself: each waits until it can be handled."""

from datetime import timedelta
from typing import Literal

from deployed import make_app

from celery_sagas import Saga
from celery_sagas.worker.failures import deferral

app = make_app()
deferral._IN_WORKERS_S = 1.0  # what comes earlier than that waits in the backend

SCANS = 3
EARLY = {"if_not": "defer", "if_missing": "defer", "defer_for": timedelta(hours=1)}


class Order(Saga, correlate_by="order_id", also_by="code", status_by="status"):
    order_id: str
    code: str = ""
    status: Literal["placed", "paid", "packed", "sent"] = "placed"
    scans: int = 0
    seen: list[str] = []


@Order.starts(if_exists="ignore")
def place(order: Order, order_id: str) -> None:
    order.code = f"code-{order_id}"
    order.seen.append("place")


@Order.handles(when="placed", to="paid", **EARLY)
def pay(order: Order, order_id: str) -> None:
    order.seen.append("pay")


@Order.handles(when="paid", to="packed", **EARLY)
def pack(order: Order, order_id: str) -> None:
    order.seen.append("pack")


@Order.handles(by="code", when="packed", to="sent", **EARLY)
def send(order: Order, code: str) -> None:
    order.seen.append("send")


@Order.handles(by="code", when=lambda order, code, number: number == order.scans, **EARLY)
def scan(order: Order, code: str, number: int) -> None:
    order.scans += 1


@Order.handles(when=lambda order, order_id: order.status == "sent" and order.scans == SCANS, **EARLY)
def deliver(order: Order, order_id: str) -> None:
    order.complete()
