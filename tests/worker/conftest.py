"""Every test here gets apps of its own."""

from tests.apps import app, definitions, eager, new_app, worker

__all__ = ["app", "definitions", "eager", "new_app", "worker"]
