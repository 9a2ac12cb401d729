"""What an operator does at night with a browser: an order is found and mended, while a real worker runs."""

import json
import re
from collections.abc import Iterator

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.integration.conftest import Deploy
from tests.integration.worker import Deployment
from tests.servers import unique
from tests.waiting import wait_until
from tests.web.browser import Browser, browsing


@pytest.fixture
def deployment(deploy: Deploy) -> Deployment:
    """Two orders, of which one has failed to be packed."""
    deployment = deploy("browsed", "redis", "redis")
    deployment.route("browsed.ask")
    deployment.start("prefork", 1).wait_ready()
    for number, customer in (("41", "bo"), ("42", "ann")):
        deployment.send("order.place", number=number, customer=customer)
    deployment.wait_handled("order.place", 2)
    deployment.send("order.pack", number="42")
    wait_until(lambda: deployment.backend.dead.list(1), deployment.describe)
    return deployment


@pytest.fixture
def link(deployment: Deployment) -> str:
    """The link that the web view prints, once it is served."""
    web = deployment._run(["sagas", "web", "--listen", "127.0.0.1:0", "--act", "--actor", "ann"], {}, unique("web"))
    web.wait_written("/login?token=")
    return re.findall(r"Open (\S+)", web.output)[0]


@pytest.fixture
def browser() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


def test_an_order_is_found_and_mended(deployment: Deployment, link: str, browser: Browser) -> None:
    browser.open(link)
    assert "Needs a look" in browser.text

    browser.follow("order")
    browser.write("field", "customer")
    browser.write("value", "ann")
    browser.follow("Show")
    assert browser.driver.find_elements(By.LINK_TEXT, "41") == []
    browser.follow("42")
    assert "failing" in browser.text
    assert "A message to order.pack failed" in browser.text

    _pause_by_keyboard(browser)
    assert "It is paused." in browser.text
    browser.follow("Patch")
    state = json.loads(browser.value("state"))
    browser.write("state", json.dumps({**state, "packed": "many"}))
    browser.follow("Preview")
    assert "packed" in browser.driver.find_element(By.CSS_SELECTOR, "[role=alert]").text
    browser.write("state", json.dumps({**state, "city": "Bergen"}))
    browser.follow("Preview")
    assert '+  "city": "Bergen"' in browser.text
    browser.write("reason", "the customer has moved")
    browser.follow("Patch")
    assert "It is changed." in browser.text
    browser.follow("Resume")
    browser.write("reason", "the carrier is up")
    browser.follow("Resume")
    assert "It goes on." in browser.text

    (deployment.folder / "shelf").touch()
    browser.follow("order.pack")
    browser.follow("Retry")
    browser.write("reason", "the shelf is there")
    browser.follow("Retry")
    assert "There are no dead letters." in browser.text
    deployment.wait_handled("order.pack", 1)

    state = deployment.state("order", "42")
    assert state is not None
    assert (state["city"], state["packed"]) == ("Bergen", 1)
    acts = [(each.actor, each.action) for each in deployment.backend.audit.recent(9).entries]
    assert acts == [("ann", act) for act in ("retry", "resume", "patch", "pause")]
    assert [each for each in browser.complaints() if "400 (Bad Request)" not in each] == []  # the preview that was refused
    assert browser.asked() <= {link.partition("/login")[0], "data"}


def _pause_by_keyboard(browser: Browser) -> None:
    """Pause the order, without a mouse."""
    browser.tab_to("a[href*='/pause']")
    browser.press(Keys.ENTER)
    browser.tab_to("[name=reason]").send_keys("the carrier is down")
    browser.tab_to("button[value=act]")
    browser.press(Keys.ENTER)
