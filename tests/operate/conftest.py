"""Every test here gets apps of its own."""

from tests.apps import app, at_one_time, definitions, new_app, worker

__all__ = ["app", "at_one_time", "definitions", "new_app", "worker"]
