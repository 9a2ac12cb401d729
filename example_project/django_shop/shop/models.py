"""The rows of the shop."""

from django.db import models


class Order(models.Model):
    """An order, as its customer sees it."""

    total = models.DecimalField(max_digits=9, decimal_places=2)
    is_paid = models.BooleanField(default=False)


class Payment(models.Model):
    """Money that has come in."""

    order = models.ForeignKey(Order, on_delete=models.PROTECT)
    receipt = models.CharField(max_length=40)
