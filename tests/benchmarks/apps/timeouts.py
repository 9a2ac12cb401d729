"""Alarms that note how late they come."""

import time

from deployed import make_app, note

from celery_sagas import Saga

app = make_app()


class Alarm(Saga, correlate_by="name"):
    name: str


@Alarm.starts
def set_alarm(alarm: Alarm, name: str, after: float) -> None:
    due_at = time.time() + after
    alarm.schedule(ring.s(due_at), after=after)


@Alarm.handles
def ring(alarm: Alarm, due_at: float) -> None:
    note("late", str(time.time() - due_at))
    alarm.complete()
