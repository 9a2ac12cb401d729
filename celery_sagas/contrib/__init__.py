"""What celery_sagas adds to other packages, if they are there."""
