"""Reminders whose relay dies once at the point that ``CELERY_SAGAS_TEST_POINT`` names. Imported in place of ``reminders``."""

import os
from typing import Any

from reminders import app as app
from reminders import reminded
from traps import die, set_trap

from celery_sagas.worker.runtime import Runtime

POINT = os.environ.get("CELERY_SAGAS_TEST_POINT", "")


def deadly(port: Any, method: str, stage: str) -> None:
    """Let a method end this process before or after its work: once in a deployment."""
    set_trap(port, method, stage, lambda *_: POINT, die_if_here)


def die_if_here(point: str, here: str) -> None:
    if point == here:
        die(point)


class Deadly(Runtime):
    """Armed as soon as it is made."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if "release" in POINT:
            arguments[0].tasks.pop(reminded.name, None)  # which it leaves to others
        deadly(self.backend.outbox, "release", "release")
        deadly(self.backend.outbox, "claim_due", "claim")
        for method in ("publish", "publish_many"):
            deadly(self.publisher, method, "publish")
        deadly(self.backend.outbox, "confirm", "confirm")
        deadly(self.backend.outbox, "reschedule", "reschedule")
        deadly(self.backend.outbox, "fail", "fail")
        deadly(self.backend.dead, "add", "dead_letter")


if POINT:
    from celery_sagas.worker import runtime

    runtime.Runtime = Deadly  # type: ignore[misc]
