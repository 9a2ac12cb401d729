"""Reminders whose relay dies once at the point that ``CELERY_SAGAS_TEST_POINT`` names. Imported in place of ``reminders``."""

import functools
import os
import signal
from typing import Any

from deployed import first_time
from reminders import app as app
from reminders import reminded

from celery_sagas.worker.pipeline import AmqpPipeline
from celery_sagas.worker.runtime import Runtime

POINT = os.environ.get("CELERY_SAGAS_TEST_POINT", "")


def deadly(port: Any, method: str, stage: str) -> None:
    """Let a method end this process before or after its work, as the kernel would: once in a deployment."""
    original = getattr(port, method)

    @functools.wraps(original)
    def wrapped(*arguments: Any) -> Any:
        die(f"before {stage}")
        answer = original(*arguments)
        if answer != []:  # a claim of nothing is no point of interest
            die(f"after {stage}")
        return answer

    setattr(port, method, wrapped)


def die(point: str) -> None:
    if point == POINT and first_time(point):
        os.kill(os.getpid(), signal.SIGKILL)


class Deadly(Runtime):
    """Armed as soon as it is made."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if "release" in POINT:
            arguments[0].tasks.pop(reminded.name, None)  # which it leaves to others
        deadly(self.backend.outbox, "release", "release")
        deadly(self.backend.outbox, "claim_due", "claim")
        for publishing in (self.publisher, AmqpPipeline):  # one message, and several at once over RabbitMQ
            deadly(publishing, "publish", "publish")
        deadly(self.backend.outbox, "confirm", "confirm")
        deadly(self.backend.outbox, "fail", "fail")
        deadly(self.backend.dead, "add", "letter")


if POINT:
    from celery_sagas.worker import runtime

    runtime.Runtime = Deadly  # type: ignore[misc]
