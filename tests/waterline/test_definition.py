"""The filters of the list are drawn from the server's definition, and from nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from .world import World


@pytest.mark.contract("VIS-09")
def test_filters_follow_the_definition(page: Page, world: World) -> None:
    definition: dict[str, Any] = world.get("/flows/definition")
    by_name = {field["field"]: field for field in [*definition["fields"], *definition["further_fields"]]}
    by_name["workflow_type"]["label"] = "Kind of order"
    by_name["state"]["options"] = [{"value": "paused", "label": "held back"}]
    definition["further_fields"].append(
        {**by_name["workflow_type"], "field": "warehouse", "label": "Warehouse", "query_parameter": "warehouse"}
    )
    page.route("**/api/flows/definition", lambda route: route.fulfill(json=definition))
    page.goto("/waterline/runs")
    menu = page.get_by_label("add a filter")
    expect(menu.locator("option").filter(has_text="Kind of order")).to_have_count(1)
    expect(menu.locator("option").filter(has_text="Warehouse")).to_have_count(1)
    states = page.get_by_role("group", name="states").get_by_role("button")
    expect(states).to_have_count(1)
    expect(states).to_contain_text("held back")
    page.goto("/waterline/runs?workflow_type=shop.order")
    expect(page.get_by_role("group", name="filters")).to_contain_text("kind of order")
