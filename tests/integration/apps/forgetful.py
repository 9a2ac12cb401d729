"""A worker's app that imports no saga, although messages to one come to it."""

from deployed import make_app

import celery_sagas  # noqa: F401 - for its bootsteps

app = make_app()


@app.task(name="forgetful.hand_on")
def hand_on(name: str) -> str:
    """Return what the next task gets."""
    return name
