"""Where processes meet, to do something at the same time."""

import os
import time

from deployed import FOLDER


def meet(what: str, processes: int, *, seconds: float) -> None:
    """Wait until this many processes have come here, or the time is over."""
    place = FOLDER / what
    place.mkdir(exist_ok=True)
    (place / str(os.getpid())).touch()
    deadline = time.monotonic() + seconds
    while len(os.listdir(place)) < processes and time.monotonic() < deadline:
        time.sleep(0.002)
