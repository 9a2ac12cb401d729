"""Views of a Django project, as a process with threads: each writes a row and starts a saga, or is undone.

Its arguments: the prefix of the orders' ids, the first number, and the one after the last.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import baking
import django

django.setup()

from bakery.models import Cake  # noqa: E402
from bakery.sagas import ordered  # noqa: E402
from django.db import connections, transaction  # noqa: E402

from celery_sagas import send  # noqa: E402

#: One order in so many is undone.
UNDONE_EVERY = 10


class Undone(Exception):
    """Rolls a transaction back."""


def place(order_id: str, is_undone: bool) -> None:
    """Place an order."""
    try:
        with suppress(Undone), transaction.atomic():
            Cake.objects.create(order_id=order_id, flavour="lemon")
            send(ordered.si(order_id=order_id), using="default")
            if is_undone:
                raise Undone
    finally:
        connections.close_all()  # as the end of a request does, in its thread


if __name__ == "__main__":
    assert baking.app
    prefix, first, end = sys.argv[1], *map(int, sys.argv[2:])
    with ThreadPoolExecutor(5) as views:
        for done in [views.submit(place, f"{prefix}-{number}", number % UNDONE_EVERY == 0) for number in range(first, end)]:
            done.result()
