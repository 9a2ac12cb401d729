"""The URLs of the shop."""

from django.urls import path

from shop import views

urlpatterns = [
    path("orders/", views.place),
    path("orders/<int:order_id>/", views.show),
    path("orders/<int:order_id>/payment/", views.pay),
]
