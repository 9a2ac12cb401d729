"""Ctrl-C for commands that go on until then."""

from collections.abc import Callable
from typing import Any

import pytest

from celery_sagas.cli import following


def pauses(monkeypatch: pytest.MonkeyPatch, *actions: Callable[[], object]) -> None:
    """Have something happen in each pause between two looks, and Ctrl-C in the one behind the last."""
    left = [*actions]

    def pause(seconds: float) -> Any:
        assert seconds == 1.0
        if not left:
            raise KeyboardInterrupt
        left.pop(0)()

    monkeypatch.setattr(following, "sleep", pause)
