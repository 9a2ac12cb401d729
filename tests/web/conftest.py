"""A shop with orders of each kind, and visitors of its web view."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from starlette.testclient import TestClient

from celery_sagas.operate import Operator
from celery_sagas.web import Access, Level, asgi
from celery_sagas.worker.runtime import runtime_of
from tests.apps import NewApp, Worker, app, at_one_time, definitions, new_app
from tests.servers import unique
from tests.web.shops import define

__all__ = ["app", "at_one_time", "definitions", "new_app"]

#: Ends a line, moves the cursor, turns the direction, and is markup.
HOSTILE = "\x1b[2J\n\u202e\u2028</pre><script>alert(1)</script>'\"&{{7*7}}"
#: What only those see who may read states.
SECRET = "Lillehammer"
#: What nobody sees.
HIDDEN = "4111-1111"
HOST = "http://testserver"

#: Makes a visitor with a level of access.
Visitor = Callable[..., TestClient]


@pytest.fixture
def url() -> str:
    """The URL of the store; tests that ask for more have others."""
    return f"memory://{unique()}"


@pytest.fixture
def shop(new_app: NewApp, url: str) -> Celery:
    """An app with orders that wait, fail, are paused, and have texts that nobody should trust."""
    shop = define()
    app = new_app(saga_prefix=unique())
    app.conf.saga_backend = url
    app.conf.task_routes = {"tests.web.shops.review": {"queue": unique()}}  # nobody answers
    app.set_default()
    runtime_of(app).prepare(processes=1)
    for key in ("1", "2", "3", HOSTILE):
        send(app, shop.place, order_id=key, tracking=f"T{key}")
    send(app, shop.fill, region="eu", cart_id="7 7")
    send(app, shop.pay, order_id="2", card=HIDDEN)
    send(app, shop.broken, order_id="3", card=HIDDEN)
    send(app, shop.broken, order_id=HOSTILE, card=HIDDEN)
    send(app, shop.index, HOSTILE)
    Worker(app).run(100)
    operator = Operator(app, f"ann {HOSTILE}")
    operator.instance("order", "1").pause(f"why {HOSTILE}")
    operator.instance("order", "2").patch("moved", values={"city": SECRET})
    values = {"city": HOSTILE, "card": HIDDEN, "notes": [HOSTILE, "x" * 900_000]}
    operator.instance("order", HOSTILE).patch(HOSTILE, values=values)
    operator.hold(shop.pay.name, HOSTILE)
    return app


def send(app: Celery, task: Any, *args: Any, **kwargs: Any) -> None:
    """Send a message."""
    app.send_task(task.name, args=args, kwargs=kwargs, ignore_result=True)


@pytest.fixture
def visitor(shop: Celery) -> Iterator[Visitor]:
    """Makes visitors, each with a level of access."""

    def make(level: Level | None = "read", **options: Any) -> TestClient:
        access = None if level is None else lambda _request: Access(level, "ann")
        return TestClient(asgi(shop, access=access, hosts=["testserver"], **options), base_url=HOST)

    return make


def id_of(app: Celery, key: str) -> str:
    """Return the id of an order."""
    shown = Operator(app, "ann").instance("order", key).show()
    assert shown is not None
    return str(shown["id"])
