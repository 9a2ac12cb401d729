"""The pages: what each shows, at each level of access, and that no text of a store is more than text."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from starlette.testclient import TestClient

from celery_sagas import Saga
from celery_sagas.errors import StoreUnavailable
from celery_sagas.operate import Operator
from celery_sagas.stores.records import Outgoing
from celery_sagas.testing.samples import by_key, dead_letter, entry, found
from celery_sagas.testing.samples import send as commit
from celery_sagas.web import Access, Level, asgi
from celery_sagas.worker.runtime import runtime_of
from tests.apps import NewApp, Worker
from tests.cli.test_describe import run
from tests.servers import unique
from tests.web.conftest import HIDDEN, HOSTILE, SECRET, Visitor, id_of, send
from tests.web.crawling import Seen, crawl, see

#: What a browser would take for more than text.
ACTIVE = {"script", "iframe", "object", "embed", "style", "img", "base"}
JSON = {"accept": "application/json"}

#: What no page can answer, or finds nothing for.
WRONG = [
    "/sagas/order?show=everything",
    "/sagas/order?show=idle&age=later",
    "/sagas/order?after=%00",
    "/sagas/order?where=import+os",
    "/sagas/order?where=card+%3D%3D+'x'",
    "/sagas/order?field=card&value=x",
    "/sagas/order?show=paused&field=city&value=x",
    "/activity?after=x",
    "/activity?outcome=x",
    "/audit?after=%ff",
    "/stuck?late=x",
    "/find?saga=order",
    "/find?saga=order&key=%00",
    "/timeline?saga=order&key=%00",
    "/instances/%00",
    "/instances/" + "x" * 1000,
    "/dead/none",
    "/aggregates?name=none&group=%00",
    "/nowhere",
    "/sagas/none",
]


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of one kind of store, and of another."""
    return f"sqlite:///{tmp_path}/sagas.sqlite3" if request.param == "sqlite" else str(request.getfixturevalue("redis_url"))


def check(page: Seen) -> None:
    """Check what is so of every page."""
    is_too_large = page.status == 413 and "/patch" in page.url and "use celery sagas patch" in page.text
    assert page.status == 200 or is_too_large, page.url
    assert page.tags.count("h1") == 1, page.url
    assert not ACTIVE & set(page.tags), page.url
    assert not [name for name in page.attributes if name.startswith("on") or name == "style"], page.url
    assert not [url for url in page.loaded if not url.startswith(("/static/", "data:image/svg+xml,"))], page.url
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert (page.headers["cache-control"], page.headers["referrer-policy"]) == ("no-store", "no-referrer")
    shown = page.text.replace("\n", "")
    assert shown.isprintable(), (page.url, re.findall(r"[^\x20-\U0010ffff]|[\u202e\u2028]", shown)[:5])
    assert HIDDEN not in page.text, page.url
    assert len(page.text) < 400_000, (page.url, len(page.text))


@pytest.mark.parametrize("level", ["look", "read", "act"])
def test_every_link_leads_to_a_page(visitor: Visitor, level: Level) -> None:
    pages = crawl(visitor(level))
    for page in pages.values():
        check(page)

    paths = {
        re.sub(r"(instances|dead|sagas)/.+", r"\1/…", url.partition("?")[0].removeprefix("http://testserver")) for url in pages
    }
    assert paths >= {
        "/",
        "/stuck",
        "/dead",
        "/dead/…",
        "/activity",
        "/audit",
        "/aggregates",
        "/doctor",
        "/instances/…",
        "/sagas/…",
    }
    assert any(SECRET in page.text for page in pages.values()) == (level != "look")
    assert any("Traceback (most" in page.text for page in pages.values()) == (level != "look")


def test_a_page_is_what_the_command_says(shop: Celery, visitor: Visitor) -> None:
    client = visitor()

    def printed(*words: str) -> list[Any]:
        return [_settled(json.loads(line)) for line in run(shop, *words, "--json").output.splitlines()]

    def shown(url: str) -> list[Any]:
        answer = client.get(url, headers=JSON).json()
        return list(map(_settled, answer.get("items", [answer])))

    (letter,) = [each["id"] for each in printed("dead", "list") if each["key"] == "3"]
    pages = {
        f"/instances/{id_of(shop, '2')}": ("show", "order", "2"),
        "/sagas/order": ("list", "order"),
        "/sagas/order?show=paused": ("list", "order", "--paused"),
        f"/sagas/order?field=city&value={SECRET}": ("list", "order", "--by", f"city={SECRET}"),
        "/dead": ("dead", "list"),
        f"/dead/{letter}": ("dead", "show", letter),
        "/stuck": ("stuck",),
        "/activity": ("activity",),
        "/audit": ("audit",),
        "/doctor": ("doctor", "--static"),
        "/timeline?saga=order&key=2": ("timeline", "order", "2"),
    }
    for url, words in pages.items():
        found, said = shown(url), printed(*words)
        assert sorted(map(str, found)) == sorted(map(str, said)) if url == "/doctor" else found == said, url


def _settled(facts: dict[str, Any]) -> dict[str, Any]:
    """Return facts without those that time alone changes."""
    return {name: value for name, value in facts.items() if name not in ("for_ms", "sentence", "remedies")}


def test_an_instance_is_found(shop: Celery, visitor: Visitor) -> None:
    """By its key, by an alternate key, and by a value by which it is listed."""
    client = visitor()
    for query in ("key=2", "field=tracking&value=T2"):
        assert client.get(f"/find?saga=order&{query}").url.path == f"/instances/{id_of(shop, '2')}"
    listed = see(client, f"/find?saga=order&field=city&value={SECRET}")
    assert [link for link in listed.links if "/instances/" in link] == [
        f"http://testserver/instances/{id_of(shop, '2')}?saga=order"
    ]

    assert client.get("/find?saga=order&key=none").status_code == 404
    assert client.get("/find?saga=nope&key=1").status_code == 404
    assert visitor("look").get("/find?saga=order&field=tracking&value=T2").status_code == 403


def test_one_that_has_ended_has_its_timeline(shop: Celery, visitor: Visitor) -> None:
    id = id_of(shop, "3")
    Operator(shop, "ann").instance("order", "3").terminate("gone")
    client = visitor()

    page = client.get("/find?saga=order&key=3")
    assert (page.url.path, page.status_code) == ("/timeline", 200)
    assert "terminate as failed" in page.text or "terminate" in page.text
    assert client.get(f"/instances/{id}").status_code == 404
    assert client.get(f"/instances/{id}?saga=order").status_code == 404


def test_what_a_page_of_an_instance_has(shop: Celery, visitor: Visitor) -> None:
    page = see(visitor(), f"/instances/{id_of(shop, '2')}").text
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))

    assert "order 2 waiting" in text.replace("Find order cart Key Go Follow ", "")
    assert "timeout reminder" in text
    assert "series daily" in text
    assert re.search(r"order.place started .* order.pay handled", text)
    assert "ann" in text
    assert "patch" in text
    assert f'city "{SECRET}"' in text.replace("&#34;", '"')
    assert "✓ pay" in text
    assert "•••" in text


def test_wrong_questions(visitor: Visitor) -> None:
    """They are refused in a sentence, and never end in an error of the program."""
    client = visitor()
    for url in WRONG:
        page = see(client, url)
        assert page.status in (200, 400, 404), (url, page.text)
        assert page.tags.count("h1") == 1, url
        assert client.get(url, headers=JSON).headers["content-type"] == "application/json", url


def test_pages_go_on(shop: Celery, visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the cursor of each: all are shown, each once."""
    for module in ("listing", "dead", "records"):
        monkeypatch.setattr(f"celery_sagas.web.pages.{module}.LIMIT", 1)
    client = visitor()
    for url in ("/sagas/order", "/sagas/order?show=oldest", "/sagas/order?show=idle&age=0s", "/dead", "/activity", "/audit"):
        found, after, join = list[Any](), "", "&" if "?" in url else "?"
        while True:
            answer = client.get(url + (f"{join}after={after}" if after else ""), headers=JSON).json()
            found += map(_settled, answer["items"])
            if not (after := answer["after"]):
                break
        monkeypatch.undo()
        assert found == list(map(_settled, client.get(url, headers=JSON).json()["items"])), url
        for module in ("listing", "dead", "records"):
            monkeypatch.setattr(f"celery_sagas.web.pages.{module}.LIMIT", 1)


def test_a_page_looks_at_a_bounded_number(shop: Celery, visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not read all that waits behind a broker that is away: it says that there may be more."""
    backend = runtime_of(shop).backend
    commit(backend, *(Outgoing(f"row {number}", "sent", f"id {number}", f"mail.write_{number}", "{}", 1) for number in range(7)))
    for _ in range(7):
        backend.dead.add(dead_letter()._replace(error="KeyError"))
    assert "There may be more" not in visitor().get("/stuck").text
    overview = visitor().get("/", headers=JSON).json()
    assert overview["more"] is True  # of each kind five are shown
    assert overview["backends"][0]["untaken"] == [f"mail.write_{number}" for number in range(7)]
    assert overview["backends"][0]["may_be_more_untaken"] is False
    monkeypatch.setattr("celery_sagas.operate.choosing.MOST", 2)
    for page in ("stuck", "overview", "listing"):
        monkeypatch.setattr(f"celery_sagas.web.pages.{page}.LOOKED_AT", 4)
    for url in ("/stuck", "/sagas/order?show=late"):
        assert "There may be more" in visitor().get(url).text
        assert visitor().get(url, headers=JSON).json()["more"] is True
    stuck, overview = (visitor().get(url, headers=JSON).json() for url in ("/stuck", "/"))
    assert overview["backends"][0]["may_be_more_untaken"] is True
    for troubles in (stuck["items"], overview["troubles"]):
        assert sum(each["messages"] for each in troubles if each["verdict"] == "failing") == 4
        assert sum(each["messages"] for each in troubles if each["task"].startswith("mail.")) == 4


def test_late_ones_of_which_there_are_more(shop: Celery, visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no next page, so the page says it."""
    backend = runtime_of(shop).backend
    for key in ("1", "2"):
        line = entry(found(backend, by_key(key, ("order",))), step="order.place")
        commit(backend, Outgoing(f"row {key}", "scheduled", f"id {key}", "order.remind", "{}", 1), line=line)
    assert "There may be more" not in visitor().get("/sagas/order?show=late").text
    monkeypatch.setattr("celery_sagas.web.pages.listing.LIMIT", 1)
    assert "There may be more: 1 are shown" in visitor().get("/sagas/order?show=late").text
    page = visitor().get("/sagas/order?show=late", headers=JSON).json()
    assert (len(page["items"]), page["after"], page["more"]) == (1, "", True)


def test_where(shop: Celery, visitor: Visitor) -> None:
    """States are read for it: whoever may not read them may not ask for them, either."""
    url = f"/sagas/order?where=city+%3D%3D+'{SECRET}'"
    assert [each["key"] for each in visitor().get(url, headers=JSON).json()["items"]] == ["2"]
    assert visitor("look").get(url).status_code == 403


def test_a_page_that_is_followed(visitor: Visitor) -> None:
    assert visitor().get("/activity?follow=1").headers["refresh"] == "5"
    assert "refresh" not in visitor().get("/activity").headers


def test_hostile_text_is_in_its_place(shop: Celery, visitor: Visitor) -> None:
    page = see(visitor(), f"/instances/{id_of(shop, HOSTILE)}").text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert r"\x1b[2J" in page
    assert r"\u202e" in page
    assert "more characters" in page


class TestSeveralBackends:
    """Links lead to the backend that a page is about."""

    @pytest.fixture
    def trips(self, new_app: NewApp) -> Celery:
        app = new_app(saga_backends={"trips": {"backend": f"memory://{unique()}"}})

        class Trip(Saga, correlate_by="trip_id", backend="trips"):
            trip_id: str

        @Trip.starts
        def book(trip: Trip, trip_id: str) -> None:
            raise KeyError(trip_id)

        app.set_default()
        runtime_of(app).prepare(processes=1)
        for trip_id in "12":
            send(app, book, trip_id=trip_id)
        Worker(app).run(100)
        return app

    @pytest.fixture
    def client(self, trips: Celery) -> TestClient:
        access = Access("act", "ann")
        return TestClient(asgi(trips, access=lambda _: access, hosts=["testserver"]), base_url="https://testserver")

    def test_dead_letters(self, client: TestClient) -> None:
        """Each link from the first page leads to them, and what is done to one leads back."""
        links = [link for link in see(client, "/").links if "/dead?" in link]
        assert len(links) == 2
        for link in links:
            page = see(client, link)
            assert "KeyError" in page.text, link
        letter = next(link for link in page.links if "/dead/" in link)
        (discard,) = [link for link in see(client, letter).links if "/discard" in link]
        (form,) = [form for form in see(client, discard).forms if form.method == "post"]
        done = client.post(form.action, data={**form, "reason": "why"}, follow_redirects=False)
        assert done.headers["location"] == "/dead?did=discard&store=1"

    def test_one_is_away(self, trips: Celery, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
        """The page leads to the others."""

        def away(*_args: Any, **_options: Any) -> Any:
            raise StoreUnavailable("memory://", "gone")

        monkeypatch.setattr(runtime_of(trips).backend.dead, "list", away)
        page = see(client, "/dead")
        assert page.status == 503
        (other,) = [link for link in page.links if "store=1" in link]
        assert "KeyError" in see(client, other).text

    def test_filters(self, client: TestClient) -> None:
        """A form that chooses stays with the backend."""
        for path in ("/audit", "/activity"):
            (form,) = [form for form in see(client, f"{path}?store=1").forms if "store" in form]
            assert form["store"] == "1"


def test_what_was_done_is_said_once(shop: Celery, visitor: Visitor) -> None:
    """Not while a page is followed, on which it may be undone meanwhile."""
    page = see(visitor("act"), f"/instances/{id_of(shop, '1')}?saga=order&did=pause")
    assert "It is paused." in page.text
    (follow,) = [link for link in page.links if "follow=1" in link]
    assert "It is paused." not in see(visitor("act"), follow).text


def test_more_than_is_shown(shop: Celery, visitor: Visitor) -> None:
    """The first page shows few of each kind, and says if there are more."""
    assert "All that is stuck" not in visitor("read").get("/").text
    for number in range(6):
        send(shop, shop.tasks["order.place"], order_id=f"more {number}")
    Worker(shop).run(100)
    for number in range(6):
        Operator(shop, "ann").instance("order", f"more {number}").pause("why")
    page = visitor("read").get("/").text
    assert "All that is stuck" in page
