"""Checks of ``manage.py check``: what would otherwise be found when a worker starts."""

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import connections

from celery_sagas.contrib.django.schema import existing_tables, names_in
from celery_sagas.errors import ConfigurationError
from celery_sagas.settings import read_settings
from celery_sagas.stores.sql.tables import layout
from celery_sagas.stores.urls import open_backend
from celery_sagas.worker.celery_internals import current_app
from celery_sagas.worker.runtime import refuse_stand_in


@register()
def check_settings(app_configs: Any, **options: Any) -> list[CheckMessage]:
    """Check that there is a Celery app, and that its backends can be opened; nothing is connected."""
    app = current_app()
    try:
        refuse_stand_in(app)
    except ConfigurationError as exc:
        return [Warning(exc.problem, hint=exc.remedy, id="celery_sagas.W001")]
    try:
        settings = read_settings(app.conf)
        for each in settings.all_backends():
            open_backend(each.backend, prefix=settings.prefix, options=each.options).close()
    except ConfigurationError as exc:
        return [Error(exc.problem, hint=exc.remedy, id="celery_sagas.E001")]
    return []


@register(Tags.database)
def check_tables(app_configs: Any, databases: Sequence[str] | None, **options: Any) -> list[CheckMessage]:
    """Check that the databases in which sagas are kept have the tables."""
    try:
        kept_in = {each.backend for each in read_settings(current_app().conf).all_backends()}
    except ConfigurationError:
        return []  # the other check says so
    return [_missing(alias) for alias in databases or () if f"django://{alias}" in kept_in and not _has_tables(alias)]


def _has_tables(alias: str) -> bool:
    connection = connections[alias]
    return all(names.of(layout.name) in existing_tables(connection, names) for names in names_in(connection))


def _missing(alias: str) -> CheckMessage:
    problem, hint = f"the saga tables are missing in django://{alias}", f"Run python manage.py migrate --database={alias}"
    return Warning(problem, hint=hint, id="celery_sagas.W002")
