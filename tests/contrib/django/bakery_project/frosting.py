"""A step of real workers, two of which lock each other's rows."""

from bakery.models import Cake
from bakery.sagas import Baking
from deployed import note
from django.db.models import F, Value
from django.db.models.functions import Concat
from meeting import meet


@Baking.handles(transaction="default")
def frost(baking: Baking, order_id: str, cakes: list[str]) -> None:
    """Change two cakes, the second one when two processes have changed their first."""
    note("attempts", order_id)
    for cake in cakes:
        Cake.objects.filter(order_id=cake).update(flavour=Concat(F("flavour"), Value("+")))
        meet("one each", 2, seconds=20)
    baking.slices += 1
