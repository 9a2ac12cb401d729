"""Reminders: timeouts, series, and messages to others that are sent later."""

from datetime import timedelta

from celery import shared_task
from deployed import FOLDER, first_time, make_app, note

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


@Reminder.starts
def remind_each_second(reminder: Reminder, name: str) -> None:
    reminder.schedule(reminded, after=0.1, every=timedelta(seconds=1), name="series")


@Reminder.starts
def fail_each_second(reminder: Reminder, name: str) -> None:
    """Fail at the first occurrence."""
    reminder.schedule(flaky, after=0.1, every=timedelta(seconds=1), name="series")


@Reminder.handles
def end_series(reminder: Reminder, name: str) -> None:
    reminder.unschedule("series")


@Reminder.handles
def flaky(reminder: Reminder) -> None:
    id, failing = reminder.saga.message.id, FOLDER / "failing"
    if first_time("failing"):
        failing.write_text(id)
    if failing.read_text() == id:  # a step that fails in a batch runs once more alone
        raise ZeroDivisionError(reminder.name)
    reminder.count += 1


@Reminder.handles
def reminded(reminder: Reminder) -> None:
    reminder.count += 1


@shared_task(ignore_result=True)
def written(name: str) -> None:
    note("written", name)
