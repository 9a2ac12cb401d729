"""Parcels whose messages come to many processes at once, and gates that two sides open at once."""

from celery import shared_task
from deployed import make_app, note
from meeting import meet

from celery_sagas import Saga

app = make_app()


class Parcel(Saga, correlate_by="name"):
    name: str
    weighed: list[int] = []
    heard: list[int] = []
    reminded: list[int] = []


class Gate(Saga, correlate_by="name"):
    name: str
    sides: list[str] = []


@Parcel.starts
def weigh(parcel: Parcel, name: str, round: int, processes: int) -> None:
    """Weigh once this many processes are about to; tell a step of another instance, tell a plain task, and set a timeout."""
    meet(f"{name}.{round}", processes, seconds=60)
    parcel.weighed.append(round)
    parcel.send(hear.si(f"echo of {name}", round))
    parcel.send(label.si(name, round))
    parcel.schedule(reminded.s(round), after=0.2)


@Parcel.starts
def hear(parcel: Parcel, name: str, round: int) -> None:
    parcel.heard.append(round)


@Parcel.handles
def reminded(parcel: Parcel, round: int) -> None:
    parcel.reminded.append(round)


@shared_task(ignore_result=True)
def label(name: str, round: int) -> None:
    note("labels", f"{name} {round}")


@Gate.starts
def open_left(gate: Gate, name: str) -> None:
    _open(gate, "left")


@Gate.starts
def open_right(gate: Gate, name: str) -> None:
    _open(gate, "right")


def _open(gate: Gate, side: str) -> None:
    """Open one side; whoever creates the instance waits for the other, who does so too."""
    if gate.saga.is_new:
        meet(f"{gate.name}.start", 2, seconds=20)
        note("starters", gate.name)
    gate.sides.append(side)
