"""Overview: whether anything is stuck, why, and what to press."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from .conftest import NewPage
from .kit import VERSIONS, Complaints, ServerProcess, WorkerProcess, axe, looks, settled
from .world import CODE, World

HERE = "/waterline/"


def panel(page: Page, name: str) -> Any:
    return page.get_by_role("region", name=name, exact=True)


def asked(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def answer(page: Page, world: World, **changes: Any) -> None:
    """Overviews say something else than they do, in these fields."""
    body = world.get("/overview") | changes
    page.route("**/api/overview?*", lambda route: route.fulfill(json=body))


def headline(page: Page) -> Any:
    return page.get_by_role("heading", level=1)


def test_a_stuck_run_is_found_from_the_overview(page: Page) -> None:
    page.goto(HERE)
    expect(headline(page)).to_have_text(re.compile(r"^▲ \d+ things need attention$"))
    expect(page.get_by_text("✓")).to_have_count(0)
    expect(
        page.get_by_text(re.compile("^Every open run has something on disk that will resume it, checked"))
    ).to_be_visible()
    needs = panel(page, "Needs attention")
    blocked = needs.get_by_role("listitem").filter(
        has_text=re.compile("1 shipping run is blocked by .* no longer fits")
    )
    lonely = needs.get_by_role("listitem").filter(has_text="No live worker serves queue 'nowhere'")
    expect(lonely.get_by_text("dw worker FILE --queue nowhere")).to_be_visible()
    expect(lonely.get_by_role("button", name="copy the command")).to_be_visible()
    lonely.get_by_role("link", name="Show 1 run").click()
    expect(page).to_have_url(re.compile("/waterline/runs[?]"))
    assert asked(page) == {"attention": ["no_worker"], "queue": ["nowhere"], "bucket": ["running"]}
    page.go_back()
    blocked.get_by_role("link", name="Show 1 run").click()
    expect(page).to_have_url(re.compile("/waterline/runs[?]"))
    assert asked(page) == {"attention": ["blocked"], "workflow_type": ["shipping"], "bucket": ["running"]}
    expect(page.get_by_role("link", name="shipping-1")).to_be_visible()
    expect(page.get_by_role("link", name="stranded-1")).to_have_count(0)
    page.go_back()
    # To try the same code again is no help, so there is no button for it.
    expect(blocked.get_by_role("button")).to_have_count(0)
    blocked.get_by_role("link", name="history and code side by side").click()
    expect(page.get_by_role("region", name="history and code")).to_be_visible()


def test_how_the_open_runs_are_leads_to_them(page: Page) -> None:
    page.goto(HERE)
    states = page.get_by_role("list", name="open runs by state")
    expect(states.get_by_role("link", name=re.compile("1 blocked"))).to_be_visible()
    states.get_by_role("link", name=re.compile("sleeping")).click()
    expect(page).to_have_url(re.compile("/waterline/runs[?]state=sleeping&bucket=running$"))


def test_a_database_that_is_locked_is_said_at_once(
    lone: ServerProcess, new_page: NewPage, complaints: Complaints
) -> None:
    complaints.allow("503")
    start = {"workflow_type": "reminder", "workflow_id": "r-1", "task_queue": "default", "input": [9]}
    with WorkerProcess(lone.log.parent, CODE, lone.url, "default").ready():
        assert lone.call("POST", "/workflows", start).status_code == 201
        page = new_page(base_url=lone.url)
        page.goto(HERE)
        expect(headline(page)).to_have_text("✓ The one open run is moving or waiting as it should")
        (file,) = lone.log.parent.glob("*.db")
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            other.execute("begin immediate")
            with pytest.raises(httpx.TimeoutException):  # its commit waits
                httpx.post(
                    f"{lone.url}/api/workflows", json=start | {"workflow_id": "r-2"}, headers=VERSIONS, timeout=1
                )
            expect(headline(page)).to_have_text("▲ 1 thing needs attention")
            expect(panel(page, "Needs attention")).to_contain_text("database is locked")
            expect(page.get_by_text("✓")).to_have_count(0)
        expect(headline(page)).to_have_text(re.compile("^✓ .* moving or waiting as"))


def test_the_window_is_in_the_address_and_charts_are_tables_too(page: Page) -> None:
    page.goto(f"{HERE}?window=1h")
    flow = panel(page, "Flow")
    expect(flow.get_by_role("img", name="Runs of the last 15 min")).to_be_visible()
    flow.get_by_role("button", name="7 d").click()
    expect(flow.get_by_role("img", name="Runs of the last 1 d")).to_be_visible()
    assert asked(page) == {"window": ["7d"]}
    flow.get_by_role("button", name="Show as table").click()
    expect(flow.get_by_role("columnheader", name="failed")).to_be_visible()
    assert asked(page) == {"window": ["7d"], "table": ["flow"]}
    page.reload()
    expect(flow.get_by_role("button", name="7 d")).to_have_attribute("aria-pressed", "true")
    expect(flow.get_by_role("columnheader", name="failed")).to_be_visible()
    page.go_back()
    expect(flow.get_by_role("img", name="Runs of the last 15 min")).to_be_visible()


def test_charts_are_as_long_as_what_they_show(page: Page, world: World) -> None:
    """The world is minutes old: without a window in the address, its hour is shown, from its first run on."""
    page.goto(HERE)
    flow = panel(page, "Flow")
    expect(flow.get_by_role("button", name="1 h")).to_have_attribute("aria-pressed", "true")
    expect(flow.get_by_role("img", name="Runs of the last 15 min")).to_be_visible()
    day = world.get("/overview", params={"window": "24h"})
    points = day["series"]["points"]
    for hours, shown in ((20, "21 h"), (24, "24 h"), (3, "6 h")):
        began = [point | {"started": int(at == 24 - hours)} for at, point in enumerate(points)]
        answer(page, world, series=day["series"] | {"points": began}, totals=day["totals"] | {"started": 1})
        page.goto(HERE)
        expect(flow.get_by_role("img", name=f"Runs of the last {shown}", exact=True)).to_be_visible()
        expect(flow.get_by_role("button", name="24 h")).to_have_attribute("aria-pressed", "true")


def test_queues_types_and_wakes_lead_on(page: Page, world: World) -> None:
    page.goto(f"{HERE}?window=1h&table=tide")
    wakes = panel(page, "Upcoming wakes")
    expect(wakes.get_by_text(re.compile(r"\d+ runs in the next day"))).to_be_visible()
    expect(wakes.get_by_role("columnheader", name="runs").first).to_be_visible()
    nowhere = panel(page, "Queues").get_by_role("row", name=re.compile("^nowhere"))
    expect(nowhere).to_contain_text("none")
    nowhere.get_by_role("link").click()
    expect(page).to_have_url(f"{world.url}/waterline/queues/nowhere")
    page.go_back()
    hostile = panel(page, "Types").get_by_role("link", name="hostile <img")
    hostile.click()
    expect(page).to_have_url(re.compile("/waterline/runs[?]"))
    assert asked(page) == {"workflow_type": ['hostile <img src=x onerror="alert(1)">'], "bucket": ["all"]}


def test_each_type_has_its_trend_in_a_picture_and_in_numbers(page: Page, world: World) -> None:
    types = world.get("/overview")["types"]
    trend = {"started": [0, 6, *[0] * 10], "completed": [0, 2, *[0] * 10], "failed": [0, 1, *[0] * 10]}
    answer(page, world, types=types | {"busiest": [types["busiest"][0] | {"trend": trend}]})
    page.goto(HERE)
    said = "started 0 6 0 0 0 0 0 0 0 0 0 0, completed 0 2 0 0 0 0 0 0 0 0 0 0, failed 0 1 0 0 0 0 0 0 0 0 0 0"
    picture = panel(page, "Types").get_by_role("img", name=said, exact=True)
    expect(picture).to_be_visible()
    drawn = "all => all.map(one => { const { y, height } = one.getBBox(); return [y, height].map(Math.round); })"
    # Those that started go up from the middle; those that ended go down, the failed ones after the others.
    assert picture.locator("path").evaluate_all(drawn) == [[0, 50], [50, 17], [67, 8]]
    size = picture.bounding_box()
    assert size is not None
    assert (round(size["width"]), round(size["height"])) == (60, 18)


def test_types_say_where_their_time_goes(page: Page) -> None:
    page.goto(HERE)
    row = panel(page, "Where the time goes").get_by_role("row", name=re.compile(r"^shop.order \d+( (> )?\d+ %){6}$"))
    expect(row).to_have_count(1)
    widths = row.locator(".spent span").evaluate_all("all => all.map(one => one.getBoundingClientRect().width)")
    whole = row.locator(".spent").evaluate("one => one.getBoundingClientRect().width")
    assert abs(sum(widths) - whole) < 2, "the parts of the bar are all of it"


def test_retries_are_tried_now_after_a_look_at_what_that_writes(lone: ServerProcess, new_page: NewPage) -> None:
    with WorkerProcess(lone.log.parent, CODE, lone.url, "default").ready():
        start = {"workflow_type": "delivery", "workflow_id": "late-1", "task_queue": "default", "input": ["parcel 1"]}
        page = new_page(base_url=lone.url)
        page.goto(HERE)
        expect(page.get_by_role("heading", name="No run yet")).to_be_visible()
        assert lone.call("POST", "/workflows", start).status_code == 201
        cause = page.get_by_role("listitem").filter(has_text="1 delivery run is retrying activity carrier")
        cause.get_by_role("button", name="Retry now").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_role("region", name="what would be written")).to_contain_text("late-1")
        dialog.get_by_role("button", name=re.compile(r"^Retry now \d+ runs?$")).click()
        expect(dialog).to_have_count(0)
        done = page.get_by_role("group", name="what was done")
        expect(done).to_contain_text("Retry now, 1 run: 1 retry dispatched.")
        done.get_by_role("link", name="What became of each run").click()
        expect(page.get_by_role("region", name="what was done")).to_contain_text("late-1")
    (operation,) = lone.get("/bulk")["bulk_operations"]
    assert (operation["action"], operation["total"]) == ("retry_now", 1)


def test_what_was_refused_is_said_where_it_was_pressed(page: Page) -> None:
    def begun(route: Route) -> None:
        if '"dry_run":true' in (route.request.post_data or ""):
            route.fallback()
        else:
            route.fulfill(status=202, json={"bulk_id": "b-1"})

    page.route("**/api/bulk", begun)
    told = {"status": "completed", "total": 130, "done": 130, "accepted": 120, "rejected": 10, "failed": 0}
    told |= {"outcomes": {"retry_dispatched": 120, "rejected": 10}, "reasons": {"activity_attempt_running": 10}}
    page.route(
        "**/api/bulk/b-1?*",
        lambda route: route.fulfill(json=told | {"bulk_id": "b-1", "ended_at": "2026-01-01T00:00:00Z", "results": []}),
    )
    page.goto(HERE)
    page.get_by_role("listitem").filter(has_text="delivery run").get_by_role("button", name="Retry now").click()
    page.get_by_role("dialog").get_by_role("button", name=re.compile(r"^Retry now \d+ runs?$")).click()
    done = page.get_by_role("group", name="what was done")
    expect(done).to_contain_text("120 retry dispatched, 10 refused (activity attempt running)")
    expect(done.get_by_role("link")).to_have_attribute("href", "/waterline/runs?bulk=b-1")


def test_an_empty_server_teaches_the_first_steps(lone: ServerProcess, new_page: NewPage) -> None:
    page = new_page(base_url=lone.url)
    page.goto(HERE)
    expect(page.get_by_text(f"dw worker hello.py --server {lone.url}", exact=True)).to_be_visible()
    expect(page.get_by_text("dw dev hello.py")).to_be_visible()
    assert axe(page) == []
    started = {"workflow_type": "hello", "workflow_id": "hello-1", "task_queue": "default", "input": ["Ada"]}
    assert lone.call("POST", "/workflows", started).status_code == 201
    expect(panel(page, "Needs attention")).to_contain_text("No live worker serves queue 'default'")


def cause(name: str, unit: str, link: str | None, **changes: Any) -> dict[str, Any]:
    shown = {"name": name, "severity": "error", "check": "task_transport", "sentence": f"It is {name}.", "count": 2}
    shown |= {"unit": unit, "exact": True, "since": None, "age_seconds": None, "subject": {}, "action": None}
    return shown | {"link": link, "example": None} | changes


def test_every_cause_has_its_list_and_its_proof(page: Page, world: World) -> None:
    stranded = {"status": "stranded", "open_runs": 7, "stranded": 2, "proven_at": "2026-01-01T00:00:00Z"}
    repair_pass = {"label": "Run a repair pass", "operator": "repair_pass", "command": "dw repair-pass"}
    expected = [
        (
            cause("repair_needed", "run", "/api/flows/running?attention=repair_needed", action=repair_pass),
            "/waterline/runs?attention=repair_needed&bucket=running",
            "Show 2 runs",
        ),
        (
            cause("missed_schedules", "schedule", "/api/schedules?status=active"),
            "/waterline/schedules?status=active",
            "Show 2 schedules",
        ),
        (
            cause("throttled", "task", "/api/task-queues/a b/tasks", subject={"task_queue": "a b"}, severity="info"),
            "/waterline/queues/a%20b",
            "Show 2 tasks",
        ),
        (
            cause("failing", "run", "/api/flows/failed?workflow_type=x", exact=False),
            "/waterline/runs?workflow_type=x&bucket=failed",
            "Show at least 2 runs",
        ),
        (cause("nodes_gone", "node", "/api/nodes"), "/waterline/system?section=server", "Show 2 nodes"),
    ]
    verdict = {"status": "error", "sentence": "4 things need attention.", "needs_attention": 4}
    answer(page, world, certificate=stranded, verdict=verdict, causes=[one for one, _, _ in expected])
    page.goto(HERE)
    expect(headline(page)).to_have_text("▲ 4 things need attention")
    expect(page.get_by_role("link", name="2 open runs")).to_have_attribute("href", "/waterline/system")
    for one, to, said in expected:
        row = page.get_by_role("listitem").filter(has_text=one["sentence"])
        expect(row.get_by_role("link", name=said)).to_have_attribute("href", to)
    # What needs nobody stands apart, and is not in the verdict.
    expect(panel(page, "Goes on by itself").get_by_role("listitem")).to_have_count(1)
    expect(panel(page, "Needs attention").get_by_role("listitem")).to_have_count(4)
    page.get_by_role("button", name="Run a repair pass").click()
    page.get_by_role("button", name="Show what would be written").click()
    expect(page.get_by_label("what would be written")).to_contain_text("shipping-1")


def test_a_server_that_is_well_says_so_and_what_it_cannot_prove(page: Page, world: World) -> None:
    sentence = "All 2,408 open runs are moving or waiting as they should."
    well = {"status": "ok", "sentence": sentence, "needs_attention": 0}
    answer(page, world, certificate=None, engine="elsewhere", verdict=well, causes=[], fleet=None)
    page.goto(HERE)
    expect(headline(page)).to_have_text(f"✓ {sentence.removesuffix('.')}")
    expect(page.get_by_text("This server has no proof")).to_be_visible()
    expect(panel(page, "Needs attention").get_by_role("listitem")).to_have_count(0)
    assert axe(page) == []


def test_a_viewer_sees_what_helps_and_cannot_press_it(page: Page) -> None:
    page.route(
        "**/api/session", lambda route: route.fulfill(json={"roles": ["viewer"], "default_namespace": "default"})
    )
    page.goto(HERE)
    button = page.get_by_role("button", name="Retry now").first
    expect(button).to_be_disabled()
    expect(button).to_have_attribute("title", re.compile("viewer"))


def test_an_overview_that_fails_says_so_and_comes_back(page: Page, complaints: Complaints) -> None:
    complaints.allow("500")
    page.route(
        "**/api/overview?*", lambda route: route.fulfill(status=500, body='{"reason": "broken", "message": "No."}')
    )
    page.goto(HERE)
    expect(page.get_by_role("alert")).to_contain_text("broken")
    page.unroute("**/api/overview?*")
    page.get_by_role("button", name="Try again").click()
    expect(panel(page, "Needs attention")).to_be_visible()


@pytest.mark.parametrize(("scheme", "width"), looks(1280, 390))
def test_everybody_can_use_it(new_page: NewPage, scheme: str, width: int) -> None:
    page = new_page(color_scheme=scheme, viewport={"width": width, "height": 900})
    settled(page, f"{HERE}?table=flow")
    expect(panel(page, "Flow").get_by_role("table")).to_be_visible()
    assert axe(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
