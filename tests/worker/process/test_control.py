"""``celery inspect sagas_code``."""

import time
from collections.abc import Callable
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.worker.control import Panel

from celery_sagas import Saga
from celery_sagas.worker.process import control


@pytest.fixture
def order(app: Celery) -> None:
    """A saga."""

    class Order(Saga, correlate_by="order_id", schema_version=3):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str) -> None: ...


@pytest.mark.usefixtures("order")
def test_which_code_a_worker_runs(app: Celery) -> None:
    app.conf.saga_prefix = "shop"
    answer: Callable[..., Any] = Panel.data["sagas_code"]
    before = time.time()
    found = answer(SimpleNamespace(app=app))
    assert before <= found["time"] <= time.time()
    assert (found["version"], found["prefix"]) == (version("celery-sagas"), "shop")
    assert list(found["sagas"]) == ["order"]
    assert found["sagas"]["order"]["schema_version"] == 3
    assert "order.place" in found["sagas"]["order"]["steps"]


def test_is_an_inspect_command() -> None:
    assert Panel.data["sagas_code"] is control.sagas_code
    assert Panel.meta["sagas_code"].type == "inspect"
