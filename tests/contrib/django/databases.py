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


def url_of(database: dict[str, Any]) -> str:
    """Return the URL of a database that Django's settings have so."""
    (name,) = (name for name, engine in BACKENDS.items() if engine == database["ENGINE"])
    address = {"username": database.get("USER"), "password": database.get("PASSWORD"), "host": database.get("HOST")}
    url = URL.create(name, **address, port=database.get("PORT") or None, database=str(database["NAME"]))
    return url.render_as_string(hide_password=False)


def database_of(url: URL) -> dict[str, Any]:
    """Return a database as Django's settings have it."""
    address = {"HOST": url.host or "", "PORT": url.port or "", "USER": url.username or "", "PASSWORD": url.password or ""}
    return {"ENGINE": BACKENDS[url.get_backend_name()], "NAME": url.database, **address}
