"""The Celery app of a Django project, with the settings of a deployment."""

import json
import os

import deployed  # noqa: F401 - it notes what the tests want to know

_settings = json.loads(os.environ["CELERY_SAGAS_TEST_SETTINGS"])
os.environ["BAKERY_SETTINGS"] = json.dumps({f"CELERY_{name.upper()}": value for name, value in _settings.items()})

from bakery.celery import app as app  # noqa: E402
