"""A service that has the library, and neither a saga nor a setting of it."""

import participants as participants
from deployed import make_app

import celery_sagas as celery_sagas

app = make_app(has_sagas=False)
