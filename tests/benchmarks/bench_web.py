"""Pages of the web view among a million instances: the first page, also as it is read anew, a list, and one instance."""

from functools import partial
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from celery_sagas import Saga
from celery_sagas.operate import Operator
from celery_sagas.web import Access, asgi
from tests.benchmarks.bench_listing import SIZE, Watched, _filled, _milliseconds
from tests.benchmarks.conftest import Report

#: Milliseconds.
OVERVIEW_BAR, BAR = 150, 100


class Order(Saga, correlate_by="name", search_by="status", name="order"):
    """Half of them."""

    name: str
    status: str = "new"


@Order.starts
def place(order: Order, name: str) -> None:
    """Do nothing."""


@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mariadb", "redis"])
def test_pages_among_a_million(report: Report, tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with _filled(engine, tmp_path) as app:
        shown = Operator(app, "ann").instance(Watched, "one").show()
        assert shown is not None
        pages = {
            "the list": (BAR, "/sagas/order"),
            "the list of a tag": (BAR, "/sagas/order?field=status&value=paid"),
            "an instance, 50 entries, 20 rows": (BAR, f"/instances/{shown['id']}?saga=watched"),
            "the first page": (OVERVIEW_BAR, "/"),
            "the first page, read anew": (OVERVIEW_BAR, "/"),
        }
        for what, (bar, url) in pages.items():
            if what.endswith("anew"):
                monkeypatch.setattr("celery_sagas.web.pages.overview.KEPT_S", 0)
            client = TestClient(asgi(app, access=lambda _: Access("read"), hosts=["testserver"]))
            assert client.get(url).status_code == 200
            median, worst = _milliseconds(partial(client.get, url))
            report(f"{what}, {SIZE:,}, {engine}", f"{median:.1f} ms, 95 % in {worst:.1f}", f"< {bar} ms", worst < bar)
