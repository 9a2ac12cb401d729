"""Links between pages, wherever these are mounted."""

from typing import NamedTuple
from urllib.parse import quote, urlencode

from starlette.requests import Request


class Links(NamedTuple):
    """Makes links below the path at which the pages are mounted."""

    root: str  #: that path, as a URL has it; empty: the top

    def to(self, *parts: str, **query: str | None) -> str:
        """Return the link to a page.

        Args:
            *parts: Of its path.
            **query: Its parameters; empty ones are left out.
        """
        path = "/".join(quote(part, safe="", errors="replace") for part in parts)
        given = [(name, value) for name, value in query.items() if value]
        return f"{self.root}/{path}" + (f"?{urlencode(given, errors='replace')}" if given else "")


def root_of(request: Request) -> str:
    """Return the path at which the pages are mounted, as a URL has it: part of it may be of the request, such as a tenant."""
    return quote(request.scope.get("root_path", ""), errors="replace")
