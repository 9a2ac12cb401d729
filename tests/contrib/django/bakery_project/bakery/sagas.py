"""The sagas, which Celery finds in the app by the name of this module."""

from contextlib import suppress

from django.db import DatabaseError, connection, transaction

from bakery.models import Cake, Slice
from celery_sagas import Batch, Saga, aggregator


class Baking(Saga, correlate_by="order_id"):
    """A cake, from its order to its last slice."""

    order_id: str
    slices: int = 0


@Baking.starts
def ordered(baking: Baking, order_id: str) -> None:
    """Begin."""


@Baking.handles(transaction="default")
def cut(baking: Baking, order_id: str, number: int) -> None:
    """Cut a slice."""
    Slice.objects.create(order_id=order_id, number=number)
    baking.slices += 1
    if number < 0:
        raise ValueError("there is no such slice")


@Baking.handles(transaction="default")
def eaten(baking: Baking, order_id: str) -> None:
    """End."""
    Slice.objects.filter(order_id=order_id).delete()
    baking.complete()


@aggregator(size=3, transaction="default")
def crumbs(batch: Batch[int]) -> None:
    """Write what is left."""
    Slice.objects.bulk_create(Slice(order_id="crumbs", number=number) for number in batch)


#: What the functions that were given to ``on_commit()`` have done.
rung: list[str] = []


@Baking.handles(transaction="default")
def ring(baking: Baking, order_id: str, fails: bool = False) -> None:
    """Do something once the step has committed."""
    transaction.on_commit(lambda: rung.append(order_id))
    if fails:
        transaction.on_commit(lambda: 1 / 0)
    baking.slices += 1


@Baking.handles(transaction="default")
def spoil(baking: Baking, order_id: str, in_savepoint: bool) -> None:
    """Catch an error of the database."""
    try:
        if in_savepoint:
            with transaction.atomic():
                Cake.objects.create(order_id=order_id)
        else:
            Cake.objects.create(order_id=order_id)
    except DatabaseError:
        baking.slices += 1


@Baking.handles(transaction="default")
def burn(baking: Baking, order_id: str) -> None:
    """Give up without an error."""
    Slice.objects.create(order_id=order_id, number=1)
    transaction.set_rollback(True)


@Baking.handles(transaction="default")
def scorch(baking: Baking, order_id: str) -> None:
    """Catch an error of the database of which Django takes no note."""
    with suppress(DatabaseError), connection.cursor() as cursor:
        cursor.execute("SELECT nothing FROM nowhere")
    baking.slices += 1
