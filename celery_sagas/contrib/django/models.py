"""No rows of ours are models; this one has the permissions for the web view."""

from typing import Any, ClassVar

from django.db import models


class _NoRows(models.Manager["Web"]):
    """Says that there are no rows, to ``dumpdata``, too: there is no table."""

    def get_queryset(self) -> Any:
        return super().get_queryset().none()


class Web(models.Model):
    """The web view, of which users and groups may have a level of access: ``celery_sagas.look``, ``.read`` or ``.act``."""

    objects: ClassVar[Any] = _NoRows()

    class Meta:
        """It has no table."""

        managed = False
        base_manager_name = "objects"
        default_permissions = ()
        permissions = (
            ("look", "Can see which sagas there are, and how they fare"),
            ("read", "Can see the states and messages of sagas"),
            ("act", "Can act on sagas and dead letters"),
        )
        verbose_name = "web view"
        verbose_name_plural = "web view"
