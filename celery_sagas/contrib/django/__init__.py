"""Sagas in the database of a Django project: ``saga_backend = "django://default"``.

Add ``celery_sagas.contrib.django`` to ``INSTALLED_APPS``: ``manage.py migrate`` creates the tables, ``manage.py check`` checks
the settings, ``manage.py sagas`` is ``celery sagas``, and ``include("celery_sagas.contrib.django.urls")`` is the web view.
"""
