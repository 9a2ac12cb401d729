"""The old code: ledgers that are told to echoes, beside workers that run ``ledgers_new``."""

from deployed import make_app

from celery_sagas import Saga

app = make_app()


class Ledger(Saga, correlate_by="name"):
    name: str
    entries: list[int] = []
    alarms: list[int] = []


class Echo(Saga, correlate_by="name"):
    name: str
    heard: list[int] = []
    heard_by_old: list[int] = []


@Ledger.starts
def enter(ledger: Ledger, name: str, number: int) -> None:
    ledger.entries.append(number)
    ledger.send(hear.s(name, number))
    if number % 10 == 0:
        ledger.schedule(alarm.s(number), after=0.5)


@Ledger.handles
def alarm(ledger: Ledger, number: int) -> None:
    ledger.alarms.append(number)


@Echo.starts
def hear(echo: Echo, name: str, number: int) -> None:
    echo.heard.append(number)
    echo.heard_by_old.append(number)
