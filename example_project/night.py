"""A night in the shop: orders do not go on; an operator finds them, and lets them go on."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

from celery_sagas.operate import Operator
from example_project.app import app
from example_project.orders import Order, card_charged, place_order
from example_project.premises import Premises
from example_project.worker import ShopError, Worker

#: The exit statuses of a command that has found nothing, and of one that has found something.
_STATUSES = (0, 3)
_ORDERS = ("night-1", "night-2")


def operate(premises: Premises, *, concurrency: int, timeout: float, show: Callable[[str], object]) -> list[str]:
    """Have orders stop, and let them go on.

    Args:
        premises: Where.
        concurrency: How many tasks the worker runs at the same time.
        timeout: Seconds that the night may last.
        show: Called with each command that an operator gives, and with what it prints.

    Returns:
        What is not as it must be in the end.

    Raises:
        ShopError: The worker ended, or time ran out.
    """
    with Worker(premises, concurrency, time.monotonic() + timeout) as worker:
        worker.wait_until_ready()
        ann = Operator(app, actor="ann")
        ann.hold(card_charged, "the bank sends wrong receipts, INC-17")
        for number in _ORDERS:
            _place(number, Decimal(10))
        _wait(worker, lambda: all(map(Order.find, _ORDERS)))
        ann.instance(Order, "night-2").pause("the customer has moved, INC-18")
        _place("night-3", "ten")  # no amount: the message becomes a dead letter
        _wait(worker, lambda: "failing" in _sagas("stuck")[1])

        for words in (["stuck"], ["show", "order", "night-2"], ["dead", "groups"]):
            show(_shown(*words))
        why = ["--reason", "it is mended", "--actor", "ann"]
        for words in (["release", card_charged.name], ["resume", "order", "night-2"], ["dead", "discard", "--all", "--yes"]):
            show(_shown(*words, *why))
        _wait(worker, lambda: not any(map(Order.find, _ORDERS)))
        status, _ = _sagas("stuck")
        for words in (["stuck"], ["audit"]):
            show(_shown(*words))
    return [] if status == 0 else ["something is stuck still"]


def _place(number: str, total: object) -> None:
    """Order, or try to."""
    given: dict[str, Any] = {"order_id": number, "total": total, "card": "good", "destination": "town"}
    place_order.delay(**given, patience=timedelta(hours=1))


def _wait(worker: Worker, condition: Callable[[], bool]) -> None:
    while not condition():
        worker.check()
        time.sleep(0.1)


def _shown(*words: str) -> str:
    """Return a command of the shop's operator, with its output."""
    return f"$ celery -A example_project.app sagas {shlex.join(words)}\n{_sagas(*words)[1]}"


def _sagas(*words: str) -> tuple[int, str]:
    """Run a command; return its exit status and its output."""
    command = [sys.executable, "-m", "celery", "-A", "example_project.app", "sagas", *words]
    done = subprocess.run(command, capture_output=True, env=dict(os.environ), encoding="utf-8", check=False)  # noqa: S603
    if done.returncode not in _STATUSES:
        raise ShopError(f"{' '.join(command)}: {done.stderr}")
    return done.returncode, done.stdout
