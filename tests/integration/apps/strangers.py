"""A service that does not have the library: ``strangers.py <queue>`` is a worker that knows of no saga.

Celery's own command would load the library, wherever it is installed, for ``celery sagas``.
"""

import sys

import participants as participants
from deployed import make_app

app = make_app(has_sagas=False)


@app.task(name="participant.look")
def look(name: str) -> str:
    assert "celery_sagas" not in sys.modules
    return f"stranger {name}"


if __name__ == "__main__":
    app.Worker(queues=[sys.argv[1]], concurrency=1, without_gossip=True, without_mingle=True, loglevel="INFO").start()
