"""Apps of a test's own."""

from tests.apps import app, definitions, eager, new_app

__all__ = ["app", "definitions", "eager", "new_app"]
