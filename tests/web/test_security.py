"""Who gets in, and what every answer says to a browser."""

import logging
import re
import sys
from itertools import product
from pathlib import Path
from urllib.parse import quote

import pytest
from celery import Celery, current_app
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from starlette.testclient import TestClient

import celery_sagas.web
from celery_sagas.operate import Operator
from celery_sagas.web import Access, asgi
from celery_sagas.web.asgi import PAGES
from celery_sagas.worker.runtime import runtime_of
from tests.web.conftest import HOST, SECRET, Visitor, id_of
from tests.web.crawling import crawl, see

FOLDER = Path(celery_sagas.web.__file__).parent
#: A page of each kind.
URLS = [path.format(name="order", id="x") for path in PAGES]


def test_nobody_is_let_in_by_default(visitor: Visitor, caplog: pytest.LogCaptureFixture) -> None:
    """The log says what to write, once."""
    client = visitor(None)
    with caplog.at_level(logging.WARNING, "celery_sagas"):
        assert {client.get(url).status_code for url in URLS} == {403}
    assert len([record for record in caplog.records if "asgi(app, access=…)" in record.getMessage()]) == 1


def test_whoever_may_see_nothing_sees_nothing(visitor: Visitor) -> None:
    client = visitor("none")
    for page in map(client.get, URLS):
        assert page.status_code == 403
        assert "order" not in page.text


def test_access_may_be_async_or_nothing(shop: Celery) -> None:
    async def access(request: Request) -> Access | None:
        return Access("look") if request.headers.get("x-user") else None

    client = TestClient(asgi(shop, access=access, hosts=["testserver"]), base_url=HOST)
    assert client.get("/").status_code == 403
    assert client.get("/", headers={"x-user": "ann"}).status_code == 200


def test_current_app_stands_for_the_app(shop: Celery) -> None:
    site = asgi(current_app, access=lambda _: Access("look"), hosts=["testserver"])
    assert TestClient(site, base_url=HOST).get("/sagas/order").status_code == 200
    assert Operator(current_app, "ann").instance("order", "1").show()  # type: ignore[arg-type]


def test_access_is_nothing_else(shop: Celery) -> None:
    client = TestClient(asgi(shop, access=lambda _: True, hosts=["testserver"]), base_url=HOST)  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match="not an Access"):
        client.get("/")


def test_an_error_of_access_is_answered_like_everything(shop: Celery) -> None:
    """With the headers that each answer has, and without the text of the error."""

    def access(request: Request) -> Access:
        raise KeyError("s3cret")

    client = TestClient(asgi(shop, access=access, hosts=["testserver"]), base_url=HOST, raise_server_exceptions=False)
    answer = client.get("/")
    assert answer.status_code == 500
    assert "s3cret" not in answer.text
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("level", ["admin", "", None])
def test_there_is_no_such_level(level: str) -> None:
    with pytest.raises(ValueError, match="no level of access"):
        Access(level)  # type: ignore[arg-type]


def test_whoever_acts_has_a_name() -> None:
    with pytest.raises(ValueError, match="needs a name"):
        Access("act")


def test_other_hosts_are_refused(visitor: Visitor) -> None:
    """Such as a name that somebody else leads to this address."""
    client = visitor()
    for host in ("evil.example", "testserver.evil.example", "", "127.0.0.1.evil.example", "testserver:80:80", "testserver@evil"):
        assert client.get("/", headers={"host": host}).status_code == 400, host
        assert client.get("/livez", headers={"host": host}).status_code == 200, host
        assert client.post("/livez", headers={"host": host}).status_code == 400, host


def test_hosts_of_this_machine_are_known(shop: Celery) -> None:
    client = TestClient(asgi(shop, access=lambda _: Access("look")), base_url=HOST)
    for host in ("localhost", "127.0.0.1:5557", "[::1]:5557", "LOCALHOST:1"):
        assert client.get("/", headers={"host": host}).status_code == 200, host
    assert client.get("/").status_code == 400


def test_pages_are_only_read(visitor: Visitor) -> None:
    client = visitor("read")
    for method, url in product(("post", "put", "delete", "patch", "options"), URLS):
        assert client.request(method, url).status_code in (403, 404, 405), (method, url)


def test_probes(shop: Celery, visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    client = visitor(None)
    assert (client.get("/livez").status_code, client.get("/readyz").status_code) == (200, 200)

    def fail() -> int:
        raise TimeoutError

    monkeypatch.setattr(runtime_of(shop).backend.outbox, "time", fail)
    assert (visitor(None).get("/livez").status_code, visitor(None).get("/readyz").status_code) == (200, 503)


def test_metrics(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those of ``celery sagas metrics``, for whoever may look."""
    for level in (None, "none"):
        assert visitor(level).get("/metrics").status_code == 403
    for accept, parse in ((None, parser), ("application/openmetrics-text; version=1.0.0", openmetrics)):
        answer = visitor("look").get("/metrics", headers={"accept": accept} if accept else {})
        assert answer.headers["content-type"].startswith("application/openmetrics-text" if accept else "text/plain")
        gauges = {family.name: family for family in parse.text_string_to_metric_families(answer.text)}
        assert {sample.labels["saga"]: sample.value for sample in gauges["celery_sagas_instances"].samples}["order"] == 4
        assert SECRET not in answer.text
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    missing = visitor("look").get("/metrics", headers={"accept": "application/json"})
    assert missing.status_code == 500
    assert 'pip install "celery-sagas[prometheus]"' in missing.json()["error"]


def test_it_is_mounted_below_a_path(shop: Celery) -> None:
    """All links stay below it."""
    mounted = asgi(shop, access=lambda _: Access("read"), hosts=["testserver"])
    client = TestClient(Starlette(routes=[Mount("/ops/sagas", mounted)]), base_url=HOST)
    pages = crawl(client, "/ops/sagas/")

    assert len(pages) > 20
    assert all(url.startswith(f"{HOST}/ops/sagas/") and page.status == 200 for url, page in pages.items())
    assert client.get("/ops/sagas/static/sagas.css").status_code == 200
    assert client.get("/ops/sagas/livez").status_code == 200


@pytest.mark.parametrize("path", ["/größe", "/заказы", "/a b", "/a;Domain=b", "/a?b", '/a"b', "/a\r\nX-Evil: 1"])
def test_it_is_mounted_below_any_path(shop: Celery, path: str) -> None:
    """Also below one that is part of the request: links and the cookie have it as a URL does."""
    mounted = asgi(shop, access=lambda _: Access("act", "ann"), hosts=["testserver"])
    client = TestClient(Starlette(routes=[Mount("/{tenant}", mounted)]), base_url="https://testserver")
    page = see(client, f"{quote(path)}/instances/{id_of(shop, '2')}/pause?saga=order")
    (form,) = [form for form in page.forms if form.method == "post"]

    assert page.headers["set-cookie"].split("; ")[1:] == ["HttpOnly", f"Path={quote(path)}", "SameSite=strict", "Secure"]
    assert client.post(form.action, data={**form, "reason": "why"}).status_code == 200
    assert {client.get(link).status_code for link in page.links if link != page.url + "#main"} == {200}


def test_no_log_line_has_a_key_or_a_state(shop: Celery, visitor: Visitor, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "celery_sagas"):
        client = visitor()
        client.get(f"/instances/{id_of(shop, '2')}")
        client.get(f"/sagas/order?field=city&value={SECRET}")
        client.get("/dead")
    assert not [record for record in caplog.records if SECRET in record.getMessage()]


def test_nothing_is_marked_as_safe() -> None:
    """All texts are escaped, and no page has a script, or a style of its own."""
    sources = [path for path in FOLDER.rglob("*") if path.suffix in (".html", ".py")]
    assert len(sources) > 25
    for path in sources:
        text = path.read_text()
        assert not re.search(r"\|\s*safe|autoescape false|Markup\(|<script|style=|javascript:", text), path


def test_the_style_is_small_and_asks_for_nothing() -> None:
    text = (FOLDER / "static" / "sagas.css").read_text()
    assert len(text) < 30_000
    assert "url(" not in text
    assert "@import" not in text
