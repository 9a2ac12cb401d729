"""The project of the tests, and its databases as Django's settings have them."""

from pathlib import Path
from typing import Any

from sqlalchemy import URL

PROJECT = Path(__file__).parent / "bakery_project"
BACKENDS = {
    "postgresql": "django.db.backends.postgresql",
    "mysql": "django.db.backends.mysql",
    "sqlite": "django.db.backends.sqlite3",
}


def database_of(url: URL) -> dict[str, Any]:
    """Return a database as Django's settings have it."""
    address = {"HOST": url.host or "", "PORT": url.port or "", "USER": url.username or "", "PASSWORD": url.password or ""}
    return {"ENGINE": BACKENDS[url.get_backend_name()], "NAME": url.database, **address}
