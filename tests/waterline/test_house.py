"""Queues, schedules and the system itself: what an operator does there, and what a viewer sees and cannot do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import Error, Locator, Page, Route, expect

from . import world_code as code
from .conftest import NewPage
from .kit import ADMIN, VIEWER, Complaints, ServerProcess, WorkerProcess, axe, looks, modules, settled, too_wide, until
from .world import CODE, World

SCREENS = (
    "/waterline/queues",
    "/waterline/queues/default",
    "/waterline/queues/nowhere",
    "/waterline/schedules",
    "/waterline/schedules?form=new",
    "/waterline/schedules/nightly",
    "/waterline/schedules/hourly?form=edit",
    "/waterline/system",
    "/waterline/system?section=maintenance",
    "/waterline/system?section=server",
    "/waterline/system?section=access",
    "/waterline/system?section=audit",
)


@pytest.fixture
def served(lone: ServerProcess, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server of the test's own with a worker of build `b1`."""
    with WorkerProcess(tmp_path, CODE, lone.url, "default", build="b1") as worker:
        worker.ready()
        yield lone


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def dialog(page: Page) -> Locator:
    return page.get_by_role("dialog")


def signed_in(new_page: NewPage, server: ServerProcess, token: str, path: str) -> Page:
    page = new_page(base_url=server.url)
    page.goto(path)
    page.get_by_label("Token").fill(token)
    press(page, "Sign in")
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    return page


# -- schedules


def test_a_schedule_across_a_clock_change_is_made_paused_and_triggered(
    served: ServerProcess, new_page: NewPage, complaints: Complaints
) -> None:
    complaints.allow("422")  # what is half typed is asked for, and refused
    page = new_page(base_url=served.url)
    page.goto("/waterline/schedules")
    press(page, "New schedule")
    page.get_by_label("Id", exact=True).fill("spring")
    page.get_by_label("Workflow type").fill("welcome")
    page.get_by_label("Arguments").fill('["spring"')
    page.get_by_label("Time zone").fill("Europe/Berlin")
    page.get_by_label("Cron expressions").fill("30 2 99 3 *")
    expect(page.get_by_text("day of month is 1 to 31").first).to_be_visible()
    page.get_by_label("Cron expressions").fill("30 2 * 3 0")  # on one of these Sundays the clock goes forward
    firings = page.get_by_label("next firings").get_by_role("listitem")
    expect(firings).to_have_count(10)
    expect(firings.filter(has_text="The clock of Europe/Berlin goes forward by 1 h").first).to_be_visible()
    press(page, "Create")
    expect(page.get_by_text("This is not JSON")).to_be_visible()
    page.get_by_label("Arguments").fill('["spring"]')
    press(page, "Create")
    expect(page.get_by_role("heading", name="spring")).to_be_visible()
    assert page.url.endswith("/waterline/schedules/spring")
    expect(page.get_by_label("Firings").get_by_text("goes forward").first).to_be_visible()

    press(page, "Trigger")
    press(page, "Show what would be written")
    expect(page.get_by_label("what would be written", exact=True)).to_have_text("triggered schedule:spring:trigger:1")
    dialog(page).get_by_role("button", name="Trigger").click()
    run = page.get_by_label("Firings").get_by_role("link", name="schedule:spring:trigger:1")
    expect(run).to_be_visible()
    expect(page.get_by_label("Firings").get_by_text("completed")).to_be_visible()
    press(page, "Pause")
    expect(page.get_by_role("button", name="Resume", exact=True)).to_be_visible()
    expect(page.get_by_text("It is paused, so it does not fire.")).to_be_visible()
    page.get_by_role("link", name="Schedules").first.click()
    expect(page.get_by_role("row", name="spring").get_by_text("paused")).to_be_visible()


def test_a_schedule_is_changed_backfilled_and_deleted(
    served: ServerProcess, new_page: NewPage, complaints: Complaints
) -> None:
    complaints.allow("404")
    spec = {"cron_expressions": ["0 2 * * *"], "timezone": "UTC"}
    action = {"workflow_type": "welcome", "input": [code.INEXACT], "priority": 2}
    body = {"schedule_id": "night", "spec": spec, "action": action, "overlap_policy": "allow_all"}
    assert served.call("POST", "/schedules", body).status_code == 201
    page = new_page(base_url=served.url, timezone_id="UTC")
    page.goto("/waterline/schedules/night")
    press(page, "Edit")
    page.get_by_label("Note").fill("once more")
    page.get_by_label("Intervals").fill("PT6H")
    press(page, "Save")
    expect(page.get_by_text("once more").first).to_be_visible()
    now = served.get("/schedules/night")
    assert (now["spec"]["intervals"], now["action"]["input"]) == ([{"every": "PT6H"}], [str(code.INEXACT)])
    assert now["action"]["priority"] == 2, "what the form does not show stays"
    press(page, "Edit")
    page.get_by_label("Arguments").fill(f"[{code.LARGEST}]")
    press(page, "Save")
    expect(page.get_by_role("button", name="Backfill")).to_be_visible()
    assert served.get("/schedules/night")["action"]["input"] == [
        str(code.LARGEST)
    ]  # exact: JSON for browsers has it as text

    press(page, "Backfill")
    page.get_by_label("From").fill("2026-01-01T00:00")
    page.get_by_label("Until, not including").fill("2026-01-02T00:00")
    press(page, "Show what would be written")
    would = page.get_by_label("what would be written", exact=True)
    expect(would).to_contain_text("2026-01-01T02:00:00Z started schedule:night:backfill:")
    assert served.get("/schedules/night")["fires_count"] == 0
    dialog(page).get_by_role("button", name="Backfill").click()
    expect(dialog(page)).to_have_count(0)
    until(lambda: served.get("/schedules/night")["fires_count"] == 5)

    press(page, "Delete")
    dialog(page).get_by_role("button", name="Delete").click()
    expect(page.get_by_text("No schedule here.")).to_be_visible()
    page.goto("/waterline/schedules/nothing")
    expect(page.get_by_role("alert")).to_be_visible()


# -- queues


def test_a_build_is_drained_and_resumed(served: ServerProcess, new_page: NewPage) -> None:
    pinned = {
        "workflow_type": "reminder",
        "workflow_id": "r-1",
        "task_queue": "default",
        "input": [9],
        "build_id": "b1",
    }
    assert served.call("POST", "/workflows", pinned).status_code == 201
    page = new_page(base_url=served.url)
    page.goto("/waterline/queues")
    page.get_by_role("link", name="default").click()
    builds = page.get_by_role("region", name="builds")
    expect(builds.get_by_role("link", name="1", exact=True)).to_be_visible()  # the run that is pinned to it
    press(page, "Drain")
    expect(dialog(page)).to_contain_text("1 open run that only this build fits")
    press(page, "Show what would be written")
    expect(page.get_by_label("what would be written", exact=True)).to_contain_text("rollout")
    dialog(page).get_by_role("button", name="Drain").click()
    expect(builds.get_by_text("draining")).to_be_visible()
    expect(page.get_by_role("region", name="workers").get_by_text("draining")).to_be_visible()
    press(page, "Resume")
    dialog(page).get_by_role("button", name="Resume").click()
    expect(builds.get_by_text("draining")).to_have_count(0)
    press(page, "Promote")
    dialog(page).get_by_role("button", name="Promote").click()
    expect(builds.get_by_text("begin here")).to_be_visible()

    page.goto("/waterline/system?section=audit&command_type=build.drain")
    drained = page.get_by_role("region", name="audit").get_by_role("row").filter(has_text="build.drain")
    expect(drained).to_have_count(1)
    expect(drained).to_contain_text("waterline")


def test_a_queue_without_a_worker_shows_its_waiting_tasks_and_the_command(page: Page) -> None:
    page.goto("/waterline/queues")
    expect(page.get_by_role("row", name="nowhere").get_by_text("no worker")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.get_by_role("link", name="nowhere")).to_be_focused()
    page.keyboard.press("o")
    expect(page.get_by_text("and no live worker serves this queue")).to_be_visible()
    expect(page.get_by_text("--queue nowhere").first).to_be_visible()
    page.get_by_role("region", name="tasks that wait").get_by_role("link", name="stranded-1").click()
    expect(page.get_by_role("heading", name="stranded-1")).to_be_visible()


# -- the system


def test_liveness_is_proven_passes_are_rehearsed_and_the_audit_knows(served: ServerProcess, new_page: NewPage) -> None:
    page = new_page(base_url=served.url)
    page.goto("/waterline/system")
    expect(page.get_by_text("0 open runs, 0 stranded")).to_be_visible()
    start = {"workflow_type": "reminder", "workflow_id": "r-1", "task_queue": "default", "input": [9]}
    assert served.call("POST", "/workflows", start).status_code == 201
    press(page, "Prove now")
    expect(page.get_by_text("1 open run, 0 stranded")).to_be_visible()
    page.get_by_role("link", name="Maintenance").click()
    press(page, "Rebuild")
    press(page, "Show what would be written")
    expect(page.get_by_label("what would be written", exact=True)).to_contain_text("views of")
    dialog(page).get_by_role("button", name="Rebuild").click()
    expect(page.get_by_label("what was done", exact=True)).to_contain_text("looked at: 1")
    press(page, "Close")
    page.get_by_role("link", name="Audit").click()
    page.get_by_label("workflow id").fill("r-1")
    expect(page.get_by_role("region", name="audit").get_by_role("row")).to_have_count(2)
    expect(page.get_by_role("region", name="audit").get_by_role("link", name="r-1")).to_be_visible()
    assert "workflow_id=r-1" in page.url


def test_the_audit_shows_what_people_did_and_automatic_starts_on_request(page: Page) -> None:
    page.goto("/waterline/system?section=audit")
    entries = page.get_by_role("region", name="audit")
    expect(entries.get_by_role("link", name="nightly").first).to_be_visible()
    started = entries.get_by_role("link", name="schedule:nightly:trigger:1")
    expect(started).to_have_count(0)
    page.get_by_label("Starts by schedules and workflows").check()
    expect(started).to_be_visible()
    assert "automatic=1" in page.url
    page.get_by_label("Starts by schedules and workflows").uncheck()
    expect(started).to_have_count(0)
    page.get_by_label("source").select_option("schedule")
    expect(started).to_be_visible()


def test_nodes_are_listed_and_one_is_drained(postgresql_url: str, tmp_path: Path, new_page: NewPage) -> None:
    options = ("--store", postgresql_url, "--auth", "none", "--node-name")
    with ServerProcess(tmp_path, *options, "left") as one, ServerProcess(tmp_path, *options, "right"):
        page = new_page(base_url=one.url)
        page.goto("/waterline/system?section=server")
        listed = page.get_by_role("region", name="nodes", exact=True)
        left, right = (listed.get_by_role("row").filter(has_text=name) for name in ("left (this one)", "right"))
        expect(left.get_by_text("active")).to_be_visible()
        right.get_by_role("button", name="Drain").click()
        dialog(page).get_by_role("button", name="Drain").click()
        expect(right.get_by_text("drained")).to_be_visible()
        expect(left.get_by_role("cell", name="256", exact=True)).to_be_visible()
        right.get_by_role("button", name="Resume").click()
        dialog(page).get_by_role("button", name="Resume").click()
        expect(right.get_by_text("active")).to_be_visible()
        page.goto("about:blank")  # before its server ends


def test_runs_that_are_stranded_are_named_with_what_helps(page: Page, world: World) -> None:
    proof = world.get("/system/liveness")
    help = "POST /api/workflows/lost-1/repair"
    named = {"workflow_id": "lost-1", "reason": "no_durable_resume_source", "action": help}
    page.route("**/api/system/liveness", lambda route: route.fulfill(json=proof | {"stranded_runs": [named]}))
    page.goto("/waterline/system")
    row = page.get_by_role("region", name="stranded runs").get_by_role("row").last
    expect(row.get_by_role("link", name="lost-1")).to_have_attribute("href", "/waterline/runs/lost-1")
    expect(row.get_by_role("cell")).to_have_text(["lost-1", "no durable resume source", help])


def test_a_server_that_is_ill_still_says_why(page: Page, complaints: Complaints) -> None:
    complaints.allow("503")
    page.route("**/api/system/health", lambda route: route.fulfill(response=route.fetch(), status=503))
    page.goto("/waterline/system")
    expect(
        page.get_by_role("region", name="causes", exact=True).get_by_text("1 shipping run is blocked")
    ).to_be_visible()


def test_an_administrator_makes_a_token_for_a_viewer_and_takes_it_back(
    guarded: ServerProcess, new_page: NewPage, complaints: Complaints
) -> None:
    complaints.allow("401")
    page = signed_in(new_page, guarded, ADMIN, "/waterline/system?section=access")
    press(page, "New token")
    page.get_by_label("Note").fill("for the wall")
    dialog(page).get_by_role("button", name="Create").click()
    secret = page.locator("#secret").inner_text()
    press(page, "I have saved it")
    expect(page.get_by_text(secret)).to_have_count(0)
    row = page.get_by_role("row").filter(has_text="for the wall")
    expect(row).to_contain_text("viewer")

    other = signed_in(new_page, guarded, secret, "/waterline/queues")
    expect(other.get_by_text("read only")).to_be_visible()
    page.reload()
    sessions = page.get_by_role("region", name="sessions").get_by_role("row")
    expect(sessions.filter(has_text="(this one)")).to_have_count(1)
    expect(sessions.filter(has_text="viewer")).not_to_have_count(0)
    row.get_by_role("button", name="Revoke").click()
    dialog(page).get_by_role("button", name="Revoke").click()
    expect(page.get_by_role("row").filter(has_text="for the wall")).to_have_count(0)
    other.reload()
    expect(other.get_by_label("Token")).to_be_visible()


def test_a_viewer_sees_everything_and_can_do_nothing(
    guarded: ServerProcess, new_page: NewPage, complaints: Complaints
) -> None:
    complaints.allow("401")
    spec = {"spec": {"intervals": [{"every": "PT1H"}]}, "action": {"workflow_type": "welcome"}, "schedule_id": "seen"}
    guarded.call("POST", "/schedules", spec)
    page = signed_in(new_page, guarded, VIEWER, "/waterline/schedules/seen")
    for name in ("Trigger", "Pause", "Backfill", "Edit", "Delete"):
        button = page.get_by_role("button", name=name, exact=True)
        expect(button).to_be_disabled()
        expect(button).to_have_attribute("title", "You are signed in as a viewer, so you cannot change anything.")
    expect(page.get_by_label("Firings").get_by_role("listitem").filter(has_text="UTC")).to_have_count(5)
    page.goto("/waterline/queues/nowhere")
    expect(page.get_by_role("link", name="kept-1")).to_be_visible()
    page.goto("/waterline/system?section=maintenance")
    expect(page.get_by_role("button", name="Repair now")).to_have_attribute(
        "title", "Only an administrator may do this. You are signed in as viewer."
    )
    expect(page.get_by_role("button", name="Repair now")).to_be_disabled()
    page.goto("/waterline/system?section=access")
    expect(page.get_by_text("Only an administrator may see tokens and sessions.")).to_be_visible()
    page.goto("/waterline/system?section=audit")
    expect(page.get_by_role("region", name="audit", exact=True)).to_be_visible()


def test_who_signs_in_comes_back_to_the_same_address_and_can_leave(
    guarded: ServerProcess, new_page: NewPage, complaints: Complaints
) -> None:
    complaints.allow("401")
    page = new_page(base_url=guarded.url)
    page.goto("/waterline/system?section=server")
    expect(page.get_by_text("Backstay Waterline")).to_be_visible()
    assert axe(page) == []
    page.get_by_label("Token").fill("no such token")
    press(page, "Sign in")
    expect(page.get_by_role("alert")).to_contain_text("this server does not know this token")
    page.get_by_label("Token").fill(VIEWER)
    press(page, "Sign in")
    expect(page.get_by_role("region", name="This server")).to_be_visible()
    assert page.url.endswith("/waterline/system?section=server")
    press(page, "Sign out")
    expect(page.get_by_label("Token")).to_be_visible()


def test_nothing_moves_while_others_work(served: ServerProcess, new_page: NewPage) -> None:
    page = new_page(base_url=served.url)
    for path in ("/waterline/queues/default", "/waterline/schedules", "/waterline/system"):
        settled(page, path)
        page.evaluate(
            "() => { window.shifted = 0; new PerformanceObserver((list) => { for (const one of list.getEntries())"
            " window.shifted += one.value; }).observe({ type: 'layout-shift' }); }"
        )
        with page.expect_response(lambda answer: "/api/" in answer.url and "/api/live" not in answer.url):
            start = {"workflow_type": "welcome", "input": ["Ada"], "task_queue": "default"}
            assert served.call("POST", "/workflows", start).status_code == 201
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        assert page.evaluate("window.shifted") <= 0.02, path


@pytest.mark.parametrize(("scheme", "width"), looks(1280, 768, 390))
def test_no_screen_has_an_accessibility_defect(new_page: NewPage, scheme: str, width: int) -> None:
    page = new_page(color_scheme=scheme, viewport={"width": width, "height": 800})
    for path in SCREENS:
        settled(page, path)
        assert (path, axe(page), too_wide(page)) == (path, [], 0)


def test_no_content_makes_the_page_wider_than_a_telephone(new_page: NewPage) -> None:
    page = new_page(viewport={"width": 390, "height": 800})

    def longer(name: str, text: str, **changes: str) -> None:
        def answer(route: Route) -> None:
            headers = {name: value for name, value in route.request.headers.items() if name != "if-none-match"}
            with suppress(Error):  # the page may have gone on meanwhile, and waits for this answer no longer
                body = route.fetch(headers=headers).json()
                body[name] = [{**one, text: f"{one[text]}-{'long' * 40}", **changes} for one in body[name]]
                route.fulfill(json=body)

        page.route(re.compile(rf"/api/([\w/-]+/)?{name.replace('_', '-')}(\?|$)"), answer)

    longer("workers", "worker_id", status="stale")  # a button in the last column, under a heading for the ear alone
    longer("task_queues", "name", throttled_because="because " * 40)
    longer("build_ids", "build_id")
    longer("tasks", "workflow_id")
    for path in ("/waterline/queues", "/waterline/queues/nowhere", "/waterline/queues/default"):
        settled(page, path)
        expect(page.get_by_text("longlong").first).to_be_attached()
        assert (path, axe(page), too_wide(page)) == (path, [], 0)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("0 9 * * 1-5", "every weekday at 09:00"),
        ("30 2 * * *", "every day at 02:30"),
        ("0 9,17 * * mon", "every Monday at 09:00 and 17:00"),
        ("0 9 * * 7", "every Sunday at 09:00"),
        ("*/15 * * * *", "every 15 minutes"),
        ("5,35 * * * *", "every hour at :05 and :35"),
        ("0 */6 * * *", "every 6 hours on the hour"),
        ("0 0 1 * *", "on day 1 of every month at 00:00"),
        ("@daily", "every day at 00:00"),
        ("0 9 1 * 1", None),  # on the first, and on Mondays
        ("*/7 * * * *", None),  # the last one of an hour is shorter
        ("0 9 * * 1#2", None),
        ("0 0 31 13 *", None),
    ],
)
def test_a_cron_expression_is_said_in_words_if_they_are_sure(page: Page, expression: str, said: str | None) -> None:
    page.goto("/waterline/schedules")
    asked = "([base, text]) => import(base + 'screens/house/cron.js').then(({ cronWords }) => cronWords(text))"
    assert page.evaluate(asked, [modules(page), expression]) == said


def test_the_list_says_when_in_words(page: Page) -> None:
    page.goto("/waterline/schedules")
    expect(page.get_by_role("row", name="nightly")).to_contain_text("every day at 02:00, Europe/Berlin")
