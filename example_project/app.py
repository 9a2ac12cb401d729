"""The shop's Celery app: what its worker is started with, and what the rest of the shop publishes through."""

import os
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import worker_ready

from example_project.settings import settings

app = Celery("shop", include=["example_project.orders", "example_project.till", "example_project.trips"])
app.conf.update(settings(os.environ))


@worker_ready.connect
def tell_that_it_is_ready(**_: Any) -> None:
    """Let the process that started this worker know that it takes messages now."""
    if ready := os.environ.get("SHOP_READY"):
        Path(ready).touch()
