"""Acts: each is asked for on a page that shows what it would do, and done on the version that was shown; nothing else does it."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from celery import Celery
from starlette.testclient import TestClient

from celery_sagas.errors import NewerState, StoreUnavailable
from celery_sagas.operate import Operator
from celery_sagas.web import Access, asgi
from celery_sagas.web.forms import MOST_BYTES
from celery_sagas.worker.operators import Retried
from celery_sagas.worker.runtime import runtime_of
from tests.web.conftest import HIDDEN, HOSTILE, Visitor, id_of
from tests.web.crawling import Form, Seen, crawl, see, seen

HOST = "https://testserver"


@pytest.fixture
def client(shop: Celery) -> TestClient:
    """Ann, who may act."""
    return TestClient(asgi(shop, access=lambda _: Access("act", "ann"), hosts=["testserver"]), base_url=HOST)


def form_of(page: Seen) -> Form:
    (form,) = [form for form in page.forms if form.method == "post"]
    return form


def send(client: TestClient, form: Form, **values: str) -> Any:
    return client.post(form.action, data={**form, **values}, follow_redirects=False)


def post_to(client: TestClient, form: Form) -> Any:
    return client.post(urlsplit(form.action).path, data={**form, "reason": "why"})


def get_from(client: TestClient, form: Form) -> Any:
    return client.get(form.action)


def shown(app: Celery, key: str) -> Any:
    return Operator(app, "test").instance("order", key).show()


def audit(app: Celery) -> list[tuple[str, str, str]]:
    return [(each.actor, each.action, each.reason) for each in runtime_of(app).backend.audit.recent(99).entries]


def test_pause_and_resume(shop: Celery, client: TestClient) -> None:
    id = id_of(shop, "2")
    page = see(client, f"/instances/{id}/pause?saga=order")
    assert "is paused: its messages wait until it is resumed" in page.text
    assert shown(shop, "2")["paused"] is None

    done = send(client, form_of(page), reason="carrier down")
    assert (done.status_code, done.headers["location"]) == (303, f"/instances/{id}?saga=order&did=pause")
    assert shown(shop, "2")["paused"]["reason"] == "carrier down"
    assert audit(shop)[0] == ("ann", "pause", "carrier down")
    assert "It is paused." in client.get(done.headers["location"]).text

    send(client, form_of(see(client, f"/instances/{id}/resume?saga=order")), reason="it is up")
    assert shown(shop, "2")["paused"] is None


def test_an_act_is_on_the_version_that_was_shown(shop: Celery, client: TestClient) -> None:
    form = form_of(see(client, f"/instances/{id_of(shop, '2')}/pause?saga=order"))
    Operator(shop, "bo").instance("order", "2").patch("meanwhile", values={"total": 7})

    refused = send(client, form, reason="why")
    assert refused.status_code == 409
    assert f"and {form['version']} was expected" in refused.text
    assert "See what has changed it" in refused.text
    assert shown(shop, "2")["paused"] is None


def test_a_form_that_is_sent_twice_acts_once(shop: Celery, client: TestClient) -> None:
    form = form_of(see(client, f"/instances/{id_of(shop, '2')}/pause?saga=order"))
    assert [send(client, form, reason="why").status_code for _ in range(2)] == [303, 409]
    assert len([act for act in audit(shop) if act[0] == "ann"]) == 1


class Lost:
    """A store that commits, and whose answer is lost: at each commit from one on."""

    def __init__(self, app: Celery, monkeypatch: pytest.MonkeyPatch, at: int = 1) -> None:
        self.calls, self._from = 0, at
        self._sagas = runtime_of(app).backend.sagas
        self._update = self._sagas.update
        self._patch = monkeypatch
        monkeypatch.setattr(self._sagas, "update", self._lost)

    def _lost(self, *args: Any) -> None:
        self._update(*args)
        self.calls += 1
        if self.calls >= self._from:
            raise StoreUnavailable("memory://", "no answer within 30 s")

    def end(self) -> None:
        """Have it answer again."""
        self._patch.setattr(self._sagas, "update", self._update)


def test_answer_of_the_store_is_lost(shop: Celery, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The act may have been done, and the page says so."""
    form = form_of(see(client, f"/instances/{id_of(shop, '2')}/pause?saga=order"))
    Lost(shop, monkeypatch)
    answer = send(client, form, reason="why")
    assert answer.status_code == 503
    assert "It is not known whether anything was done" in answer.text
    assert shown(shop, "2")["paused"]


def test_newer_code_has_written_it(shop: Celery, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is said in the place of what would be done: no store is away."""

    def newer(*_args: Any, **_options: Any) -> Any:
        raise NewerState("order", "2", 9, 1)

    form = form_of(see(client, f"/instances/{id_of(shop, '2')}/pause?saga=order"))
    monkeypatch.setattr("celery_sagas.engine.acts.acting.pending_of", newer)
    for answer in (client.get(form.action), send(client, form, reason="why")):
        assert answer.status_code in (200, 409)
        assert "Newer code has written it" in answer.text
        assert "away" not in answer.text


def test_fields_that_are_missing(shop: Celery, client: TestClient) -> None:
    """Nothing is done, and the page says what it needs."""
    id = id_of(shop, "2")
    for verb in ("pause", "patch", "fire", "answer", "terminate"):
        page = form_of(see(client, f"/instances/{id}/{verb}?saga=order&name=daily"))
        data = {name: page[name] for name in ("token", "version")}
        for do in ("preview", "act"):
            assert client.post(page.action, data={**data, "do": do}).status_code in (200, 400, 409), (verb, do)
    assert shown(shop, "2")["paused"] is None


def test_patch(shop: Celery, client: TestClient) -> None:
    """A preview shows the difference; hidden values stay what they are."""
    id = id_of(shop, "2")
    page = see(client, f"/instances/{id}/patch?saga=order")
    assert HIDDEN not in page.text
    state = {**shown(shop, "2")["state"], "city": "Bergen"}
    assert state["card"] == "•••"

    preview = send(client, form_of(page), state=json.dumps(state), reason="", do="preview")
    assert preview.status_code == 200
    assert "+  &#34;city&#34;: &#34;Bergen&#34;" in preview.text
    assert shown(shop, "2")["state"]["city"] != "Bergen"
    assert send(client, form_of(page), state=json.dumps(state), reason="moved again").status_code == 303
    record = runtime_of(shop).backend.instances.page("order", 50).instances
    assert shown(shop, "2")["state"]["city"] == "Bergen"
    assert len(record) == 4
    assert HIDDEN in next(each.data for each in runtime_of(shop).backend.instances.read("order", [id]))


def test_patches_that_are_refused(shop: Celery, client: TestClient) -> None:
    """They say what is wrong, keep what was written, and write nothing."""
    page = see(client, f"/instances/{id_of(shop, '2')}/patch?saga=order")
    version, state = shown(shop, "2")["version"], shown(shop, "2")["state"]
    for text, problem in (
        (json.dumps({**state, "total": "many"}), "total"),
        (json.dumps({**state, "order_id": "7"}), "correlation key"),
        ("{", "is no JSON"),
        ("[1]", "a JSON object"),
        ("NaN", "is no JSON"),
        ("[" * 100_000, "nested too deeply"),
        (json.dumps({**state, "notes": []}).replace("[]", "[" * 900 + "]" * 900), "nested too deeply"),
        ("", "is no JSON"),
    ):
        for do in ("preview", "act"):
            refused = send(client, form_of(page), state=text, reason="why", do=do)
            assert refused.status_code in (400, 409), text[:50]
            assert problem in refused.text, (text[:50], refused.text[:3_000])
    assert shown(shop, "2")["version"] == version


def test_a_state_with_controls_comes_back_as_it_is(shop: Celery, client: TestClient) -> None:
    operator = Operator(shop, "bo").instance("order", "1")
    operator.patch("x", values={"notes": [HOSTILE]})
    page = client.get(f"/instances/{id_of(shop, '1')}/patch?saga=order").text
    text = page.split('rows="16" spellcheck="false">\n')[1].split("</textarea>")[0]
    for entity, char in (("&lt;", "<"), ("&gt;", ">"), ("&#39;", "'"), ("&#34;", '"'), ("&amp;", "&")):
        text = text.replace(entity, char)
    assert json.loads(text)["notes"] == [HOSTILE]


def test_what_is_awaited(shop: Celery, client: TestClient) -> None:
    """The page of an instance leads to what can be done about each."""
    id = id_of(shop, "2")
    links = [link for link in see(client, f"/instances/{id}?saga=order").links if "name=" in link]
    verbs = [(urlsplit(link).path.rpartition("/")[2], link.rpartition("=")[2]) for link in links]
    assert [verb for verb, name in verbs if name in ("reminder", "daily")] == ["fire", "skip", "fire", "skip"]
    (answer,) = [link for link in links if "/answer?" in link]

    skipped = send(client, form_of(see(client, f"/instances/{id}/skip?saga=order&name=daily")), reason="no longer")
    assert skipped.status_code == 303
    fired = send(client, form_of(see(client, f"/instances/{id}/fire?saga=order&name=reminder")), reason="at once")
    assert fired.status_code == 303
    page = see(client, answer)
    preview = send(client, form_of(page), value='"r-1"', reason="", do="preview")
    assert "order.charged" in preview.text or "is answered" in preview.text
    assert send(client, form_of(page), value="r-1", reason="why").status_code == 409
    assert send(client, form_of(page), value='"r-1"', reason="the bank says so").status_code == 303
    assert [name for name in shown(shop, "2")["waits_for"]["timeouts"] if name["name"] == "daily"] == []
    assert [act[1] for act in audit(shop)[:3]] == ["answer", "fire", "skip"]


def test_terminate(shop: Celery, client: TestClient) -> None:
    page = see(client, f"/instances/{id_of(shop, '3')}/terminate?saga=order")
    done = send(client, form_of(page), **{"as": "completed", "leave_undone": "", "reason": "gone"})
    assert done.status_code == 303
    assert shown(shop, "3") is None
    assert "It has ended." in client.get(done.headers["location"]).text


def test_dead_letters(shop: Celery, client: TestClient) -> None:
    letters = runtime_of(shop).backend.dead.list(9)
    for letter, verb in zip(letters, ("retry", "discard"), strict=True):
        page = see(client, f"/dead/{letter.id}/{verb}")
        assert send(client, form_of(page), reason=" ").status_code == 409
        done = send(client, form_of(page), reason="mended")
        assert (done.status_code, done.headers["location"]) == (303, f"/dead?did={verb}")
        assert send(client, form_of(page), reason="mended").status_code == 400
    assert runtime_of(shop).backend.dead.list(9) == []
    assert [act[:2] for act in audit(shop)[:2]] == [("ann", "discard"), ("ann", "retry")]


def test_dead_letter_that_nobody_needs(shop: Celery, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its retry sends nothing, and the page says so."""
    letter = runtime_of(shop).backend.dead.list(9)[0]
    form = form_of(see(client, f"/dead/{letter.id}/retry"))
    unsent = Retried(reason="was handled since, under its own id")
    monkeypatch.setattr("celery_sagas.operate.dead_letters.retry_dead_letter", lambda *_: unsent)
    done = send(client, form, reason="mended")
    assert done.headers["location"] == "/dead?did=unsent"
    assert "Nothing was sent" in client.get(done.headers["location"]).text


def test_no_act_without_a_reason(shop: Celery, client: TestClient) -> None:
    form = form_of(see(client, f"/instances/{id_of(shop, '2')}/pause?saga=order"))
    for reason in ("", "  ", "x" * 2_001, "\0"):
        assert send(client, form, reason=reason).status_code == 409, reason[:9]
    assert shown(shop, "2")["paused"] is None


class TestForged:
    """Every form that a crawler finds is refused if it is not sent from its page."""

    @pytest.fixture
    def forms(self, client: TestClient) -> list[Form]:
        pages = crawl(client)
        forms = {form.action: form for page in pages.values() for form in page.forms if form.method == "post"}
        verbs = {urlsplit(action).path.rpartition("/")[2] for action in forms}
        of_instances = {"pause", "resume", "patch", "fire", "skip", "answer", "terminate"}
        assert verbs == of_instances | {"retry", "discard", "hold", "release"}
        return list(forms.values())

    def refuse(self, app: Celery, forms: list[Form], send: Callable[[Form], Any], *statuses: int) -> None:
        before = audit(app), [shown(app, key)["version"] for key in ("1", "2", "3")]
        for form in forms:
            assert send(form).status_code in statuses, form.action
        assert before == (audit(app), [shown(app, key)["version"] for key in ("1", "2", "3")])

    def test_forged_forms(self, shop: Celery, client: TestClient, forms: list[Form]) -> None:
        def without_token(form: Form) -> Any:
            return client.post(form.action, data={**form, "token": "", "reason": "why"})

        def with_another(form: Form) -> Any:
            other = next(each for each in forms if urlsplit(each.action).path != urlsplit(form.action).path)
            return client.post(form.action, data={**form, "token": other["token"], "reason": "why"})

        def of_another_session(form: Form) -> Any:
            other = TestClient(client.app, base_url=HOST)
            other.get(form.action)
            return other.post(form.action, data={**form, "reason": "why"})

        def without_session(form: Form) -> Any:
            return TestClient(client.app, base_url=HOST).post(form.action, data={**form, "reason": "why"})

        def from_another_site(form: Form) -> Any:
            return client.post(form.action, data={**form, "reason": "why"}, headers={"sec-fetch-site": "cross-site"})

        def from_a_sibling(form: Form) -> Any:
            return client.post(form.action, data={**form, "reason": "why"}, headers={"sec-fetch-site": "same-site"})

        def of_another_origin(form: Form) -> Any:
            return client.post(form.action, data={**form, "reason": "why"}, headers={"origin": "https://evil.example"})

        def of_no_origin(form: Form) -> Any:
            return client.post(form.action, data={**form, "reason": "why"}, headers={"origin": "null"})

        def of_another_host(form: Form) -> Any:
            return client.post(form.action, data={**form, "reason": "why"}, headers={"host": "evil.example"})

        for forge in (without_token, with_another, of_another_session, without_session):
            self.refuse(shop, forms, forge, 403)
        for forge in (from_another_site, from_a_sibling, of_another_origin, of_no_origin):
            self.refuse(shop, forms, forge, 403)
        self.refuse(shop, forms, of_another_host, 400)

    def test_a_link_does_nothing(self, shop: Celery, client: TestClient, forms: list[Form]) -> None:
        def link_to(form: Form) -> str:
            return f"{form.action}{'&' if '?' in form.action else '?'}{urlencode({**form, 'reason': 'why'})}"

        self.refuse(shop, forms, lambda form: client.get(link_to(form)), 200)

    def test_who_may_not_act(self, shop: Celery, forms: list[Form], visitor: Visitor) -> None:
        for level in ("none", "look", "read"):
            client = visitor(level)
            self.refuse(shop, forms, partial(post_to, client), 403)
            self.refuse(shop, forms, partial(get_from, client), 403)

    def test_a_token_is_of_whom_it_was_shown(self, shop: Celery, client: TestClient) -> None:
        """Also where a session is handed on to somebody else."""
        names = ["ann"]
        client = TestClient(asgi(shop, access=lambda _: Access("act", names[0]), hosts=["testserver"]), base_url=HOST)
        form = form_of(see(client, f"/instances/{id_of(shop, '2')}/pause?saga=order"))
        names[0] = "bo"
        assert send(client, form, reason="why").status_code == 403

    def test_strange_bodies(self, shop: Celery, client: TestClient) -> None:
        form = form_of(see(client, f"/instances/{id_of(shop, '2')}/pause?saga=order"))
        kind = {"content-type": "application/x-www-form-urlencoded"}
        for body, headers, status in (
            (b"x=" + b"y" * MOST_BYTES, kind, 413),
            (b"&".join([b"x=1"] * 50), kind, 400),
            (b"token=a&token=b", kind, 400),
            (b"\xff=\xff", kind, 400),
            (b"x=%ff", kind, 400),
            (b"", kind, 403),
            (b"{}", {"content-type": "application/json"}, 415),
            (b"x=1", {}, 415),
            (b"x=1", {"content-type": "multipart/form-data; boundary=x"}, 415),
        ):
            assert client.post(form.action, content=body, headers=headers).status_code == status, body[:20]
        for version in ("", "x", "-1", "9" * 30, "1.0"):
            assert send(client, form, version=version, reason="why").status_code == 400, version
        assert shown(shop, "2")["paused"] is None


def test_a_session_is_kept_in_a_strict_cookie(shop: Celery, client: TestClient) -> None:
    cookie = client.get("/").headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "secure" in cookie
    assert "set-cookie" not in client.get("/").headers


def test_several_processes_share_a_secret(shop: Celery) -> None:
    """A form of one is known to another."""
    one, other, third = (
        TestClient(asgi(shop, access=lambda _: Access("act", "ann"), hosts=["testserver"], secret=secret), base_url=HOST)
        for secret in ("a", "a", "b")
    )
    form = form_of(see(one, f"/instances/{id_of(shop, '2')}/pause?saga=order"))
    other.cookies, third.cookies = one.cookies, one.cookies
    assert send(third, form, reason="why").status_code == 403
    assert send(other, form, reason="why").status_code == 303


def test_wrong_acts(shop: Celery, client: TestClient) -> None:
    id = id_of(shop, "2")
    for url in (f"/instances/{id}/explode", "/instances/none/pause", "/dead/none/retry", "/dead/none/explode"):
        assert client.get(url).status_code in (400, 404), url
    page = see(client, f"/instances/{id}/fire?saga=order&name={'x' * 500}")
    assert page.status == 200
    assert "does not wait for" in page.text


class TestEach:
    """One act on each of the instances that a list has."""

    def paused(self, app: Celery) -> set[str]:
        return {key for key in ("1", "2", "3", HOSTILE) if shown(app, key)["paused"]}

    def test_list_leads_there(self, shop: Celery, client: TestClient, visitor: Visitor) -> None:
        page = see(client, "/sagas/order?show=paused")
        (url,) = [link for link in page.links if "/each/resume" in link]
        page = see(client, url)
        assert "Resume 1 instance of order" in page.text
        assert self.paused(shop) == {"1"}

        done = send(client, form_of(page), reason="it is up")
        assert (done.status_code, self.paused(shop)) == (200, set())
        assert "1 done, 0 with nothing to be done, 0 failed." in done.text
        assert audit(shop)[0] == ("ann", "resume", "it is up")
        assert "/each/" not in visitor("read").get("/sagas/order").text

    def test_same_form_again_does_nothing(self, shop: Celery, client: TestClient) -> None:
        """As after a reload."""
        form = form_of(see(client, "/sagas/order/each/pause"))
        assert "3 done, 1 with nothing to be done" in send(client, form, reason="why").text
        for key in ("1", "2"):
            Operator(shop, "bo").instance("order", key).resume("meanwhile")
        assert send(client, form, reason="why").status_code == 200
        assert "2" not in self.paused(shop)

    def test_nothing_is_done_without_a_reason_or_to_another_number(self, shop: Celery, client: TestClient) -> None:
        form = form_of(see(client, "/sagas/order/each/pause"))
        assert "Say why" in send(client, form, reason=" ").text
        refused = send(client, form, expect="3", reason="why")
        assert refused.status_code == 409
        assert "The list has 4 by now" in refused.text
        assert self.paused(shop) == {"1"}

    def test_others_than_were_shown(self, shop: Celery, client: TestClient) -> None:
        """As many, but not the same: nothing is done."""
        form = form_of(see(client, "/sagas/order/each/resume?show=paused"))
        operator = Operator(shop, "bo")
        operator.instance("order", "1").resume("meanwhile")
        operator.instance("order", "2").pause("meanwhile")
        refused = send(client, form, reason="why")
        assert refused.status_code == 409
        assert "The list has 1 by now, and not the same as were shown" in refused.text
        assert self.paused(shop) == {"2"}

    def test_store_goes_away(self, shop: Celery, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
        """It stops there, says what is not known, and goes on when the form is sent again."""
        form = form_of(see(client, "/sagas/order/each/skip"))
        lost = Lost(shop, monkeypatch, at=2)
        stopped = seen(send(client, form, name="reminder", reason="why"))
        assert (stopped.status, lost.calls) == (503, 2)
        assert "1 done, 0 with nothing to be done, 0 failed." in stopped.text
        assert "It is not known whether it was done to" in stopped.text
        assert "not tried: 2" in stopped.text

        lost.end()
        done = send(client, form_of(stopped), name="reminder", reason="why")
        assert "2 done, 2 with nothing to be done, 0 failed." in done.text
        assert len([act for act in audit(shop) if act[1] == "skip"]) == 4

    def test_what_is_chosen_by_an_expression(self, shop: Celery, client: TestClient) -> None:
        form = form_of(see(client, "/sagas/order/each/pause?" + urlencode({"where": 'order_id == "3"'})))
        assert "1 done" in send(client, form, reason="why").text
        assert self.paused(shop) == {"1", "3"}

    def test_timeouts_have_names(self, shop: Celery, client: TestClient) -> None:
        form = form_of(see(client, "/sagas/order/each/skip"))
        preview = send(client, form, name=HOSTILE, do="preview")
        assert (preview.status_code, "script>alert" in preview.text) == (200, False)
        done = send(client, form, name="none such", reason="why")
        assert "0 done, 0 with nothing to be done, 4 failed." in done.text

    def test_too_many(self, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("celery_sagas.web.pages.each.MOST", 3)
        page = client.get("/sagas/order/each/pause")
        assert page.status_code == 409
        assert "more than 3 such instances" in page.text
        monkeypatch.setattr("celery_sagas.web.pages.each.SCANNED", 3)
        page = client.get("/sagas/order/each/pause?where=total+%3E+1")
        assert "More than 3 would be looked at" in page.text

    def test_only_what_is_offered(self, client: TestClient, visitor: Visitor) -> None:
        for verb in ("patch", "answer", "reindex", "none"):
            assert client.get(f"/sagas/order/each/{verb}").status_code == 404
        assert client.get("/sagas/none/each/pause").status_code == 404
        for level in ("look", "read"):
            assert visitor(level).get("/sagas/order/each/pause").status_code == 403

    def test_programs(self, client: TestClient) -> None:
        form = form_of(see(client, "/sagas/order/each/pause"))
        json = {"accept": "application/json"}
        assert client.get("/sagas/order/each/pause", headers=json).json() == {"count": 4, "done": 3, "idle": 1}
        data = {**form, "reason": "why"}
        assert client.post(form.action, data=data, headers=json).json() == {"count": 4, "done": 3, "idle": 1}


class TestSwitches:
    """A step, or all of a saga, that is held."""

    def test_hold_and_release(self, shop: Celery, client: TestClient, visitor: Visitor) -> None:
        client.get("/")  # what it shows is kept for a while
        page = see(client, next(link for link in see(client, "/sagas/order").links if "hold?name=order.parcel" in link))
        assert "would be held: its messages would wait" in page.text
        done = send(client, form_of(page), reason="the carrier is down")
        assert (done.status_code, done.headers["location"]) == (303, "/?did=hold")
        assert audit(shop)[0] == ("ann", "hold", "the carrier is down")
        overview = see(client, "/?did=hold")
        assert "parcel is held" in overview.text
        assert ">Release" not in visitor("read").get("/").text

        page = see(client, next(link for link in overview.links if "release?name=order.parcel" in link))
        assert send(client, form_of(page), reason="it is up").status_code == 303
        assert "parcel is held" not in client.get("/").text
        assert "it is not held" in send(client, form_of(page), reason="it is up").text

    def test_all_of_a_saga(self, client: TestClient) -> None:
        assert send(client, form_of(see(client, "/switches/hold?name=cart")), reason="why").status_code == 303
        assert "cart is held" in client.get("/").text
        again = send(client, form_of(see(client, "/switches/hold?name=cart")), reason="why")
        assert again.status_code == 409
        assert "it is held already" in again.text

    def test_what_is_refused(self, client: TestClient, visitor: Visitor) -> None:
        assert "is no saga and no step of this app" in client.get("/switches/hold", params={"name": HOSTILE}).text
        assert client.get("/switches/pause?name=order").status_code == 404
        assert visitor("read").get("/switches/hold?name=order").status_code == 403
        assert "Say why" in send(client, form_of(see(client, "/switches/hold?name=order")), reason=" ").text
