"""The settings; in production the secret key, the hosts and the database are others."""

import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parents[1]
SECRET_KEY = os.environ.get("SHOP_SECRET_KEY", "only for this example")
DEBUG = True
ALLOWED_HOSTS = ["localhost", "testserver"]
USE_TZ = True
ROOT_URLCONF = "shop.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "celery_sagas.contrib.django",
    "shop",
]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": BASE_DIR / "shop.sqlite3",
    }
}

CELERY_BROKER_URL = os.environ.get("SHOP_BROKER_URL", "amqp://localhost")
CELERY_SAGA_BACKEND = "django://default"
