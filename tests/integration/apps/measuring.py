"""An app that counts something of its own, and so has prometheus_client imported before its worker is set up."""

import prometheus_client
from deployed import make_app

import celery_sagas

app = make_app()
DONE = prometheus_client.Counter("shop_done", "What the shop counts.")


class Shop(celery_sagas.Saga, correlate_by="name"):
    name: str


@Shop.starts
def work(shop: Shop, name: str) -> None:
    DONE.inc()


@Shop.starts
def fail(shop: Shop, name: str) -> None:
    raise ValueError(name)
