"""A shop whose orders are rows, and whose sagas are in the same database."""

from shop.celery import app as celery_app

__all__ = ["celery_app"]
