"""The app, as Django registers it."""

from importlib import import_module

from django.apps import AppConfig


class SagasConfig(AppConfig):
    """Registers the migrations, the checks and the command."""

    name = "celery_sagas.contrib.django"
    label = "celery_sagas"
    verbose_name = "Sagas"

    def ready(self) -> None:
        """Register the checks, and note whether a worker begins."""
        import_module("celery_sagas.contrib.django.checks")
        import_module("celery_sagas.contrib.django.database")
