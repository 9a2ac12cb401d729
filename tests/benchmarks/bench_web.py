"""Pages of the web view among a million instances, many dead letters, and messages that no relay takes."""

import json
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from celery_sagas import Saga
from celery_sagas.operate import Operator
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import Outgoing
from celery_sagas.testing.samples import dead_letter, effects, entry, new_record, send
from celery_sagas.web import Access, asgi
from celery_sagas.worker.runtime import runtime_of
from tests.benchmarks.bench_listing import SIZE, Watched, _filled, _milliseconds
from tests.benchmarks.conftest import Report

#: Milliseconds.
OVERVIEW_BAR, BAR = 150, 100
#: How many dead letters, and messages that no relay has taken; how many a commit writes.
LETTERS, WAITING, AT_ONCE = SIZE // 100, SIZE // 10, 500
#: How many instances with a late message have a large state, of how many characters.
LARGE, CHARACTERS = 50, 100_000


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
        _leave_behind(runtime_of(app).backend)
        shown = Operator(app, "ann").instance(Watched, "one").show()
        assert shown is not None
        pages = {
            "the list": (BAR, "/sagas/order"),
            "the list of a tag": (BAR, "/sagas/order?field=status&value=paid"),
            "the list of the late ones": (BAR, "/sagas/order?show=late"),
            "the list of the idle ones": (BAR, "/sagas/order?show=idle"),
            "an instance, 50 entries, 20 rows": (BAR, f"/instances/{shown['id']}?saga=watched"),
            f"stuck, {LETTERS:,} dead letters, {WAITING:,} messages": (OVERVIEW_BAR, "/stuck"),
            "dead letters": (OVERVIEW_BAR, "/dead"),
            "activity of a saga": (OVERVIEW_BAR, "/activity?saga=order"),
            "audit": (OVERVIEW_BAR, "/audit"),
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


def _leave_behind(backend: Backend) -> None:
    """Leave messages that were due long ago, the first of them those of large instances, and dead letters."""
    for key in map(str, range(LARGE)):
        new = new_record(key, names=("watched",), data=json.dumps({"name": key, "notes": "x" * CHARACTERS}), pending="{}")
        late = Outgoing(f"late {key}", "scheduled", f"late id {key}", "watched.remind", "{}", 1)
        backend.sagas.insert(new, effects(new, late, line=entry(new, step="watched.watch")))
    rows = (Outgoing(f"row {number}", "sent", f"id {number}", "mail.write", "{}", number + 1) for number in range(WAITING))
    while part := list(islice(rows, AT_ONCE)):
        send(backend, *part)
    for _ in range(LETTERS):
        backend.dead.add(dead_letter(text="x" * 2_000))
