"""How long messages have taken, from the first of a chain to the end of the last."""

import time
from typing import Any

from celery import signals
from deployed import note


@signals.task_success.connect
def note_latency(sender: Any, **_: object) -> None:
    """Note how long ago the first message of a finished item was sent, if it says so."""
    sent_at = (sender.request.kwargs or {}).get("sent_at")
    if sender.name.endswith("last") and sent_at:
        note("latencies", str(time.time() - sent_at))
