"""Counters in an app that is configured as Django's are: by an object, under a namespace."""

import json
import os
from types import SimpleNamespace

from celery import Celery

_given = json.loads(os.environ["CELERY_SAGAS_TEST_SETTINGS"])
settings = SimpleNamespace(DEBUG=False, **{f"CELERY_{name.upper()}": value for name, value in _given.items()})

app = Celery("namespaced")
app.config_from_object(settings, namespace="CELERY")
app.set_default()

from counters import Counter, add  # noqa: E402, F401
