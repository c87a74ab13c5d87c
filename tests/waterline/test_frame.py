"""The frame around the screens: one stream for all tabs, a server that goes and comes back, namespaces, keys, clocks."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
from playwright.sync_api import Page, Request, Route, expect

from .conftest import NewPage
from .kit import ADMIN, Complaints, ServerProcess, settled, until

TABS = 10


def test_ten_tabs_of_a_browser_share_one_stream(lone: ServerProcess, new_page: NewPage) -> None:
    """A browser has six connections for a server, and a stream takes one of them for good."""
    first = new_page(base_url=lone.url)
    open_streams: set[Request] = set()
    first.context.on("request", lambda request: open_streams.add(request) if "/api/live" in request.url else None)
    first.context.on("requestfinished", lambda request: open_streams.discard(request))
    first.context.on("requestfailed", lambda request: open_streams.discard(request))
    tabs = [first, *(first.context.new_page() for _ in range(TABS - 1))]
    for tab in tabs:
        tab.goto("/waterline/runs")
        expect(tab.get_by_role("heading", level=1)).to_be_visible()
    lone.call(
        "POST", "/workflows", {"workflow_type": "order", "workflow_id": "seen-everywhere", "task_queue": "nobody"}
    )
    for tab in tabs:
        expect(
            tab.get_by_role("link", name="seen-everywhere")
            .or_(tab.get_by_role("button", name=re.compile("1 new")))
            .first
        ).to_be_visible()
    assert len(open_streams) == 1
    # The tab that reads for all of them is closed: another takes over.
    tabs[0].close()
    lone.call("POST", "/workflows", {"workflow_type": "order", "workflow_id": "seen-after", "task_queue": "nobody"})
    for tab in tabs[1:]:
        expect(
            tab.get_by_role("link", name="seen-after").or_(tab.get_by_role("button", name=re.compile("[12] new"))).first
        ).to_be_visible()


def test_a_server_that_is_gone_leaves_what_is_shown_and_comes_back(
    lone: ServerProcess, new_page: NewPage, complaints: Complaints
) -> None:
    complaints.allow(r"ERR_|Failed to load resource|503")
    lone.call("POST", "/workflows", {"workflow_type": "order", "workflow_id": "before", "task_queue": "nobody"})
    page = new_page(base_url=lone.url)
    page.goto("/waterline/runs")
    expect(page.get_by_role("link", name="before")).to_be_visible()
    lone.kill()
    expect(page.locator(".lost")).to_be_visible()
    expect(page.get_by_role("link", name="before")).to_be_visible()
    with lone.again() as back:
        expect(page.locator(".lost")).to_have_count(0)
        back.call("POST", "/workflows", {"workflow_type": "order", "workflow_id": "after", "task_queue": "nobody"})
        found = page.get_by_role("link", name="after").or_(page.get_by_role("button", name=re.compile("1 new")))
        expect(found.first).to_be_visible()


def test_a_namespace_is_part_of_every_address(lone: ServerProcess, new_page: NewPage) -> None:
    lone.call("POST", "/namespaces", {"name": "billing"})
    page = new_page(base_url=lone.url)
    page.goto("/waterline/")
    page.get_by_label("namespace").select_option("billing")
    expect(page).to_have_url(re.compile(r"ns=billing"))
    page.get_by_role("navigation").get_by_role("link", name="Queues").click()
    expect(page).to_have_url(re.compile(r"/waterline/queues\?ns=billing"))
    address = page.get_by_role("navigation").get_by_role("link", name="Runs").get_attribute("href")
    assert address == "/waterline/runs?ns=billing", "a link that is copied means the same"


def test_times_are_the_servers_whatever_the_browser_thinks(lone: ServerProcess, new_page: NewPage) -> None:
    lone.call("POST", "/workflows", {"workflow_type": "order", "workflow_id": "clocked", "task_queue": "nobody"})
    page = new_page(base_url=lone.url)
    page.clock.install(time="2001-01-01T00:00:00Z")
    page.goto("/waterline/runs")
    row = page.get_by_role("row").filter(has_text="clocked")
    expect(row.locator("time").first).to_have_text(re.compile(r"^(now|\d+(\.\d)? s ago)$"))


def test_letters_are_keys_outside_of_fields(page: Page) -> None:
    page.goto("/waterline/")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("r")
    expect(page).to_have_url(re.compile("/waterline/runs$"))
    page.keyboard.press("/")
    field = page.get_by_label("find or do", exact=True)
    expect(field).to_be_focused()
    page.keyboard.type("?order-1")
    assert page.get_by_role("dialog", name="Keys").count() == 0
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_an_environment_has_a_name_and_a_colour(lone: ServerProcess, new_page: NewPage) -> None:
    page = new_page(base_url=lone.url)
    body = lone.get("/session") | {"environment": {"name": "production", "colour": "#b3261e"}}
    page.route("**/api/session", lambda route: route.fulfill(json=body))
    page.goto("/waterline/")
    banner = page.locator(".environment")
    expect(banner).to_have_text("production")
    expect(banner).to_have_css("color", "rgb(179, 38, 30)")


def test_the_sign_in_names_product_and_environment(tmp_path: Path, new_page: NewPage, complaints: Complaints) -> None:
    complaints.allow("401")
    named = {"DW_TOKEN": ADMIN, "DW_ENVIRONMENT_NAME": "production"}
    with ServerProcess(tmp_path, environment=named) as server:
        page = new_page(base_url=server.url)
        page.goto("/waterline/runs")
        expect(page.get_by_label("Token")).to_be_visible()
        expect(page.locator(".product")).to_have_text(re.compile("Backstay Waterline ?production"))


def test_what_is_gone_is_not_listened_for(page: Page, complaints: Complaints) -> None:
    complaints.allow("404")
    asked: list[list[str]] = []

    def gone(route: Route) -> None:
        """The server has removed the run and knows no operation."""
        topics = httpx.URL(route.request.url).params.get_list("topic")
        asked.append(topics)
        if "run:invoice-1" in topics:
            route.fulfill(status=404, json={"reason": "instance_not_found", "workflow_id": "invoice-1"})
        else:
            route.fallback()

    page.clock.install()
    page.route("**/api/live?*", gone)
    settled(page, "/waterline/runs/invoice-1")
    until(lambda: page.evaluate("0") is None or asked)
    page.clock.run_for(60_000)
    assert asked == [["run:invoice-1"]]
    expect(page.get_by_text("Live updates are interrupted")).to_have_count(0)
    page.get_by_role("link", name="Runs").click()
    page.clock.run_for(1000)
    until(lambda: page.evaluate("0") is None or asked[1:])
    assert asked[1:] == [["runs"]]
