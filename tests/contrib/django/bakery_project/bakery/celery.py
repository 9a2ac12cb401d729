"""The Celery app."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bakery.settings")
app = Celery("bakery")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(related_name="sagas")
