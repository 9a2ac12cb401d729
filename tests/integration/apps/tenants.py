"""A project whose tasks have a request of its own, which fails over every message until it is fixed."""

import os
from typing import Any

from celery.worker.request import Request
from deployed import FOLDER, make_app, note

import celery_sagas  # noqa: F401 - for its bootsteps

app = make_app()


def fail(where: str) -> None:
    """Fail if the test wants it here."""
    if os.environ["CELERY_SAGAS_TEST_FAILS"] != where or (FOLDER / "fixed").exists():
        return
    if where == "begun":
        os.environ["NO_SUCH_TENANT"]
    raise TypeError("NO_SUCH_TENANT")


class TenantRequest(Request):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        fail("begun")
        fail("made")

    def revoked(self) -> bool:
        """Be asked before the task is handed to the pool."""
        fail("handed over")
        return bool(super().revoked())


@app.task(name="tenant.work", acks_late=True, Request=TenantRequest)
def work(name: str) -> None:
    note("worked", name)
