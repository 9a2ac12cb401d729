"""The views of the shop."""

from decimal import Decimal

from django.db import transaction
from django.http import Http404, HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from celery_sagas import send
from shop.models import Order
from shop.sagas import Checkout, order_placed, paid


@csrf_exempt
@require_POST
def place(request: HttpRequest) -> JsonResponse:
    """Write an order, and start its saga if, and only if, that is committed."""
    with transaction.atomic():
        order = Order.objects.create(total=Decimal(request.POST["total"]))
        send(order_placed.si(order_id=order.pk), using="default")
    return JsonResponse({"order": order.pk}, status=201)


@csrf_exempt
@require_POST
def pay(request: HttpRequest, order_id: int) -> JsonResponse:
    """Pass a payment on to the saga."""
    paid.delay(order_id=order_id, receipt=request.POST["receipt"])
    return JsonResponse({}, status=202)


@require_GET
def show(request: HttpRequest, order_id: int) -> JsonResponse:
    """Show where an order stands."""
    checkout = Checkout.find(order_id)
    if checkout is None:
        raise Http404("There is no such order")
    return JsonResponse({"receipt": checkout.receipt, "is_late": checkout.is_late})
