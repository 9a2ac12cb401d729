"""What a worker does before its first message: ``arming.py <app>`` imports an app, makes its runtime, and sets its traps."""

import importlib
import sys

from celery import Celery, signals

from celery_sagas.worker.runtime import runtime_of

if __name__ == "__main__":
    app = getattr(importlib.import_module(sys.argv[1]), "app", None)
    if isinstance(app, Celery) and "saga_backend" in app.conf:
        runtime_of(app)
    errors = [answer for _, answer in signals.worker_process_init.send(sender=None) if isinstance(answer, Exception)]
    if errors:
        raise errors[0]
