"""Every test here gets apps of its own."""

from tests.apps import app, definitions, new_app

__all__ = ["app", "definitions", "new_app"]
