"""A saga that gathers, and stops."""

import time

from celery import Celery
from deployed import FOLDER, make_app, note

from celery_sagas import Gathered, Saga

app: Celery = make_app()


class Hunt(Saga, correlate_by="name"):
    """A hunt in many places, until it is called off."""

    name: str
    request: str = ""
    is_off: bool = False


@Hunt.starts
def begin(hunt: Hunt, name: str, places: int) -> None:
    hunt.request = hunt.gather([look.s(place) for place in range(places)], then=found)


@Hunt.handles
def call_off(hunt: Hunt, name: str) -> None:
    hunt.is_off = hunt.cancel(hunt.request)


@Hunt.handles
def found(hunt: Hunt, places: Gathered[int]) -> None:
    hunt.complete()


@app.task(name="place.look", acks_late=True)
def look(place: int) -> int:
    note("looks", str(place))
    while not (FOLDER / "go").exists():
        time.sleep(0.02)
    time.sleep(0.01)
    return place
