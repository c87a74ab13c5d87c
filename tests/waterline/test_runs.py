"""The list of runs: finding them, the address as its state, live rows that do not jump, and one command to many runs."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from backstay import AsyncClient

from .conftest import NewPage
from .kit import VERSIONS, VIEWER, ServerProcess, axe, looks, settled, too_wide, until
from .world import HOSTILE_ID, World


def ids(page: Page) -> Locator:
    """The ids that are listed, without the runs that other tests have begun in the same world."""
    return page.locator("#runs tbody .c-workflow_id").filter(has_not_text=re.compile(r"own-\d"))


def find(page: Page, text: str) -> None:
    box = page.get_by_role("combobox", name="find runs")
    box.fill(text)
    box.press("Enter")


def begin(server: ServerProcess, workflow_id: str, **fields: Any) -> None:
    body = {"workflow_type": "order", "workflow_id": workflow_id, "task_queue": "nowhere"} | fields
    answer = server.call("POST", "/workflows", body)
    assert answer.status_code == 201, answer.text


# -- finding


@pytest.mark.parametrize(
    ("text", "found", "address"),
    [
        ("invo", ["invoice-1"], "q=invo"),
        ("shop.batch", ["batch-1"], "q=shop.batch"),
        ("order-4711", ["order-1"], "q=order-4711"),
        ("state:blocked", ["shipping-1"], "state=blocked"),
        ("type:shop.order label.team:blue", ["order-1"], "workflow_type=shop.order&label[team]=blue"),
        ("inv attribute.customer:acme", ["invoice-1"], "q=inv&attribute[customer]=acme"),
        ("schedule:nightly:trig", ["schedule:nightly:trigger:1"], "q=schedule:nightly:trig"),
    ],
)
def test_the_box_finds_by_id_type_key_and_field(page: Page, text: str, found: list[str], address: str) -> None:
    settled(page, "/waterline/runs")
    find(page, text)
    expect(ids(page)).to_have_text(found)
    expect(page).to_have_url(
        re.compile(
            re.escape(address)
            .replace("%", "")
            .replace(":", "(:|%3A)")
            .replace(r"\[", r"(\[|%5B)")
            .replace(r"\]", r"(\]|%5D)")
            + "$"
        )
    )
    page.reload()  # the address is the whole state
    expect(ids(page)).to_have_text(found)


def test_suggestions_complete_fields_and_values_by_keyboard(page: Page) -> None:
    settled(page, "/waterline/runs")
    page.get_by_role("combobox", name="find runs").press_sequentially("stat")
    options = page.locator("#offers li")
    expect(options.first).to_contain_text("state:")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(options.first).to_contain_text("waiting")
    page.keyboard.type("bl")
    expect(options).to_have_count(1)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(ids(page)).to_have_text(["shipping-1"])


def test_filters_are_chips_of_the_servers_definition(page: Page) -> None:
    settled(page, "/waterline/runs?workflow_type=shop.approval&started_after=2020-01-01T00:00:00Z")
    states = page.get_by_role("group", name="states")
    states.get_by_role("button", name=re.compile(r"paused \d+")).click()
    expect(ids(page)).to_have_text(["paused-1"])
    states.get_by_role("button", name=re.compile(r"terminated \d+")).click()
    expect(ids(page)).to_have_text(["paused-1", "terminated-1"])
    page.get_by_role("button", name="remove started after").click()
    expect(page).not_to_have_url(re.compile("started_after"))
    page.get_by_label("add a filter").select_option(label="Waits for")
    expect(page.locator("#offers li").first).to_contain_text("activity")
    page.keyboard.type("condition")
    page.keyboard.press("Enter")
    expect(ids(page)).to_have_text(["paused-1"])
    page.get_by_role("button", name="Clear").click()
    expect(ids(page).filter(has_text="welcome-1")).to_be_visible()


def test_the_address_restores_filters_columns_and_order(page: Page) -> None:
    settled(page, "/waterline/runs?label[team]=blue&sort=events&order=asc&columns=queue,history_event_count")
    head = page.locator("#runs thead th")
    expect(head).to_have_text(["", "state", "workflow id", "queue", "events↑"])
    expect(ids(page)).to_have_text(["invoice-1", "order-1"])
    page.get_by_role("button", name="events").click()
    expect(ids(page)).to_have_text(["order-1", "invoice-1"])
    expect(page.locator("#runs th[aria-sort]")).to_have_attribute("aria-sort", "descending")
    page.get_by_role("button", name="Columns").click()
    page.get_by_role("checkbox", name="labels").check()
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    expect(page.locator("#runs tbody tr", has_text="team=blue region=emea")).to_be_visible()
    page.go_back()
    expect(ids(page)).to_have_text(["invoice-1", "order-1"])


def test_what_cannot_be_asked_is_said_and_can_be_taken_away(page: Page, complaints: Any) -> None:
    complaints.allow("422")
    settled(page, "/waterline/runs?stat=blocked")
    expect(page.get_by_role("alert")).to_contain_text("did you mean 'state'")
    page.get_by_role("button", name="remove stat blocked").click()
    expect(ids(page).first).to_be_visible()


def test_ids_and_messages_of_attackers_are_text(page: Page) -> None:
    settled(page, "/waterline/runs?q=hostile&columns=workflow_type,why,visibility_labels,business_key")
    row = page.locator("#runs tbody tr", has_text="hostile-~")
    expect(row).to_contain_text('<img src=x onerror="alert(1)">')
    expect(row.get_by_role("link")).to_have_text(HOSTILE_ID)
    assert page.locator("main img, main script").count() == 0
    box = row.bounding_box()
    assert box is not None
    assert box["height"] < 32


# -- saved views


def test_a_view_is_saved_changed_and_deleted(lone: ServerProcess, new_page: NewPage) -> None:
    for number, team in enumerate(("shop", "bank")):
        begin(lone, f"{team}-{number}", workflow_type=team)
    page = new_page(base_url=lone.url)
    settled(page, "/waterline/runs?workflow_type=shop")
    page.get_by_role("button", name="Save view").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("of the shop")
    dialog.get_by_role("button", name="Save", exact=True).click()
    expect(page).to_have_url(re.compile(r"/runs\?view=[0-9A-Z]+$"))
    expect(page.get_by_label("view", exact=True).locator("option:checked")).to_have_text("of the shop")
    expect(ids(page)).to_have_text(["shop-0"])
    page.reload()
    expect(ids(page)).to_have_text(["shop-0"])
    page.get_by_role("button", name="Rename view").click()
    dialog.get_by_label("Name").fill("all shops")
    dialog.get_by_role("button", name="Rename", exact=True).click()
    expect(page.get_by_label("view", exact=True).locator("option:checked")).to_have_text("all shops")
    page.get_by_role("button", name="remove workflow type shop").click()  # leaves the view, which stays as it was
    expect(ids(page)).to_have_text(["bank-1", "shop-0"])
    page.get_by_label("view", exact=True).select_option(label="all shops")
    expect(ids(page)).to_have_text(["shop-0"])
    page.get_by_role("button", name="Delete view").click()
    dialog.get_by_role("button", name="Delete", exact=True).click()
    expect(ids(page)).to_have_text(["bank-1", "shop-0"])
    assert all(view["system"] for view in lone.get("/saved-views")["saved_views"])


# -- live


def test_new_runs_wait_behind_a_button_and_rows_change_where_they_are(lone: ServerProcess, new_page: NewPage) -> None:
    for number in range(3):
        begin(lone, f"old-{number}")
    page = new_page(base_url=lone.url)
    settled(page, "/waterline/runs")
    rows = page.locator("#runs tbody tr")
    expect(rows).to_have_count(3)
    places = [row.bounding_box() for row in rows.all()]
    for number in range(4):
        begin(lone, f"new-{number}")
    lone.call("POST", "/workflows/old-1/terminate")
    fresh = page.get_by_role("button", name="4 new")
    expect(fresh).to_be_visible()
    expect(rows.nth(1)).to_contain_text("terminated")
    expect(ids(page)).to_have_text(["old-2", "old-1", "old-0"])
    assert [row.bounding_box() for row in rows.all()] == places
    fresh.click()
    expect(ids(page)).to_have_text([*(f"new-{number}" for number in (3, 2, 1, 0)), "old-2", "old-1", "old-0"])
    expect(fresh).to_be_hidden()


def test_rows_that_are_closed_are_not_asked_for_again(lone: ServerProcess, new_page: NewPage) -> None:
    for number in range(2):
        begin(lone, f"old-{number}")
    page = new_page(base_url=lone.url)
    settled(page, "/waterline/runs?bucket=running")
    lone.call("POST", "/workflows/old-1/terminate")
    expect(page.locator("#runs tbody tr").first).to_contain_text("terminated")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    begin(lone, "new-1")
    expect(page.get_by_role("button", name="1 new")).to_be_visible()
    assert any("/api/flows/running?" in url for url in asked)
    assert not [url for url in asked if "run_id=" in url]
    expect(ids(page)).to_have_text(["old-1", "old-0"])


def test_older_pages_have_an_address(lone: ServerProcess, new_page: NewPage) -> None:
    for number in range(60):
        begin(lone, f"run-{number:02}")
    page = new_page(base_url=lone.url)
    settled(page, "/waterline/runs")
    expect(ids(page)).to_have_count(50)
    page.get_by_role("button", name="Older").click()
    expect(ids(page)).to_have_text([f"run-{number:02}" for number in range(9, -1, -1)])
    page.reload()
    expect(ids(page)).to_have_count(10)
    page.get_by_role("button", name="Newest").click()
    expect(ids(page).first).to_have_text("run-59")


def test_an_order_that_looked_at_a_part_says_so(page: Page, world: World) -> None:
    page.goto("/waterline/runs?sort=duration")
    said = page.get_by_text("Sorted among the newest")
    expect(page.get_by_role("table", name="runs")).to_be_visible()
    expect(said).to_have_count(0)
    body = world.get("/flows/all", params={"sort": "duration"}) | {"sorted_among": 1000}
    page.route("**/api/flows/all?*", lambda route: route.fulfill(json=body))
    page.goto("/waterline/runs?sort=duration")
    expect(said).to_contain_text("1,000 runs only: an older run may belong above these")


def test_the_first_run_comes_into_an_empty_list(lone: ServerProcess, new_page: NewPage) -> None:
    page = new_page(base_url=lone.url)
    settled(page, "/waterline/runs")
    expect(page.get_by_text("dw start shop.py:order order-1")).to_be_visible()
    begin(lone, "first-1")
    expect(ids(page)).to_have_text(["first-1"])


# -- many runs


async def begin_many(url: str, count: int) -> None:
    """Every fifth is of the team `shop`."""
    async with AsyncClient(url) as client:
        bank, shop = (client.options(queue="nowhere", labels={"team": team}) for team in ("bank", "shop"))
        starts = ((bank if number % 5 else shop).start("order", f"order-{number}") for number in range(count))
        await asyncio.gather(*starts)


def test_all_that_match_are_cancelled_and_no_other(lone: ServerProcess, new_page: NewPage) -> None:
    with ThreadPoolExecutor(1) as beside:  # this thread has the loop of the browser
        beside.submit(asyncio.run, begin_many(lone.url, 5000)).result()
    page = new_page(base_url=lone.url)
    settled(page, "/waterline/runs?label[team]=shop")
    expect(page.get_by_text("1,000 runs")).to_be_visible()
    page.get_by_role("checkbox", name="select all on this page").click()
    page.get_by_role("button", name="all 1,000 runs that match").click()
    page.get_by_role("button", name="Cancel", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("tbody tr")).to_have_count(10)
    expect(dialog.locator("tbody tr").first).to_contain_text("CancelRequested, WorkflowCancelled")
    assert axe(page, within="dialog") == []
    dialog.get_by_label("Reason").fill("wrong prices")
    dialog.get_by_label(re.compile("^Type 1,?000 to confirm")).fill("1000")
    dialog.get_by_role("button", name="Cancel 1,000 runs").click()
    operation = page.get_by_role("region", name="Cancel: 1,000 runs")
    expect(operation.get_by_text("1,000 of 1,000")).to_be_visible()
    expect(operation).to_contain_text("completed")
    expect(operation).to_contain_text("1,000 cancelled")
    expect(operation).to_contain_text("wrong prices")
    expect(page).to_have_url(re.compile("bulk="))
    expect(operation.locator("tbody tr")).to_have_count(100)
    expect(page.locator("#runs tbody tr", has_text="cancelled")).to_have_count(50)
    assert lone.get("/flows/cancelled/count", params={"label[team]": "shop"})["count"] == 1000
    assert lone.get("/flows/cancelled/count")["count"] == 1000
    assert lone.get("/flows/running/count")["count"] == 4000


def test_more_than_a_hundred_have_to_be_typed(lone: ServerProcess, new_page: NewPage) -> None:
    for number in range(101):
        begin(lone, f"order-{number}")
    page = new_page(base_url=lone.url)
    settled(page, "/waterline/runs")
    page.get_by_role("checkbox", name="select all on this page").click()
    page.get_by_role("button", name="all 101 runs that match").click()
    pause = page.get_by_role("button", name="Pause", exact=True)
    expect(pause).to_be_disabled()  # every run of a namespace is nothing that anybody means
    expect(pause).to_have_attribute("title", re.compile("add a filter"))
    find(page, "type:order")
    page.get_by_role("checkbox", name="select all on this page").click()
    page.get_by_role("button", name="all 101 runs that match").click()
    pause.click()
    go = page.get_by_role("dialog").get_by_role("button", name="Pause 101 runs")
    expect(go).to_be_disabled()
    page.get_by_label("Type 101 to confirm").fill("101")
    go.click()
    operation = page.get_by_role("region", name="Pause: 101 runs")
    expect(operation).to_contain_text("101 of 101")
    until(lambda: lone.get("/flows/all/count", params={"state": "paused"})["count"] == 101)


def test_an_operation_that_is_under_way_can_be_stopped(lone: ServerProcess, new_page: NewPage) -> None:
    begin(lone, "run-1")
    bulk = lone.call("POST", "/bulk", {"action": "pause", "filter": {"workflow_type": "order"}}).json()["bulk_id"]
    until(lambda: lone.get(f"/bulk/{bulk}")["ended_at"])
    page = new_page(base_url=lone.url)

    def slow(route: Route) -> None:
        """It has ended long ago, which the page does not see."""
        headers = {name: value for name, value in route.request.headers.items() if name != "if-none-match"}
        told = route.fetch(headers=headers).json() | {"status": "running", "ended_at": None, "done": 0, "results": []}
        route.fulfill(json=told)

    page.route(f"**/api/bulk/{bulk}", slow)
    settled(page, f"/waterline/runs?bulk={bulk}")
    with page.expect_request(f"**/api/bulk/{bulk}/stop"):
        page.get_by_role("button", name="Stop").click()
    page.unroute_all(behavior="wait")
    page.reload()
    expect(page.get_by_role("region", name="Pause: 1 run")).to_contain_text("1 of 1")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    page.get_by_role("button", name="close the operation").click()
    expect(page.get_by_role("region", name="Pause: 1 run")).to_be_hidden()
    page.get_by_role("button", name="Operations").click()
    past = page.get_by_role("dialog", name="Operations")
    expect(past.get_by_role("row", name="Pause 1 of 1 completed")).to_be_visible()
    past.get_by_role("button", name="Pause").click()
    expect(past).to_be_hidden()
    expect(page.get_by_role("region", name="Pause: 1 run")).to_contain_text("1 of 1")


def test_by_keyboard_alone(lone: ServerProcess, new_page: NewPage) -> None:
    for number in range(6):
        begin(lone, f"run-{number}")
    page = new_page(base_url=lone.url)
    settled(page, "/waterline/runs")
    expect(ids(page)).to_have_count(6)
    for key in ("j", "j", "x", "j", "k", "j", "j", "X"):
        page.keyboard.press(key)
    chosen = page.locator("#runs tbody tr.picked .c-workflow_id")
    expect(chosen).to_have_text(["run-4", "run-3", "run-2"])
    expect(page.locator("#runs tbody tr:focus-within .c-workflow_id")).to_have_text("run-2")
    page.keyboard.press("o")
    expect(page).to_have_url(re.compile("/waterline/runs/run-2$"))


def test_shift_selects_a_range(lone: ServerProcess, new_page: NewPage) -> None:
    for number in range(5):
        begin(lone, f"run-{number}")
    page = new_page(base_url=lone.url)
    settled(page, "/waterline/runs")
    page.get_by_label("select run-3").click()
    page.get_by_label("select run-1").click(modifiers=["Shift"])
    expect(page.get_by_role("group", name="selection")).to_contain_text("3 runs")
    page.get_by_role("button", name="Terminate", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Terminate 3 runs").click()
    expect(page.locator("#runs tbody tr", has_text="terminated")).to_have_count(3)
    assert {run["workflow_id"] for run in lone.get("/flows/running")["flows"]} == {"run-0", "run-4"}


def test_a_viewer_sees_and_cannot(guarded: ServerProcess, new_page: NewPage) -> None:
    page = new_page(base_url=guarded.url)
    page.request.post(f"{guarded.url}/api/session", data={"token": VIEWER}, headers=VERSIONS)
    settled(page, "/waterline/runs")
    page.get_by_label("select kept-1").click()
    for name in ("Cancel", "Terminate", "Pause", "Resume", "Repair", "Retry now", "Signal", "Archive", "Save view"):
        button = page.get_by_role("button", name=name, exact=True)
        expect(button).to_be_disabled()
        expect(button).to_have_attribute("title", re.compile("viewer"))


# -- for everybody


@pytest.mark.parametrize(("scheme", "width"), looks(1280, 768, 390))
def test_nothing_keeps_people_out(world: World, new_page: NewPage, scheme: Any, width: int) -> None:
    page = new_page(color_scheme=scheme, viewport={"width": width, "height": 800})
    settled(page, "/waterline/runs?is_current_run=true")
    page.locator("#runs tbody input").first.click()
    assert axe(page) == []
    assert too_wide(page) <= 0
    page.get_by_role("combobox", name="find runs").fill("s")
    expect(page.locator("#offers li").first).to_be_visible()
    assert axe(page) == []
