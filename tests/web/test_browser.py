"""All kinds of pages in a real browser: people can use them, on wide and narrow screens, in light and in dark."""

import threading
from collections.abc import Iterator

import pytest
import uvicorn
from celery import Celery

from celery_sagas.operate import Operator
from celery_sagas.web import Access, asgi
from celery_sagas.web.serving import bound
from celery_sagas.worker.runtime import runtime_of
from tests.waiting import wait_until
from tests.web.browser import Browser, browsing
from tests.web.conftest import HOSTILE, id_of


@pytest.fixture
def browser() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


@pytest.fixture
def address(shop: Celery) -> Iterator[str]:
    """Where the shop is shown to somebody who may act."""
    listening = bound("127.0.0.1", 0)
    config = uvicorn.Config(asgi(shop, access=lambda _: Access("act", "ann")), log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    wait_until(lambda: server.started, "the start of the server")
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join()
    listening.close()


def test_people_can_use_every_page(shop: Celery, address: str, browser: Browser) -> None:
    one, hostile, letter = id_of(shop, "2"), id_of(shop, HOSTILE), runtime_of(shop).backend.dead.list(1)[0].id
    Operator(shop, "ann").instance("order", "1").patch("x", values={"notes": ["word " * 500]})
    pages = {
        "overview": "/",
        "list": "/sagas/order",
        "instance": f"/instances/{one}?saga=order",
        "hostile": f"/instances/{hostile}?saga=order",
        "patch": f"/instances/{one}/patch?saga=order",
        "terminate": f"/instances/{one}/terminate?saga=order",
        "each": "/sagas/order/each/pause",
        "each by name": "/sagas/order/each/fire",
        "hold": "/switches/hold?name=order.parcel",
        "stuck": "/stuck",
        "dead": "/dead",
        "letter": f"/dead/{letter}",
        "retry": f"/dead/{letter}/retry",
        "activity": "/activity",
        "audit": "/audit",
        "aggregators": "/aggregates",
        "items": "/aggregates?name=index&group=",
        "doctor": "/doctor",
        "timeline": "/timeline?saga=order&key=2",
    }
    for name, path in pages.items():
        browser.open(address + path)
        for width in (1280, 390):
            for scheme in ("light", "dark"):
                browser.look(width, scheme)
                assert not browser.overflows(), (name, width)
                browser.picture(f"{name}-{width}-{scheme}")
                if name != "hostile":
                    assert browser.findings() == [], (name, width, scheme)
    assert browser.complaints() == []
    assert browser.asked() <= {address, "data"}
