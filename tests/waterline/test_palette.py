"""The command palette: whatever has a name is found, and what can be done is done, without a mouse."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from .conftest import NewPage
from .kit import VIEWER, ServerProcess, axe, looks, too_wide
from .world import World


def opened(page: Page, path: str = "/waterline/") -> Locator:
    page.goto(path)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.keyboard.press("Control+k")
    field = page.get_by_label("find or do", exact=True)
    expect(field).to_be_focused()
    return field


def choice(page: Page, name: str | re.Pattern[str]) -> Locator:
    return page.get_by_role("option", name=name)


@pytest.mark.parametrize(
    ("text", "shown", "address"),
    [
        ("shipping-1", "shipping-1 run, blocked, shipping", "/waterline/runs/shipping-1$"),
        ("shop.app", "shop.approval type", "/waterline/runs[?]workflow_type=shop.approval$"),
        ("deplo", "deploys queue", "/waterline/queues/deploys$"),
        ("night", "nightly schedule", "/waterline/schedules/nightly$"),
        ("audit", "System, audit screen", "/waterline/system[?]section=audit$"),
    ],
)
def test_what_has_a_name_is_found(page: Page, text: str, shown: str, address: str) -> None:
    field = opened(page)
    field.press_sequentially(text)
    found = choice(page, re.compile(f"^{re.escape(shown)}"))
    expect(found.first).to_be_visible()
    for _ in range(12):
        if found.first.get_attribute("aria-selected") == "true":
            break
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(address))
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_text_that_nothing_has_is_looked_for_in_the_list(page: Page) -> None:
    opened(page, "/waterline/queues").fill("no such thing")
    expect(choice(page, "Search runs for “no such thing”")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/waterline/runs[?]q=no\+such\+thing|q=no%20such%20thing"))


def test_a_run_gets_a_command_by_its_id(page: Page, world: World) -> None:
    workflow_id = world.begin("reminder", 9)
    world.reach(workflow_id, "sleeps")
    opened(page).fill(f"pause {workflow_id}")
    expect(choice(page, re.compile(f"^Pause {workflow_id} "))).to_be_visible()
    page.keyboard.press("Enter")
    page.get_by_role("dialog").get_by_role("button", name="Pause", exact=True).click()
    expect(page).to_have_url(re.compile(f"/waterline/runs/{workflow_id}$"))
    expect(page.locator(".badge")).to_contain_text("paused")
    # On its page its commands are the first.
    page.keyboard.press("Control+k")
    expect(choice(page, re.compile(workflow_id)).first).to_be_visible()
    page.get_by_label("find or do", exact=True).fill("resume")
    page.keyboard.press("Enter")
    page.get_by_role("dialog").get_by_role("button", name="Resume", exact=True).click()
    expect(page.locator(".badge")).to_contain_text("sleeping")


def test_what_helps_against_a_cause_is_an_action(page: Page) -> None:
    opened(page).fill("retry delivery")
    expect(choice(page, re.compile(r"^Retry now retrying delivery … action, \d+ runs?"))).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name=re.compile(r"^Retry now \d+ runs?$"))).to_be_visible()


def test_a_schedule_is_paused_and_resumed(lone: ServerProcess, new_page: NewPage) -> None:
    plan = {"spec": {"cron_expressions": ["0 2 * * *"]}, "action": {"workflow_type": "welcome"}}
    assert lone.call("POST", "/schedules", {"schedule_id": "shop-nightly", **plan}).status_code == 201
    page = new_page(base_url=lone.url)
    for verb, paused in (("Pause", True), ("Resume", False)):
        opened(page, "/waterline/schedules").fill(f"{verb.lower()} shop")
        expect(choice(page, re.compile(f"^{verb} schedule shop-nightly"))).to_have_attribute("aria-selected", "true")
        page.keyboard.press("Enter")
        page.get_by_role("dialog").get_by_role("button", name=verb, exact=True).click()
        expect(page).to_have_url(re.compile("/waterline/schedules/shop-nightly$"))
        assert lone.get("/schedules/shop-nightly")["paused"] is paused


def test_it_opens_while_one_writes_and_gives_the_focus_back(page: Page) -> None:
    page.goto("/waterline/runs")
    box = page.get_by_label("find runs")
    box.focus()
    page.keyboard.press("Control+k")
    expect(page.get_by_label("find or do", exact=True)).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(box).to_be_focused()
    page.get_by_role("button", name="Find or do").click()
    expect(page.get_by_label("find or do", exact=True)).to_be_focused()


def test_a_viewer_finds_and_does_nothing(guarded: ServerProcess, new_page: NewPage) -> None:
    page = new_page(base_url=guarded.url, extra_http_headers={"Authorization": f"Bearer {VIEWER}"})
    opened(page, "/waterline/runs/kept-1").fill("kept")
    expect(choice(page, re.compile("^kept-1 run"))).to_be_visible()
    expect(choice(page, re.compile("action$"))).to_have_count(0)


@pytest.mark.parametrize(("scheme", "width"), looks(1280, 390))
def test_everybody_can_use_it(new_page: NewPage, scheme: str, width: int) -> None:
    page = new_page(color_scheme=scheme, viewport={"width": width, "height": 844})
    opened(page).fill("pause s")
    expect(choice(page, re.compile("^Pause shipping-1"))).to_be_visible()
    assert axe(page) == []
    assert too_wide(page) == 0
