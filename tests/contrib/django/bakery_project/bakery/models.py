"""The rows beside the sagas."""

from django.db import models


class Cake(models.Model):
    """A cake that was ordered."""

    order_id = models.CharField(max_length=40, unique=True)
    flavour = models.CharField(max_length=40)


class Slice(models.Model):
    """A piece of a cake that was cut."""

    order_id = models.CharField(max_length=40)
    number = models.IntegerField()
