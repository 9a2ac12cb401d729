"""A visitor who follows every link."""

from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urldefrag, urljoin, urlsplit

from starlette.testclient import TestClient


class Form(dict[str, str]):
    """The values of a form, as a browser would send them."""

    def __init__(self, method: str, action: str) -> None:
        super().__init__()
        self.method = method
        self.action = action


@dataclass
class Seen:
    """A page, as it came."""

    url: str
    status: int
    text: str
    headers: Any
    links: list[str] = field(default_factory=list)
    forms: list[Form] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    attributes: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)  #: what a browser asks for by itself


class _Parser(HTMLParser):
    def __init__(self, page: Seen) -> None:
        super().__init__()
        self._page = page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        page, values = self._page, {name: value or "" for name, value in attrs}
        page.tags.append(tag)
        page.attributes += values
        if tag == "a":
            page.links.append(urljoin(page.url, values["href"]))
        if tag == "link" or "src" in values:
            page.loaded.append(values.get("href", "") + values.get("src", ""))
        if tag == "form":
            page.forms.append(Form(values.get("method", "get").lower(), urljoin(page.url, values.get("action", ""))))
        if tag in ("input", "textarea", "select") and "name" in values and page.forms:
            page.forms[-1][values["name"]] = values.get("value", "")


def see(visitor: TestClient, url: str) -> Seen:
    """Return a page, wherever the browser is sent."""
    return seen(visitor.get(url))


def seen(response: Any) -> Seen:
    """Return the page of an answer."""
    page = Seen(str(response.url), response.status_code, response.text, response.headers)
    _Parser(page).feed(page.text)
    return page


def crawl(visitor: TestClient, first: str = "/", most: int = 300) -> dict[str, Seen]:
    """Return all pages to which a way of links leads; without that for which workers are asked, which takes seconds."""
    base = str(visitor.base_url).rstrip("/")
    waiting, seen = [f"{base}{first}"], dict[str, Seen]()
    while waiting:
        url = waiting.pop(0)
        if url in seen:
            continue
        assert len(seen) < most, f"more than {most} pages: {list(seen)[-5:]}"
        page = seen[url] = see(visitor, url)
        assert all(urlsplit(link).netloc == urlsplit(base).netloc for link in page.links), page.links
        waiting += [urldefrag(link)[0] for link in page.links if not link.endswith("live=1")]
    return seen
