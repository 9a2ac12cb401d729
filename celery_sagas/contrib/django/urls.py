"""The web view below a path of a project: ``path("sagas/", include("celery_sagas.contrib.django.urls"))``."""

from django.urls import re_path

from celery_sagas.contrib.django.views import sagas

urlpatterns = [re_path(r"^(?P<below>.*)\Z", sagas)]
