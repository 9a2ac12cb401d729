"""Counters, on which an operator acts until the test lets him go on."""

import os
import time
from pathlib import Path

from counters import app
from deployed import FOLDER, note

from celery_sagas.signals import instance_operated

__all__ = ["app"]

#: After so many acts the test is waited for.
_ACTS = int(os.environ.get("CELERY_SAGAS_TEST_ACTS", "0"))
_GO: Path = FOLDER / "go"
_done: list[str] = []


@instance_operated.connect(weak=False)
def wait_for_test(sender: object, done: tuple[str, ...], **_: object) -> None:
    """Note how many acts there were, and wait until the test says so."""
    _done.append(done[1])
    if len(_done) == _ACTS:
        note("acts", str(_ACTS))
        while not _GO.exists():
            time.sleep(0.01)
