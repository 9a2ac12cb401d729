"""Counters, on which an operator acts until the test lets him go on, or until his process is killed."""

import os
import signal
import time
from pathlib import Path
from random import uniform
from threading import Timer

from counters import app
from deployed import FOLDER, note

from celery_sagas.signals import instance_operated

__all__ = ["app"]

#: After so many acts the test is waited for.
_ACTS = int(os.environ.get("CELERY_SAGAS_TEST_ACTS", "0"))
#: After so many acts the process is killed, somewhere in those that follow.
_LAST = int(os.environ.get("CELERY_SAGAS_TEST_LAST_ACT", "0"))
#: How soon after that. Seconds: the others take longer.
_SOON_S = 0.005
_GO: Path = FOLDER / "go"
_done: list[str] = []


@instance_operated.connect(weak=False)
def wait_for_test(sender: object, done: tuple[str, ...], **_: object) -> None:
    """Note how many acts there were, and wait until the test says so; or be killed."""
    _done.append(done[1])
    if len(_done) == _LAST:
        Timer(uniform(0, _SOON_S), os.kill, (os.getpid(), signal.SIGKILL)).start()
    if len(_done) == _ACTS:
        note("acts", str(_ACTS))
        while not _GO.exists():
            time.sleep(0.01)
