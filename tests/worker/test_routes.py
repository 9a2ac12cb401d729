"""What is remembered of the routes of an app's tasks."""

import gc
import weakref

from celery import Celery

from celery_sagas.worker.celery_internals import routing_of


def test_it_keeps_no_app_alive() -> None:
    app = Celery("routes", broker="memory://", set_as_current=False)

    @app.task(name="pack", shared=False)
    def pack() -> None: ...

    assert routing_of(app, "pack") == routing_of(app, "pack")
    assert routing_of(app, "unknown") == routing_of(app, "unknown")
    left = weakref.ref(app)
    del app, pack
    gc.collect()
    assert left() is None
