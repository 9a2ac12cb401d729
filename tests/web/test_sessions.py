"""Who gets in where the web view runs by itself."""

from ipaddress import ip_network
from typing import Any

import pytest
from celery import Celery
from starlette.testclient import TestClient

from celery_sagas.web import Access
from celery_sagas.web.serving import behind_proxy, with_links
from celery_sagas.web.sessions import COOKIE

LOCAL = "http://127.0.0.1:5557"


@pytest.fixture
def links() -> list[str]:
    """Those that were shown."""
    return []


@pytest.fixture
def site(shop: Celery, links: list[str]) -> Any:
    return with_links(shop, Access("read", "ann"), links.append)


def test_a_link_lets_one_browser_in(site: Any, links: list[str]) -> None:
    client, other = TestClient(site, base_url=LOCAL), TestClient(site, base_url=LOCAL)
    assert client.get("/").status_code == 403

    entered = client.get(links[0], follow_redirects=False)
    assert (entered.status_code, entered.headers["location"]) == (303, "/")
    cookie = entered.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "secure" not in cookie
    assert client.get("/").status_code == 200

    assert other.get(links[0]).status_code == 403
    assert other.get("/").status_code == 403
    assert other.get(links[1]).status_code == 200


def test_a_link_that_is_only_looked_at_is_still_good(site: Any, links: list[str]) -> None:
    client = TestClient(site, base_url=LOCAL)
    looked = client.head(links[0], follow_redirects=False)
    assert (looked.status_code, looked.headers.get("set-cookie")) == (405, None)
    assert client.get(links[0]).status_code == 200


def test_other_sites_use_up_neither_the_link_nor_the_wrong_tokens(site: Any, links: list[str]) -> None:
    client, elsewhere = TestClient(site, base_url=LOCAL), {"sec-fetch-site": "cross-site"}
    assert {client.get(f"/login?token={n}", headers=elsewhere).status_code for n in range(9)} == {403}
    assert client.get(links[0], headers=elsewhere).status_code == 403
    assert client.get(links[0], headers={"sec-fetch-site": "none"}, follow_redirects=False).status_code == 303


def test_wrong_tokens_are_looked_at_five_times_in_a_minute(site: Any, links: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    client, now = TestClient(site, base_url=LOCAL), [1_000.0]
    monkeypatch.setattr("celery_sagas.web.sessions.time.monotonic", lambda: now[0])
    assert [client.get(f"/login?token={token}").status_code for token in ("", "x", "ü", "x", "x")] == [403] * 5
    assert client.get(links[0], follow_redirects=False).status_code == 429
    now[0] += 61
    assert client.get(links[0], follow_redirects=False).status_code == 303


def test_a_session_ends(site: Any, links: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    client, now = TestClient(site, base_url=LOCAL), [1_000.0]
    monkeypatch.setattr("celery_sagas.web.sessions.time.monotonic", lambda: now[0])
    assert client.get(links[0]).status_code == 200
    now[0] += 13 * 3_600
    assert client.get("/").status_code == 403


def test_a_cookie_is_not_made_up(site: Any) -> None:
    assert TestClient(site, base_url=LOCAL, cookies={f"{COOKIE}_5557": ""}).get("/").status_code == 403
    assert TestClient(site, base_url=LOCAL, cookies={f"{COOKIE}_5557": "x" * 43}).get("/").status_code == 403


def test_web_views_on_two_ports_let_the_same_browser_in(shop: Celery, site: Any, links: list[str]) -> None:
    """Browsers send a cookie to all ports of a host."""
    one, other = TestClient(site, base_url=LOCAL), with_links(shop, Access("read", "ann"), links.append)
    another = TestClient(other, base_url="http://127.0.0.1:5558")
    assert one.get(links[0]).status_code == 200
    another.cookies = one.cookies
    assert another.get(links[1]).status_code == 200
    one.cookies = another.cookies
    assert (one.get("/").status_code, another.get("/").status_code) == (200, 200)


def test_a_name_that_leads_here_is_refused(site: Any, links: list[str]) -> None:
    client = TestClient(site, base_url="http://evil.example:5557")
    assert client.get(links[0]).status_code == 400
    assert client.get("/").status_code == 400


class TestBehindProxy:
    @pytest.fixture
    def site(self, shop: Celery) -> Any:
        return behind_proxy(shop, "X-User", [ip_network("10.1.0.0/16"), ip_network("fd00::/8")], "read", ["ops.example.com"])

    def get(self, site: Any, address: str, headers: Any, host: str = "ops.example.com") -> int:
        client = TestClient(site, base_url=f"https://{host}", client=(address, 1234))
        return int(client.get("/stuck", headers=headers).status_code)

    def test_whom_the_proxy_names_gets_in(self, site: Any) -> None:
        assert self.get(site, "10.1.2.3", {"X-User": "ann"}) == 200
        assert self.get(site, "fd00::1", {"X-User": "ann"}) == 200

    def test_names_are_utf_8(self, site: Any) -> None:
        client = TestClient(site, base_url="https://ops.example.com", client=("10.1.2.3", 1234))
        assert "Günther 龙 ·" in client.get("/stuck", headers=[(b"X-User", "Günther 龙".encode())]).text

    def test_a_proxy_is_known_on_a_socket_for_ipv6_too(self, site: Any) -> None:
        assert self.get(site, "::ffff:10.1.2.3", {"X-User": "ann"}) == 200
        assert self.get(site, "::ffff:10.2.2.3", {"X-User": "ann"}) == 403

    def test_nobody_else_does(self, site: Any) -> None:
        assert self.get(site, "10.2.2.3", {"X-User": "ann"}) == 403
        assert self.get(site, "10.1.2.3", {}) == 403
        assert self.get(site, "10.1.2.3", {"X-User": " "}) == 403
        assert self.get(site, "10.1.2.3", [("X-User", "ann"), ("X-User", "root")]) == 403
        assert self.get(site, "10.1.2.3", {"X-User": "ann"}, "evil.example") == 400
