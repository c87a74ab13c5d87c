from django.db import close_old_connections

from backstay import activity, workflow


@activity(retries=3)
def confirm(order_id: int) -> str:
    from shop.models import Order  # models load after the apps are ready

    close_old_connections()  # this thread may have done its last work hours ago
    order = Order.objects.get(pk=order_id)
    order.state = "confirmed"
    order.save(update_fields=["state"])
    return f"order {order_id} of {order.customer} confirmed"


@workflow(type="shop.order")
def order(order_id: int) -> str:
    return confirm(order_id)
