"""A saga one of whose steps takes as long as a test wants."""

import time

from deployed import FOLDER, make_app, note

from celery_sagas import Saga

app = make_app()


class Guest(Saga, correlate_by="name"):
    name: str
    visits: int = 0


@Guest.starts
def visit(guest: Guest, name: str) -> None:
    """Stay until the file ``go`` is there."""
    note("visits", name)
    while not (FOLDER / "go").exists():
        time.sleep(0.02)
    guest.visits += 1
