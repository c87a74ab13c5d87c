from django.test import TransactionTestCase

from backstay.contrib.django import testing
from shop import flows


class OrderTest(TransactionTestCase):
    def test_an_order_is_confirmed(self) -> None:
        with testing() as backstay:
            id = self.client.post("/orders", {"customer": "ada"}).json()["id"]
            result = backstay.handle(flows.order, f"order-{id}").result(timeout="10s")
            assert result == f"order {id} of ada confirmed"
            assert self.client.get(f"/orders/{id}").json()["state"] == "confirmed"
