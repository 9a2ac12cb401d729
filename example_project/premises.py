"""The premises of one run: a temporary folder, and a name of its own on the broker and in the database."""

import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

from kombu.exceptions import KombuError

from example_project.app import app
from example_project.settings import settings


@dataclass
class Premises:
    """Where a run takes place. The queue is removed at the end, however it ends, and so is the folder unless it is to be kept."""

    broker: str | None = None  #: ``None``: files in the folder
    backend: str | None = None  #: ``None``: SQLite in the folder
    name: str = field(default_factory=lambda: f"shop-{uuid4().hex[:10]}")
    keep: bool = False  #: the folder: its database and the worker's log

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="celery-sagas-shop-"))
        for folder in ("queue", "done", "control"):
            (self.folder / folder).mkdir()
        os.environ.update(self._environment())
        app.conf.update(settings(os.environ))
        return self

    def _environment(self) -> dict[str, str]:
        """Return what settings.py, app.py, bank.py, ledger.py and bookings.py read, here and in the worker."""
        given = {"SHOP_BROKER": self.broker, "SHOP_BACKEND": self.backend}
        return {
            "SHOP_NAME": self.name,
            "SHOP_FOLDER": str(self.folder),
            "SHOP_BANK": str(self.folder / "bank.sqlite3"),
            "SHOP_LEDGER": str(self.folder / "ledger.sqlite3"),
            "SHOP_BOOKINGS": str(self.folder / "bookings.sqlite3"),
            "SHOP_READY": str(self.ready),
        } | {name: value for name, value in given.items() if value}

    @property
    def ready(self) -> Path:
        """The file that tells that the worker takes messages."""
        return self.folder / "ready"

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if self.ready.exists():
                self._remove_queue()
        finally:
            if not self.keep:
                shutil.rmtree(self.folder, ignore_errors=True)

    def _remove_queue(self) -> None:
        with app.connection_for_write() as connection:
            gone: tuple[type[BaseException], ...] = (KombuError, *connection.connection_errors, *connection.channel_errors)
            with suppress(*gone):  # the broker has ended meanwhile
                queue = app.amqp.queues[self.name](connection.channel())
                queue.declare()  # Redis unbinds only what this connection has bound
                queue.delete()
