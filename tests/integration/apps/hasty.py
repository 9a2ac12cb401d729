"""A service that does not wait for a broker that takes no answer."""

from neighbours import app as app

from celery_sagas.worker.requests import answers

answers._TIMEOUT_S = 0.1
