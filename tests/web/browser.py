"""A real browser: Chromium, as Debian has it, with nothing downloaded."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from tests.waiting import DEADLINE_S

CHROMIUM, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)
AXE = (Path(__file__).parent / "axe.min.js").read_text()
#: Where pictures of pages are kept, if anybody wants them.
PICTURES = os.environ.get("CELERY_SAGAS_TEST_PICTURES", "")
Scheme = Literal["light", "dark"]


class Browser:
    """A browser, and what an operator does with it."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        """Open a page."""
        self.driver.get(url)

    def look(self, width: int, scheme: Scheme) -> None:
        """Have a width, and a scheme of colours."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def picture(self, name: str) -> None:
        """Keep a picture of the page, if anybody wants it."""
        if PICTURES:
            Path(PICTURES).mkdir(parents=True, exist_ok=True)
            self.driver.save_screenshot(str(Path(PICTURES) / f"{name}.png"))

    @property
    def text(self) -> str:
        """What the page says."""
        return self.driver.find_element(By.TAG_NAME, "body").text

    def follow(self, text: str) -> None:
        """Click on a link, or a button, with a text, and wait for the next page."""
        found = [*self.driver.find_elements(By.LINK_TEXT, text), *self.driver.find_elements(By.XPATH, f"//button[.='{text}']")]
        assert found, f"{text!r} is not on {self.driver.current_url}: {self.text}"
        before = self.driver.find_element(By.TAG_NAME, "html")
        found[0].click()
        self._wait_left(before)

    def write(self, name: str, text: str) -> None:
        """Write into a field of the page's own form."""
        field = self.driver.find_element(By.CSS_SELECTOR, f"main form:not(.find) [name={name}]")
        if field.tag_name != "select":
            field.clear()
        field.send_keys(text)

    def value(self, name: str) -> str:
        """Return what is in a field."""
        field = self.driver.find_element(By.CSS_SELECTOR, f"main form:not(.find) [name={name}]")
        return str(field.get_property("value"))

    def tab_to(self, selector: str) -> Any:
        """Go to what a selector names, with the keyboard."""
        wanted = self.driver.find_element(By.CSS_SELECTOR, selector)
        for _ in range(100):
            self.driver.switch_to.active_element.send_keys(Keys.TAB)
            if self.driver.switch_to.active_element == wanted:
                return wanted
        raise AssertionError(f"the keyboard does not lead to {selector}")

    def press(self, key: str) -> None:
        """Press a key, and wait for the next page."""
        before = self.driver.find_element(By.TAG_NAME, "html")
        self.driver.switch_to.active_element.send_keys(key)
        self._wait_left(before)

    def _wait_left(self, before: Any) -> None:
        def is_there(driver: webdriver.Chrome) -> bool:
            is_other = driver.find_element(By.TAG_NAME, "html") != before
            return is_other and driver.execute_script("return document.readyState") == "complete"

        WebDriverWait(self.driver, DEADLINE_S, poll_frequency=0.05).until(is_there)

    def findings(self) -> list[str]:
        """Return what keeps people from using the page, of what is serious."""
        self.driver.execute_script(AXE)
        script = "axe.run(document, {resultTypes: ['violations']}).then(arguments[0])"
        found = self.driver.execute_async_script(script)["violations"]
        serious = (each for each in found if each["impact"] in ("serious", "critical"))
        return [f"{each['id']}: {[node['html'][:200] for node in each['nodes'][:3]]}" for each in serious]

    def overflows(self) -> bool:
        """Return whether the page is wider than the window."""
        return bool(self.driver.execute_script("return document.documentElement.scrollWidth > window.innerWidth"))

    def complaints(self) -> list[str]:
        """Return what the browser has written to its console since the last time."""
        return [each["message"] for each in self.driver.get_log("browser")]

    def asked(self) -> set[str]:
        """Return the origins of what the pages have asked for since the last time."""
        messages = (json.loads(each["message"])["message"] for each in self.driver.get_log("performance"))
        urls = (each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent")
        return {url.partition(":")[0] if url.startswith("data:") else "/".join(url.split("/")[:3]) for url in urls}


@contextmanager
def browsing() -> Iterator[Browser]:
    """Start a browser; without one, skip the test, unless this is a run that must have it."""
    if not (Path(CHROMIUM).exists() and Path(DRIVER).exists()):
        message = "no browser: install chromium and chromium-driver"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for option in OPTIONS:
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = _started(options)
    try:
        driver.set_script_timeout(DEADLINE_S)
        yield Browser(driver)
    finally:
        driver.quit()


def _started(options: webdriver.ChromeOptions) -> webdriver.Chrome:
    """Start it; once more if it has not started in the time that Selenium gives it, as on a busy machine."""
    try:
        return webdriver.Chrome(options=options, service=Service(DRIVER))
    except WebDriverException:
        return webdriver.Chrome(options=options, service=Service(DRIVER))
