"""Sagas in the database of a Django project: ``saga_backend = "django://default"``.

Add ``celery_sagas.contrib.django`` to ``INSTALLED_APPS``: ``manage.py migrate`` creates the tables, ``manage.py check`` checks
the settings, and ``manage.py sagas`` is ``celery sagas``.
"""
