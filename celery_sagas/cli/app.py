"""The app that ``celery -A`` names."""

import click
from celery import Celery


def app_of(context: click.Context) -> Celery:
    """Return the app of a command below ``celery``."""
    app: Celery = context.obj.app
    return app
