"""Every test here gets apps of its own."""

import pytest

from tests.apps import app, at_one_time, definitions, eager, new_app, worker

__all__ = ["app", "at_one_time", "definitions", "eager", "new_app", "worker"]


@pytest.fixture(autouse=True)
def logging_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that sets the process's logging up leaves that of the tests alone."""
    monkeypatch.setattr("celery.app.log.Logging.setup", lambda *_, **__: None)
