"""Settings; the tests say by the environment which database it is."""

import json
import os

SECRET_KEY = "of the tests"
USE_TZ = True
INSTALLED_APPS = ["celery_sagas.contrib.django", "bakery"]
DATABASES = {
    **json.loads(os.environ["BAKERY_DATABASES"]),
    "manual": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:", "AUTOCOMMIT": False},
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
CELERY_SAGA_BACKEND = "django://default"
for name, value in json.loads(os.environ.get("BAKERY_SETTINGS", "{}")).items():
    globals()[name] = value
