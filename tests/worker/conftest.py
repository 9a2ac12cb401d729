"""Every test here gets apps of its own, and nobody waits for a message that is held."""

from types import SimpleNamespace

import pytest

from celery_sagas.worker import later
from tests.apps import app, definitions, eager, new_app, worker

__all__ = ["app", "definitions", "eager", "held", "new_app", "worker"]


@pytest.fixture(autouse=True)
def held(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds for which messages are held before the broker gets them back, which are not slept."""
    slept: list[float] = []
    monkeypatch.setattr(later, "time", SimpleNamespace(sleep=slept.append))
    return slept
