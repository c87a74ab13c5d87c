from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from backstay import WorkflowNotFound
from backstay.contrib.django import client, start_on_commit
from shop import flows
from shop.models import Order


@csrf_exempt
@require_POST
@transaction.atomic
def create(request: HttpRequest) -> JsonResponse:
    row = Order.objects.create(customer=request.POST["customer"])
    start_on_commit(flows.order, f"order-{row.pk}", row.pk)
    return JsonResponse({"id": row.pk}, status=202)


def show(request: HttpRequest, id: int) -> JsonResponse:
    row = get_object_or_404(Order, pk=id)
    try:
        status = client().handle(flows.order, f"order-{id}").describe().status
    except WorkflowNotFound:
        status = None  # the process died between the commit and the start
    return JsonResponse({"customer": row.customer, "state": row.state, "workflow": status})
