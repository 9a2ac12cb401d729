"""The app, as Django registers it."""

from importlib import import_module

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class SagasConfig(AppConfig):
    """Registers the migrations, the checks and the command."""

    name = "celery_sagas.contrib.django"
    label = "celery_sagas"
    default_auto_field = "django.db.models.AutoField"
    verbose_name = "Sagas"

    def ready(self) -> None:
        """Register the checks, note whether a worker begins, and create the tables where tests switch migrations off."""
        import_module("celery_sagas.contrib.django.checks")
        import_module("celery_sagas.contrib.django.database")
        post_migrate.connect(import_module("celery_sagas.contrib.django.schema").create_unmigrated, sender=self)
