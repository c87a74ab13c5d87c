"""The page of a run: its sentence and actions, its timeline, and time travel."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from backstay import Backstay, activity, child, side_effect, workflow

from ..selection import first_of
from .conftest import NewPage
from .kit import Complaints, ServerProcess, WorkerProcess, axe, looks
from .world import CODE, HOSTILE_ID, World

SHIFTS = """() => {
  window.shifted = 0;
  new PerformanceObserver((list) => { for (const one of list.getEntries()) if (!one.hadRecentInput) window.shifted += one.value; })
    .observe({ type: "layout-shift" });
}"""


def open_run(page: Page, workflow_id: str, query: str = "") -> None:
    page.goto(f"/waterline/runs/{quote(workflow_id, safe='')}{query}")
    expect(page.locator(".rows .row").first).to_be_visible()


def why(page: Page) -> Locator:
    return page.get_by_role("region", name="why")


def side(page: Page) -> Locator:
    return page.get_by_role("region", name="selected row")


def row(page: Page, name: str | re.Pattern[str]) -> Locator:
    return page.get_by_role("option", name=name)


@pytest.mark.parametrize(
    ("workflow_id", "badge", "sentence", "action", "selected"),
    [
        (
            "approval-1",
            "waiting",
            "until its condition “approved” holds",
            "Send it a signal or an update",
            "Step 1: approved",
        ),
        ("shipping-1", "blocked", "Blocked for", "Deploy code that fits the recorded steps", "Workflow code"),
        ("stranded-1", "no worker", "No live worker serves queue 'nowhere'", "dw worker FILE", "Workflow code"),
        ("delivery-1", "retrying", "carrier has failed 1 of 21 times", "Retry now", "Step 1: carrier"),
        (
            "family-1",
            "waiting",
            "Waits for 2 of 4 children (patient_child)",
            "Look at its children",
            "Step 3: patient_child",
        ),
        ("order-1", "failed", "the card was declined for 4200 cents", None, "Step 2: charge"),
    ],
)
def test_a_run_says_why_it_is_where_it_is_and_what_to_press(
    page: Page, workflow_id: str, badge: str, sentence: str, action: str | None, selected: str
) -> None:
    open_run(page, workflow_id)
    expect(page.get_by_role("heading", level=1)).to_have_text(workflow_id)
    expect(page.locator(".badge")).to_contain_text(badge)
    expect(why(page)).to_contain_text(sentence)
    if action is not None:
        expect(why(page)).to_contain_text(action)
    expect(side(page).get_by_role("heading")).to_have_text(selected)


def test_what_led_there_leads_to_the_events(page: Page) -> None:
    open_run(page, "delivery-1")
    page.get_by_role("button", name="Show what led here").click()
    event = why(page).get_by_role("listitem").filter(has_text="ActivityRetryScheduled carrier")
    expect(event).to_contain_text("because of 4")
    event.get_by_role("button", name="5").click()
    expect(page).to_have_url(re.compile(r"tab=history&event=5$"))


def test_the_next_attempt_is_made_at_once_from_the_page(world: World, page: Page) -> None:
    workflow_id = world.begin("delivery", "parcel 2")
    world.reach(workflow_id, "tries_again")
    open_run(page, workflow_id)
    why(page).get_by_role("button", name="Retry now").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Show what would be written").click()
    expect(dialog.get_by_label("what would be written")).to_contain_text("event ActivityRetryRequested")
    dialog.get_by_label("Reason").fill("the carrier is back")
    dialog.get_by_role("button", name="Retry now").click()
    expect(dialog).to_have_count(0)
    expect(why(page)).to_contain_text("carrier has failed 2 of 21 times")
    expect(row(page, re.compile("step 1, carrier, backoff, 2 attempts"))).to_be_visible()


def test_actions_that_are_not_possible_say_why(world: World, page: Page) -> None:
    workflow_id = world.begin("shop.approval", {"cents": 5})
    world.reach(workflow_id, "waits_for_condition")
    open_run(page, workflow_id)
    menu = page.locator("details.menu")
    menu.get_by_text("Actions").click()
    archive = menu.get_by_role("listitem").filter(has_text="Archive")
    expect(archive.get_by_role("button")).to_be_disabled()
    expect(archive).to_contain_text("It has not ended yet.")
    menu.get_by_role("button", name="Pause").click()
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(page.locator(".badge")).to_contain_text("paused")
    expect(why(page).get_by_role("button", name="Resume")).to_be_enabled()


def test_a_run_is_watched_until_it_ends_and_nothing_jumps(world: World, page: Page) -> None:
    workflow_id = world.begin("shop.approval", {"cents": 5})
    world.reach(workflow_id, "waits_for_condition")
    open_run(page, workflow_id)
    expect(page.locator(".badge")).to_contain_text("waiting")
    expect(side(page)).to_contain_text("Step 1")
    page.evaluate(SHIFTS)
    world.call("POST", f"/workflows/{workflow_id}/signal/approve", {"input": ["Ada"]})
    expect(page.locator(".badge")).to_contain_text("completed")
    expect(why(page)).to_contain_text("Completed")
    expect(row(page, re.compile("condition approved, satisfied"))).to_be_visible()
    assert page.evaluate("window.shifted") <= 0.02


def test_a_run_that_continues_while_it_is_watched_says_so(world: World, page: Page, tmp_path: Path) -> None:
    queue = f"later-{tmp_path.name}"
    workflow_id = world.begin("poller", 0, task_queue=queue)
    open_run(page, workflow_id)
    expect(page.locator(".badge")).to_contain_text("no worker")
    with WorkerProcess(tmp_path, CODE, world.url, queue).ready():
        expect(page.get_by_text("The run continued as run 4, which is shown now.")).to_be_visible()
        expect(why(page)).to_contain_text("Waits for signal payment")
        page.get_by_role("link", name="Go back to run 1").click()
        expect(why(page)).to_contain_text("Continued as run 2")
        why(page).get_by_role("link", name="Look at the next run").click()
        expect(why(page)).to_contain_text("Continued as run 3")
        page.get_by_label("run", exact=True).select_option(label="run 4, current: waiting")
        expect(why(page)).to_contain_text("Waits for signal payment")


def test_rows_are_chosen_by_keys_and_lead_to_their_events(page: Page) -> None:
    open_run(page, "batch-1")
    rows = page.get_by_role("listbox")
    rows.focus()
    for _ in range(13):
        rows.press("ArrowDown")
    expect(side(page).get_by_role("heading")).to_have_text("Step 12: pack")
    expect(row(page, re.compile("step 12, pack"))).to_have_attribute("aria-selected", "true")
    expect(side(page)).to_contain_text("the scale did not answer")
    rows.press("End")
    expect(side(page).get_by_role("heading")).to_have_text("Step 19: pack")
    page.reload()
    expect(side(page).get_by_role("heading")).to_have_text("Step 19: pack")
    side(page).get_by_role("button", name="event 52").click()
    expect(page).to_have_url(re.compile(r"tab=history&event=52$|event=52&.*tab=history|tab=history.*event=52"))


def test_time_travel_shows_the_state_at_any_event(world: World, page: Page) -> None:
    open_run(page, "batch-1", "?at=30")
    then = page.get_by_role("region", name="state at event 30")
    told = world.get("/workflows/batch-1/at/30")
    expect(then).to_contain_text(told["event_type"])
    expect(then).to_contain_text(told["summary"]["state"])
    expect(then).to_contain_text(f"Open waits ({told['open_wait_count']})")
    slider = page.get_by_role("slider", name="State at event")
    slider.press("Home")
    first = page.get_by_role("region", name="state at event 1")
    expect(first).to_contain_text("StartAccepted")
    expect(page).to_have_url(re.compile("at=1$"))
    slider.press("ArrowRight")
    expect(page.get_by_role("region", name="state at event 2")).to_contain_text("WorkflowStarted")
    page.get_by_role("button", name="Now").click()
    expect(page).not_to_have_url(re.compile("at="))
    expect(side(page)).to_be_visible()


ROUND = 953  # events: 950 side effects, and an activity that is scheduled, started and completed


@activity
def count_on(number: int) -> int:
    return number + 1


@workflow
def marathon(rounds: int) -> int:
    reached = 0
    for _ in range(rounds):
        for _ in range(950):
            side_effect(int)
        reached = count_on(reached)
    return reached


@pytest.mark.parametrize("rounds", first_of([8, 52], 1, "fifty thousand events; eight thousand take the same way"))
def test_time_travel_through_a_long_history(tmp_path: Path, new_page: NewPage, rounds: int) -> None:
    with Backstay(tmp_path / "backstay.db", [marathon, count_on]) as app:
        assert app.execute(marathon, "long-1", rounds) == rounds
    with ServerProcess(tmp_path, "--auth", "none") as server:
        last = server.get("/workflows/long-1/summary")["events"]
        assert last == 2 + rounds * ROUND + 1
        page = new_page(base_url=server.url)
        scheduled = 2 + rounds // 2 * ROUND + 951
        open_run(page, "long-1", f"?at={scheduled}")
        slider = page.get_by_role("slider", name="State at event")
        for at, event, activities in (
            (scheduled, "ActivityScheduled", 1),
            (scheduled + 1, "ActivityStarted", 1),
            (scheduled + 2, "ActivityCompleted", 0),
            (scheduled + 3, "SideEffectRecorded", 0),
        ):
            then = page.get_by_role("region", name=f"state at event {at}")
            expect(then).to_contain_text(f"{at} {event}")
            expect(then).to_contain_text(f"Open activities ({activities})")
            slider.press("ArrowRight")
        slider.press("End")
        then = page.get_by_role("region", name=f"state at event {last}")
        expect(then).to_contain_text(f"{last} WorkflowCompleted")
        expect(then).to_contain_text("completed")
        slider.press("Home")
        expect(page.get_by_role("region", name="state at event 1")).to_contain_text("1 StartAccepted")
        assert page.locator("*").count() < 1500
        page.close()  # before its server ends


def test_progress_is_a_meter_beside_the_bar(page: Page) -> None:
    open_run(page, "import-1")
    expect(row(page, re.compile("step 1, copy_rows")).locator(".meter > span")).to_have_attribute(
        "style", "width: 40%;"
    )
    expect(side(page)).to_contain_text("400 of 1,000 rows")


def test_many_steps_take_few_elements(world: World, page: Page) -> None:
    workflow_id = world.begin("shop.batch", 400, 0)
    world.reach(workflow_id, "completed")
    open_run(page, workflow_id)
    expect(page.get_by_role("listbox")).to_have_attribute("aria-label", "timeline, 407 rows")
    assert page.locator("*").count() < 1500
    page.get_by_role("listbox").press("End")
    expect(row(page, re.compile("step 405, pack"))).to_be_visible()
    assert page.locator("*").count() < 1500


def test_an_unknown_run_offers_the_nearest(page: Page, complaints: Complaints) -> None:
    complaints.allow("404")
    page.goto("/waterline/runs/approval-77")
    expect(page.get_by_role("heading", level=1)).to_have_text("There is no such workflow")
    expect(page.locator("main")).to_contain_text("approval-77")
    page.get_by_role("link", name="approval-1").click()
    expect(why(page)).to_contain_text("approved")
    page.goto("/waterline/runs/approval-1/nonsense")
    expect(page.get_by_role("heading", level=1)).to_have_text("There is no such run")
    page.get_by_role("link", name="Go to the current run").click()
    expect(why(page)).to_contain_text("approved")
    expect(page.locator(".lost")).to_have_count(0)


def test_a_damaged_or_removed_run_says_which(page: Page, world: World, complaints: Complaints) -> None:
    complaints.allow("404|500")
    own = world.begin("shop.approval", {"cents": 1})  # a young run is asked after often
    world.reach(own, "waits_for_condition")
    refusal: dict[str, Any] = {"reason": "history_damaged", "message": "the history of this run is damaged"}
    status = 500

    def answer(route: Route) -> None:
        route.fulfill(status=status, json=refusal)

    page.route(f"**/api/workflows/{own}/summary", answer)
    page.goto(f"/waterline/runs/{own}")
    expect(page.locator("main")).to_contain_text("Restore it from a backup of the database")
    page.unroute_all()
    page.get_by_role("button", name="Try again").click()
    expect(why(page)).to_contain_text("Waits")
    refusal, status = {"reason": "instance_not_found", "message": "there is no such workflow"}, 404
    page.route(f"**/api/workflows/{own}/summary", answer)
    expect(page.get_by_text("This run was removed just now.")).to_be_visible()
    expect(why(page)).to_contain_text("Waits")
    page.unroute_all()


def test_a_hostile_run_is_only_text(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    open_run(page, HOSTILE_ID)
    expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE_ID)
    expect(why(page)).to_contain_text('<img src=x onerror="alert(1)">')
    expect(page.locator("main img, main script")).to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize(("scheme", "width"), looks(1280, 768, 390))
def test_the_timeline_keeps_no_reader_out(new_page: NewPage, scheme: str, width: int) -> None:
    page = new_page(color_scheme=scheme, viewport={"width": width, "height": 800})
    for workflow_id, query in (("import-1", ""), ("shipping-1", "?at=5")):
        open_run(page, workflow_id, query)
        page.get_by_role("button", name="Show what led here").click()
        page.get_by_text("Actions").click()
        expect(page.get_by_role("button", name="Terminate")).to_be_visible()
        assert axe(page) == [], workflow_id
        assert page.evaluate("document.documentElement.scrollWidth") <= width


# -- the axis


@pytest.fixture
def module(page: Page) -> str:
    page.goto("/waterline/")
    source = page.locator("script[type=module]").get_attribute("src")
    assert source is not None
    return source.replace("main.js", "axis.js")


def lay(
    page: Page, module: str, busy: Sequence[Sequence[float]], last: float, now: float | None, wake: float | None
) -> dict[str, Any]:
    return page.evaluate(
        """async ([module, busy, last, now, wake]) => {
          const { axis, folded } = await import(module);
          const folds = folded(busy, last);
          const made = axis({ folds, last, now, wake, width: 800, origin: 0 });
          const at = Array.from({ length: 201 }, (_, n) => made.place(n / 200 * Math.max(last, now ?? 0, wake ?? 0)));
          return { folds, stretches: made.stretches, now: made.now, labels: made.labels, at };
        }""",
        [module, busy, last, now, wake],
    )


def test_idle_time_is_folded_where_it_gains_something(page: Page, module: str) -> None:
    second, hour = 1000, 3_600_000
    assert lay(page, module, [[0, 10], [83, 100], [173, 200]], 200, None, None)["folds"] == []
    made = lay(page, module, [[0, 100], [hour, hour + 100]], hour + 100, None, None)
    assert made["folds"] == [[100, hour]]
    (fold,) = [one for one in made["stretches"] if one["kind"] == "fold"]
    assert fold["x1"] - fold["x0"] == 48
    even = [[at * 20 * second, at * 20 * second + 10] for at in range(30)]
    assert lay(page, module, even, 580 * second + 10, None, None)["folds"] == [], "each is a thirtieth of what is shown"
    growing = [[float(4**at * second), 4**at * second + 10.0] for at in range(16)]
    folds = lay(page, module, growing, growing[-1][1], None, None)["folds"]
    assert len(folds) == 8
    assert folds == sorted(folds)


def test_the_stretch_to_the_next_wake_has_a_quarter_and_labels_keep_apart(page: Page, module: str) -> None:
    day = 86_400_000
    for last, now, wake in (
        (55, 900_000, 3 * day),
        (55, 900_000, None),
        (5000, 5001, 5100),
        (0, 60_000, None),
        (4e9, None, None),
    ):
        made = lay(page, module, [[0, 5], [40, 55]], last, now, wake)
        assert made["at"] == sorted(made["at"]), "later is further right"
        assert made["at"][-1] <= 800
        tail = [one for one in made["stretches"] if one["kind"] == "tail"]
        if now is None:
            assert made["now"] is None
            assert tail == []
        else:
            assert tail[0]["x0"] == (600 if last else 0)
            assert tail[-1]["x1"] == 800
            assert tail[0]["x0"] < made["now"] < 800
        spans = sorted((one["left"], one["left"] + len(one["text"]) * 6.2) for one in made["labels"])
        assert all(before[1] <= after[0] for before, after in pairwise(spans)), made["labels"]
        assert spans[0][0] >= 0


@activity
def bill(order: int) -> int:
    return order


@workflow
def remind() -> None:
    return None


@workflow
def billing() -> None:
    bill.options(summary="order 17")(17)
    child.options(summary="the reminder").step(remind).run()


def test_the_page_shows_the_summary_of_a_call(tmp_path: Path, new_page: NewPage) -> None:
    with Backstay(tmp_path / "backstay.db", [billing, bill, remind]) as app:
        app.execute(billing, "bill-1")
    with ServerProcess(tmp_path, "--auth", "none") as server:
        page = new_page(base_url=server.url)
        open_run(page, "bill-1")
        expect(row(page, re.compile("child remind: the reminder"))).to_be_visible()
        row(page, re.compile("bill: order 17")).click()
        expect(side(page)).to_contain_text("Step 1: bill")
        expect(side(page)).to_contain_text("order 17")
        page.goto("/waterline/runs/bill-1?tab=activities")
        page.get_by_role("button", name="bill").click()
        expect(page.locator("dl.facts")).to_contain_text("summaryorder 17")
        page.goto("/waterline/runs/bill-1?tab=history")
        expect(page.get_by_text("bill(17) scheduled: order 17")).to_be_visible()
        page.goto("/waterline/runs/bill-1?tab=lineage")
        expect(page.get_by_role("list", name="family of the run")).to_contain_text("summary: the reminder")
        page.goto("about:blank")  # or it would ask on while the server stops
