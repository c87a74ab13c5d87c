"""A command whose answer is lost on its way is sent again by whoever pressed the button, and counts once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from .conftest import NewPage
from .kit import Complaints, ServerProcess, WorkerProcess
from .world import CODE

LOST = "The server cannot be reached."


@pytest.fixture
def served(lone: ServerProcess, tmp_path: Path) -> Iterator[ServerProcess]:
    with WorkerProcess(tmp_path, CODE, lone.url, "default") as worker:
        worker.ready()
        yield lone


@pytest.fixture
def page(served: ServerProcess, new_page: NewPage, complaints: Complaints) -> Page:
    complaints.allow("ERR_FAILED")  # the answer that is lost
    return new_page(base_url=served.url)


def lose(page: Page, path: str) -> list[str]:
    """The first answer to a command at this path is lost, after the server has done it. Returns the request ids as they are sent."""
    sent: list[str] = []

    def answer(route: Route) -> None:
        request = route.request
        if request.method == "GET" or "dry_run=1" in request.url or '"dry_run":true' in (request.post_data or ""):
            route.fallback()
            return
        sent.append(request.headers["x-request-id"])
        if len(sent) == 1:
            assert route.fetch().ok
            route.abort()
        else:
            route.fallback()

    page.route(re.compile(rf"/api/{path}(\?|$)"), answer)
    return sent


def press(page: Page, name: str | re.Pattern[str]) -> None:
    """Press a button, and once more when no answer comes."""
    button = page.get_by_role("button", name=name, exact=isinstance(name, str)).last
    button.click()
    expect(page.get_by_role("alert").filter(has_text=LOST)).to_be_visible()
    button.click()


def counted_once(sent: list[str]) -> None:
    assert len(sent) == 2
    assert len(set(sent)) == 1


def test_many_runs_get_a_command_once(page: Page, served: ServerProcess) -> None:
    for number in range(3):
        body = {"workflow_type": "order", "workflow_id": f"order-{number}", "task_queue": "nowhere"}
        assert served.call("POST", "/workflows", body).status_code == 201
    sent = lose(page, "bulk")
    page.goto("/waterline/runs")
    page.get_by_role("checkbox", name="select all on this page").click()
    page.get_by_role("button", name="Pause", exact=True).click()
    press(page, "Pause 3 runs")
    expect(page.get_by_role("region", name="Pause: 3 runs")).to_contain_text("3 of 3")
    counted_once(sent)
    assert served.get("/bulk")["bulk_count"] == 1


def test_a_run_gets_a_command_once(page: Page, served: ServerProcess) -> None:
    body = {"workflow_type": "shop.approval", "workflow_id": "approval-1", "input": [{"cents": 1}]}
    assert served.call("POST", "/workflows", body).status_code == 201
    sent = lose(page, "workflows/.*/update/amend")
    page.goto("/waterline/runs/approval-1?tab=messages&form=update")
    page.locator("#argument-0").fill('{"cents": 5}')
    press(page, "Send amend")
    expect(page.get_by_label("answer", exact=True)).to_have_text("1")
    expect(page.get_by_role("row", name=re.compile("update amend"))).to_have_count(1)
    counted_once(sent)

    body = {"workflow_type": "order", "workflow_id": "order-1", "task_queue": "nowhere"}
    assert served.call("POST", "/workflows", body).status_code == 201
    sent = lose(page, "workflows/.*/pause")
    page.goto("/waterline/runs/order-1")
    page.locator("summary").click()
    page.get_by_role("button", name="Pause …").click()
    press(page, "Pause")
    expect(page.get_by_role("dialog")).to_have_count(0)
    counted_once(sent)
    told = served.get("/workflows/order-1/messages")["messages"]
    assert [one["type"] for one in told if one["type"] != "start"] == ["pause"]
    assert told[-1]["request_id"] == sent[0]


def test_a_schedule_fires_once(page: Page, served: ServerProcess, complaints: Complaints) -> None:
    complaints.allow("422")  # what is half typed is asked for, and refused
    page.goto("/waterline/schedules?form=new")
    page.get_by_label("Workflow type").fill("welcome")
    page.get_by_label("Arguments").fill('["Ada"]')
    page.get_by_label("Cron expressions").fill("0 2 * * *")
    sent = lose(page, "schedules")
    press(page, "Create")
    expect(page.get_by_role("button", name="Trigger")).to_be_visible()
    counted_once(sent)
    (made,) = served.get("/schedules")["schedules"]

    sent = lose(page, "schedules/.*/trigger")
    page.get_by_role("button", name="Trigger").click()
    press(page, "Trigger")
    expect(page.get_by_role("dialog")).to_have_count(0)
    counted_once(sent)
    expect(page.get_by_label("Firings").get_by_role("link")).to_have_count(1)

    sent = lose(page, "schedules/.*/backfill")
    page.get_by_role("button", name="Backfill").click()
    page.get_by_label("From").fill("2026-01-01T12:00")
    page.get_by_label("Until, not including").fill("2026-01-02T12:00")
    press(page, "Backfill")
    expect(page.get_by_role("dialog")).to_have_count(0)
    counted_once(sent)
    assert served.get(f"/schedules/{made['schedule_id']}")["fires_count"] == 2
    # Something else is another command.
    page.get_by_role("button", name="Trigger").click()
    page.get_by_role("dialog").get_by_role("button", name="Trigger").click()
    # Waits in the browser: what it asks for passes through this thread.
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert served.get(f"/schedules/{made['schedule_id']}")["fires_count"] == 3
