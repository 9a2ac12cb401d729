"""Reminders: timeouts, and messages to others that are sent later."""

from datetime import timedelta

from celery import shared_task
from deployed import make_app, note

from celery_sagas import Saga

app = make_app()


class Reminder(Saga, correlate_by="name"):
    name: str
    count: int = 0


@Reminder.starts
def remind(reminder: Reminder, name: str, seconds: float, times: int = 1) -> None:
    for _ in range(times):
        reminder.schedule(reminded, after=timedelta(seconds=seconds))


@Reminder.starts
def write_later(reminder: Reminder, name: str, seconds: float) -> None:
    reminder.send(written.si(name), after=seconds)


@Reminder.starts
def write_to_nobody(reminder: Reminder, name: str) -> None:
    """Write what no broker takes."""
    reminder.send(written.si(name=f"nobody of {name}").set(queue="nowhere"), after=0.1)


@Reminder.starts
def remind_next_year(reminder: Reminder, name: str) -> None:
    reminder.schedule(reminded, after=timedelta(days=365), name="next year")
    reminder.schedule(reminded, after=0.05)


@Reminder.handles
def forget_next_year(reminder: Reminder, name: str) -> None:
    note("timeouts", ", ".join(reminder.saga.timeouts))
    reminder.unschedule("next year")


@Reminder.handles
def reminded(reminder: Reminder) -> None:
    reminder.count += 1


@shared_task(ignore_result=True)
def written(name: str) -> None:
    note("written", name)
