"""Purchases that wait a week for their delivery, of which some go wrong in the night."""

import os
from datetime import timedelta

from celery import shared_task
from deployed import FOLDER, make_app

from celery_sagas import Saga

#: The release of this code: the first has a step that the others lack, the last writes states that the others cannot read.
RELEASE = int(os.environ.get("CELERY_SAGAS_TEST_RELEASE", "2"))
WEEK, SOON = timedelta(days=7), timedelta(seconds=1)

app = make_app()


class Purchase(Saga, correlate_by="number", schema_version=2 if RELEASE == 3 else 1, max_idle=SOON):
    """Ends with its delivery."""

    number: str


@Purchase.starts
def buy(purchase: Purchase, number: str) -> None:
    """Wait for the delivery."""
    purchase.schedule(give_up, after=WEEK, name="delivery")


@Purchase.starts
def buy_on_account(purchase: Purchase, number: str) -> None:
    """Wait for the bank, however long it takes."""
    purchase.send(charge.si(number), then=charged)


@Purchase.starts
def reserve(purchase: Purchase, number: str) -> None:
    """Wait for nothing."""


@Purchase.starts
def buy_in_a_hurry(purchase: Purchase, number: str) -> None:
    """Wait for a moment."""
    purchase.schedule(give_up, after=SOON, name="delivery")


@Purchase.handles
def pack(purchase: Purchase, number: str) -> None:
    """Fail until the shelf is there."""
    if not (FOLDER / "shelf").exists():
        raise LookupError("no such shelf")
    purchase.complete()


@Purchase.handles
def deliver(purchase: Purchase, number: str) -> None:
    """End."""
    purchase.complete()


@Purchase.handles
def charged(purchase: Purchase, receipt: str) -> None:
    """End."""
    purchase.complete()


@Purchase.handles
def give_up(purchase: Purchase) -> None:
    """End."""
    purchase.complete()


@shared_task(acks_late=True)
def charge(number: str) -> str:
    """Charge a card."""
    return f"receipt of {number}"


if RELEASE == 1:

    @Purchase.starts
    def buy_as_before(purchase: Purchase, number: str) -> None:
        """Wait for a moment, and then for a step that is gone."""
        purchase.schedule(remind, after=SOON, name="reminder")

    @Purchase.handles
    def remind(purchase: Purchase) -> None:
        """Do nothing."""
