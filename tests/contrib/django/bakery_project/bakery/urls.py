"""The URLs: the web view alone."""

from django.urls import include, path

urlpatterns = [path("ops/sagas/", include("celery_sagas.contrib.django.urls"))]
