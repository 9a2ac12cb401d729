"""What the shop has before and after: its app, its table, and the services that it calls."""

import os
from datetime import datetime

from celery import Celery
from sqlalchemy import JSON, DateTime, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from workers import BROKER, RUN, ask, settings

DATABASE = os.environ.get("DATABASE_URL", "postgresql+psycopg://localhost/shop")
app = Celery("shop")
app.conf.update(settings(result_backend=BROKER, result_backend_transport_options={"global_keyprefix": f"{RUN}-results-"}))
engine = create_engine(DATABASE)


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="placed")  # then paid and shipped, or cancelled
    items: Mapped[list[str]] = mapped_column(JSON)
    remind_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    pay_by: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    receipt: Mapped[str | None]


# Services outside: each call is a request, and a second one with the same arguments does nothing there, mails apart.


def send_mail(order_id: int, text: str) -> None:
    ask(f"mail of {order_id}: {text}")


def release_stock(order_id: int) -> None:
    ask(f"release {order_id}")


def refund(receipt: str) -> None:
    ask(f"refund {receipt}")


def call_carrier(order_id: int) -> None:
    ask(f"parcel of {order_id}")


@app.task(name="shop.reserve", acks_late=True)
def reserve(order_id: int, item: str) -> str:
    ask(f"reserve {item} for {order_id}")
    return item
