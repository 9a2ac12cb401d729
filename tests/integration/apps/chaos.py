"""Ledgers whose workers are killed: each entry is told to an echo, and some set an alarm."""

from deployed import make_app

from celery_sagas import Saga

app = make_app()

#: Every so many entries one sets an alarm, which comes after a time that its number chooses. Milliseconds.
ALARM_EVERY, LONGEST_MS = 10, 3_000


class Ledger(Saga, correlate_by="name"):
    name: str
    entries: list[int] = []
    alarms: list[int] = []


class Echo(Saga, correlate_by="name"):
    name: str
    heard: list[int] = []


@Ledger.starts
def enter(ledger: Ledger, name: str, number: int) -> None:
    ledger.entries.append(number)
    ledger.send(hear.s(name, number))
    if number % ALARM_EVERY == 0:
        ledger.schedule(alarm.s(number), after=number * 37 % LONGEST_MS / 1000)


@Ledger.handles
def alarm(ledger: Ledger, number: int) -> None:
    ledger.alarms.append(number)


@Echo.starts
def hear(echo: Echo, name: str, number: int) -> None:
    echo.heard.append(number)
