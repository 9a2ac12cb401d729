"""Celery without this library: four tasks, each of which sends the next, with the options of a step."""

from typing import Any

import timed as timed
from deployed import make_app
from latencies import note_latency as note_latency

app = make_app()
OPTIONS: dict[str, Any] = {"acks_late": True, "reject_on_worker_lost": True, "acks_on_timeout": False, "ignore_result": True}


@app.task(name="plain.first", **OPTIONS)
def plain_first(name: str, sent_at: float) -> None:
    """Do nothing, and send the next."""
    plain_second.delay(name=name, sent_at=sent_at)


@app.task(name="plain.second", **OPTIONS)
def plain_second(name: str, sent_at: float) -> None:
    """Do nothing, and send the next."""
    plain_third.delay(name=name, sent_at=sent_at)


@app.task(name="plain.third", **OPTIONS)
def plain_third(name: str, sent_at: float) -> None:
    """Do nothing, and send the next."""
    plain_last.delay(name=name, sent_at=sent_at)


@app.task(name="plain.last", **OPTIONS)
def plain_last(name: str, sent_at: float) -> None:
    """Do nothing."""
