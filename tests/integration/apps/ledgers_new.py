"""The code of now, beside workers that run ``ledgers_old``.

A ledger has a total, which the old code would not keep right: its schema version is higher. An echo has another field,
which that code can live with: its schema version is the same.
"""

from typing import Any

from deployed import make_app

from celery_sagas import Saga

app = make_app()


class Ledger(Saga, correlate_by="name", schema_version=2):
    name: str
    entries: list[int] = []
    alarms: list[int] = []
    total: int = 0

    @classmethod
    def upgrade(cls, data: dict[str, Any], schema_version: int) -> dict[str, Any]:
        if schema_version < 2:
            data["total"] = sum(data["entries"])
        return data


class Echo(Saga, correlate_by="name"):
    name: str
    heard: list[int] = []
    heard_by_old: list[int] = []
    heard_by_new: list[int] = []


@Ledger.starts
def enter(ledger: Ledger, name: str, number: int) -> None:
    ledger.entries.append(number)
    ledger.total += number
    ledger.send(hear.s(name, number))
    if number % 10 == 0:
        ledger.schedule(alarm.s(number), after=0.5)


@Ledger.handles
def alarm(ledger: Ledger, number: int) -> None:
    ledger.alarms.append(number)


@Echo.starts
def hear(echo: Echo, name: str, number: int) -> None:
    echo.heard.append(number)
    echo.heard_by_new.append(number)
