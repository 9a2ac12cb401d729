"""A project: its Celery app is made with it, as Celery's documentation says."""

from bakery.celery import app

__all__ = ["app"]
