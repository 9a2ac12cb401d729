"""A service that does not have the library: ``strangers.py <queue>`` is a worker that knows of no saga.

Celery's own command would load the library, wherever it is installed, for ``celery sagas``.
"""

import json
import os
import select
import signal
import sys
import threading
from pathlib import Path

from celery import Celery, signals

app = Celery("strangers")
settings = json.loads(os.environ["CELERY_SAGAS_TEST_SETTINGS"])
app.conf.update({name: value for name, value in settings.items() if not name.startswith("saga_")})


@app.task(name="participant.work")
def work(name: str) -> str:
    assert "celery_sagas" not in sys.modules
    return f"stranger {name}"


@signals.worker_ready.connect
def note_ready(**_: object) -> None:
    """Tell the test that this worker consumes; do not outlive it."""
    threading.Thread(target=_end_with_test, daemon=True).start()
    Path(os.environ["CELERY_SAGAS_TEST_READY"]).touch()


def _end_with_test() -> None:
    select.select([0], [], [])
    os.killpg(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    app.Worker(queues=[sys.argv[1]], concurrency=1, without_gossip=True, without_mingle=True, loglevel="INFO").start()
