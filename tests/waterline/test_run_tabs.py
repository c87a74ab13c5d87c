"""The tabs of a run: history, activities, waits, messages with their forms, lineage, failures, export."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, cast
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import Error, Locator, Page, Route, expect

from backstay.codec import avro

from . import world_code as code
from .conftest import NewPage
from .kit import ADMIN, DW, Complaints, ServerProcess, axe, looks, settled, too_wide
from .world import HOSTILE_ID, World

TABS = {
    "history": ("order-1", "&event=8"),
    "activities": ("delivery-1", ""),
    "waits": ("approval-1", ""),
    "messages": ("approval-1", "&form=update"),
    "lineage": ("family-1", ""),
    "failures": ("shipping-1", ""),
    "export": ("welcome-1", ""),
}


def at(workflow_id: str, tab: str, more: str = "") -> str:
    return f"/waterline/runs/{quote(workflow_id, safe='')}?tab={tab}{more}"


def fields(page: Page) -> Locator:
    return page.locator("form.writing")


def retold(page: Page, part: str, change: Callable[[Any], None]) -> None:
    """From now on the answers of a part are changed a little, to what is hard to bring about."""

    def answer(route: Route) -> None:
        headers = {name: value for name, value in route.request.headers.items() if name != "if-none-match"}
        with suppress(Error):  # the page may have gone on meanwhile, and waits for this answer no longer
            told = route.fetch(headers=headers).json()
            change(told)
            route.fulfill(json=told)

    page.route(re.compile(rf"/{part}(\?|$)"), answer)


# -- messages


@pytest.mark.contract("UPD-21")
def test_an_approval_by_a_form_is_wrong_at_first_and_right_then(page: Page, world: World) -> None:
    workflow_id = world.begin("shop.approval", {"cents": 100})
    world.reach(workflow_id, "waits_for_condition")
    page.goto(at(workflow_id, "messages"))
    page.get_by_role("button", name="Send a signal").click()
    form = fields(page)
    send = form.get_by_role("button", name="Send approve")
    send.click()
    expect(form.get_by_label("by", exact=False).first).to_have_attribute("aria-invalid", "true")
    expect(form.get_by_text("is missing")).to_be_visible()
    form.locator("#argument-0").fill("Ada")
    form.locator("#argument-2").fill("two")
    send.click()
    expect(form.get_by_text("must be int")).to_be_visible()
    assert world.get(f"/workflows/{workflow_id}/messages")["messages"][1:] == []
    form.locator("#argument-2").fill("2")
    form.get_by_role("button", name="Show what would be written").click()
    expect(form.get_by_label("what would be written")).to_contain_text("SignalReceived")
    send.click()
    expect(page.get_by_role("row", name=re.compile("signal approve"))).to_contain_text("applied")
    world.reach(workflow_id, "completed")
    expect(page.get_by_role("button", name="Send a signal")).to_be_disabled()
    assert world.get(f"/workflows/{workflow_id}")["output"] == "Ada approved 100"
    (_, sent) = world.get(f"/workflows/{workflow_id}/messages")["messages"]
    assert (sent["payload"]["text"], sent["who"]["caller"]) == ('["Ada", false, 2]', "waterline")


@pytest.mark.contract("UPD-21", "QRY-15")
def test_what_the_server_refuses_is_said_at_its_field(page: Page, world: World, complaints: Complaints) -> None:
    complaints.allow("422")
    workflow_id = world.begin("shop.approval", {"cents": 100})
    world.reach(workflow_id, "waits_for_condition")
    page.goto(at(workflow_id, "messages", "&form=update"))
    form = fields(page)
    price, send = form.locator("#argument-0"), form.get_by_role("button", name="Send amend")
    expect(price).to_be_focused()
    price.fill("[1]")
    send.click()
    expect(form.get_by_text("must be object, not array")).to_be_visible()
    price.fill('{"cents": "x"}')
    send.click()
    expect(form.locator("#argument-0-wrong")).to_contain_text("Expected `int`, got `str`")
    price.fill('{"cents": -1}')
    send.click()
    expect(form.get_by_role("alert")).to_contain_text("an expense costs something")
    refused = page.get_by_role("row", name=re.compile("update amend.*an expense costs something"))
    expect(refused).to_contain_text("rejected")
    price.fill('{"cents": 9223372036854775807}')
    form.get_by_role("checkbox", name="null").check()
    send.click()
    expect(form.get_by_role("status")).to_contain_text("update completed")
    sent = world.get(f"/workflows/{workflow_id}/messages")["messages"][-1]
    assert sent["payload"]["text"] == '[{"cents": 9223372036854775807}, null]'
    page.get_by_role("button", name="Ask a query").click()
    form.get_by_role("button", name="Ask status").click()
    expect(form.get_by_label("answer")).to_have_text('"9223372036854775807 EUR, waiting"')


@pytest.mark.contract("UPD-11")
def test_messages_tell_who_sent_them_and_what_became_of_them(page: Page, world: World) -> None:
    page.goto(at("approval-1", "messages"))
    row = page.get_by_role("row", name=re.compile("update amend"))
    expect(row).to_contain_text("completed")
    expect(row).to_contain_text("python · 127.0.0.1")
    row.get_by_role("button").click()
    expect(page.get_by_label("payload", exact=True)).to_have_text('[{"cents": 3900, "currency": "EUR"}, "a discount"]')
    expect(page.get_by_label("result", exact=True)).to_have_text("4200")
    expect(page).to_have_url(re.compile("open="))
    (update,) = world.get("/workflows/approval-1/detail")["updates"]
    expect(page.locator("tr.below")).to_contain_text(update["update_id"])
    page.goto(at("welcome-1", "messages"))
    said = page.get_by_role("button", name="Send a signal")
    expect(said).to_be_disabled()
    expect(said).to_have_attribute("title", "not possible: run closed")


@pytest.mark.contract("CHILD-04", "REC-04")
def test_messages_tell_what_they_belong_to(page: Page, world: World) -> None:
    tree = world.get("/workflows/family-1/lineage")["run"]
    page.goto(at(tree["children"][1]["workflow_id"], "messages"))
    page.get_by_role("row", name=re.compile("start")).get_by_role("button").click()
    for text in ("family-1", tree["run_id"], '"sequence": 2', f"{tree['run_id']}-h2"):
        expect(page.get_by_label("context")).to_contain_text(text)
    workflow_id = f"{world.begin('welcome', 'Ada')}-together"
    body = {"workflow_type": "shop.approval", "task_queue": "default", "input": [{"cents": 1}], "signal_input": ["Ada"]}
    assert world.call("POST", f"/workflows/{workflow_id}/signal-with-start/approve", body).status_code == 202
    group = world.get(f"/workflows/{workflow_id}/messages")["messages"][0]["context"]["intake"]["group_id"]
    page.goto(at(workflow_id, "messages"))
    for kind in ("start", "signal approve"):
        page.get_by_role("row", name=re.compile(kind)).get_by_role("button").click()
        expect(page.get_by_label("context")).to_contain_text(group)


# -- history


def test_a_history_is_filtered_and_jumped_into(page: Page, complaints: Complaints) -> None:
    complaints.allow("404")
    page.goto(at("batch-1", "history"))
    rows = page.locator(".history > tbody > tr:not(.below)")
    expect(rows).to_have_count(61)
    page.get_by_label("find in events").fill("scale did not")
    page.get_by_label("find in events").press("Enter")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("the scale did not answer")
    expect(page).to_have_url(re.compile(r"text=scale\+did\+not"))
    page.get_by_label("find in events").fill("")
    page.get_by_label("find in events").press("Enter")
    page.get_by_label("kind").select_option("timer")
    expect(rows).to_have_count(2)
    page.get_by_label("go to event").fill("38")
    page.get_by_label("go to event").press("Enter")
    opened = page.locator("tr.below")
    expect(opened).to_be_in_viewport()
    expect(opened).to_contain_text("events")
    expect(opened).to_contain_text("ActivityRetryScheduled")
    opened.get_by_role("link", name="37 ActivityStarted pack").click()
    expect(page).to_have_url(re.compile("event=37"))
    expect(page.locator("tr.open")).to_contain_text("37")
    page.get_by_role("button", name="raw JSON").click()
    expect(page.get_by_label("raw JSON")).to_contain_text('"event_type": "ActivityStarted"')
    page.goto(at("batch-1", "history", "&event=999"))
    expect(page.get_by_role("alert")).to_contain_text("1 to 61")
    expect(rows).to_have_count(61)


def test_a_long_history_stays_light_and_folds_heartbeats(page: Page) -> None:
    """50,000 events, of which 400 are heartbeats in a row; the answers of the API are made here."""
    last = 50_000

    def event(sequence: int) -> dict[str, Any]:
        beat = 1000 < sequence <= 1400
        kind = "ActivityHeartbeatRecorded" if beat else "SideEffectRecorded"
        words = {"kind": "activity", "words": f"event {sequence}", "mark": "○", "tone": "plain", "step": 1}
        return {"sequence": sequence, "event_type": kind, "recorded_at": "2026-11-17T07:00:00Z"} | words

    def answer(route: Route) -> None:
        asked = httpx.URL(route.request.url).params
        size = int(asked["page_size"])
        if asked.get("order") == "desc":
            high = min(int(asked.get("to", last)), last)
            found = [event(n) for n in range(high, max(high - size, 0), -1)]
        else:
            low = int(asked.get("from", 1))
            found = [event(n) for n in range(low, min(low + size, last + 1))]
        done = not found or found[-1]["sequence"] in (1, last)
        route.fulfill(json={"events": found, "last_sequence": last, "looked_at": len(found), "complete": done})

    page.route("**/history?*", answer)
    page.goto(at("welcome-1", "history"))
    rows = page.locator(".history > tbody > tr")
    expect(rows).to_have_count(100)
    expect(page.get_by_text("50,000 events")).to_be_visible()
    page.get_by_role("link", name="next page").click()
    expect(rows.first).to_contain_text("101")
    page.go_back()
    expect(rows.first).to_contain_text("event 1")
    page.goto(at("welcome-1", "history", "&from=990"))
    expect(page.get_by_role("button", name="400 heartbeats, to event 1400")).to_be_visible()
    expect(rows).to_have_count(100)
    page.get_by_label("order").select_option("desc")
    expect(rows.first).to_contain_text("event 50000")
    assert page.evaluate("() => document.querySelectorAll('*').length") < 1500


# -- payloads


def test_hostile_texts_are_texts_in_every_tab(page: Page, world: World) -> None:
    for workflow_id in (HOSTILE_ID, "hostile-2"):
        for tab in TABS:
            settled(page, at(workflow_id, tab))
            assert page.locator("main img, main script").count() == 0
            # Whatever can be opened is opened, one after another: the address keeps one open at a time.
            for place in range(page.locator(".opener").count()):
                page.locator(".opener").nth(place).click()
                assert page.locator("main img, main script").count() == 0
            assert too_wide(page) <= 0, tab
    page.goto(at("hostile-2", "failures"))
    expect(page.get_by_label("trace", exact=True)).to_contain_text(code.SCRIPT)
    page.goto(at(HOSTILE_ID, "messages", "&form=signal"))
    expect(fields(page)).to_contain_text(code.SCRIPT)


def test_integers_of_64_bits_are_exact(page: Page, world: World) -> None:
    page.goto(at(HOSTILE_ID, "history", "&event=2"))
    shown = page.get_by_label("arguments", exact=True)
    for number in (code.LARGEST, code.SMALLEST, code.INEXACT):
        expect(shown).to_contain_text(str(number))
    said = re.compile(r"signal.*say")
    page.goto(at(HOSTILE_ID, "messages"))
    page.get_by_role("row", name=said).get_by_role("button").click()
    expect(page.get_by_label("payload", exact=True)).to_contain_text(str(code.LARGEST))


def test_of_a_large_payload_the_beginning_is_shown_and_all_of_it_downloaded(page: Page) -> None:
    page.goto(at("large-1", "history", "&event=2"))
    shown = page.get_by_label("arguments", exact=True)
    expect(shown).to_contain_text("argumentargument")
    text = shown.text_content() or ""
    assert 20_000 < len(text) <= 20 << 10
    with page.expect_download() as download:
        page.get_by_role("button", name="download all of it").click()
    assert json.loads(download.value.path().read_text()) == ["argument" * (1 << 17)]


def test_a_payload_that_cannot_be_decoded_says_so(lone: ServerProcess, new_page: NewPage) -> None:
    me = {"worker_id": "w", "task_queue": "q"}
    lone.call("POST", "/worker/register", me | {"runtime": "python", "supported_workflow_types": ["order"]})
    start = {"workflow_type": "order", "workflow_id": "broken-1", "task_queue": "q", "input": [1]}
    assert lone.call("POST", "/workflows", start).status_code == 201
    task = lone.call("POST", "/worker/workflow-tasks/poll", me).json()["task"]
    broken = {
        "codec": "avro",
        "blob": avro.to_text(avro.from_text(cast(str, task["arguments"]["blob"]))[:10] + b"\xff\xff"),
    }
    held = {"lease_owner": task["lease_owner"], "workflow_task_attempt": task["workflow_task_attempt"]}
    done = held | {"commands": [{"type": "complete_workflow", "result": broken}]}
    answer = lone.call("POST", f"/worker/workflow-tasks/{task['task_id']}/complete", done)
    assert answer.status_code == 200, answer.text
    page = new_page(base_url=lone.url)
    page.goto(at("broken-1", "history", "&event=3"))
    expect(page.get_by_text("cannot be decoded")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="download all of it").click()
    assert download.value.path().read_bytes().endswith(b"\xff\xff")


def test_a_viewer_without_payloads_is_told_that_they_are_hidden(
    guarded: ServerProcess, new_page: NewPage, complaints: Complaints
) -> None:
    complaints.allow("401")
    begun = {"workflow_type": "stranded", "workflow_id": "secret-1", "task_queue": "nowhere", "input": ["my secret"]}
    assert guarded.call("POST", "/workflows", begun).status_code in (200, 201)
    token = guarded.call("POST", "/tokens", {"role": "viewer", "payloads": False}, token=ADMIN).json()["token"]
    page = new_page(base_url=guarded.url)
    page.goto("/waterline/")
    page.get_by_label("token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("navigation", name="screens")).to_be_visible()
    page.goto(at("secret-1", "history", "&event=2"))
    expect(page.get_by_text("hidden: your session may not read payloads")).to_be_visible()
    page.goto(at("secret-1", "messages"))
    expect(page.get_by_role("button", name="Send a signal")).to_be_disabled()
    page.get_by_role("row", name=re.compile("start")).get_by_role("button").click()
    expect(page.get_by_text("hidden: your session may not")).to_be_visible()
    page.goto(at("secret-1", "export"))
    expect(page.get_by_role("button", name="Download")).to_have_count(0)
    assert "my secret" not in page.content()


# -- activities, lineage, failures, export


@pytest.mark.contract("ACT-20")
def test_an_activity_that_backs_off_is_tried_now(page: Page, world: World) -> None:
    workflow_id = world.begin("delivery", "parcel 18")
    world.reach(workflow_id, "tries_again")
    page.goto(at(workflow_id, "activities"))
    expect(page.locator(".attempt")).to_have_count(1)
    expect(page.locator(".attempt")).to_contain_text("the carrier did not answer for parcel 18")
    page.locator(".activities").get_by_role("button", name="Retry now").click()
    expect(page.locator(".attempt")).to_have_count(2)
    page.locator(".activities").get_by_role("button", name="carrier").click()
    expect(page.locator("tr.below")).to_contain_text("21 attempts")
    expect(page.get_by_label("arguments", exact=True)).to_have_text('["parcel 18"]')


def test_an_effect_whose_outcome_is_unknown_has_its_key(page: Page) -> None:
    def lost(told: Any) -> None:
        told["activities"][0]["attempts"][0]["status"] = "expired"

    retold(page, "activities", lost)
    page.goto(at("delivery-1", "activities"))
    unsure = page.get_by_role("region", name="Attempts with unknown outcome")
    expect(unsure.get_by_role("row").nth(1)).to_contain_text("carrier1")
    expect(unsure).to_contain_text("never reported")
    expect(unsure.get_by_role("button", name="copy the key")).to_be_visible()


@pytest.mark.contract("COND-03")
def test_a_sleep_is_skipped_from_the_list_of_waits(page: Page, world: World) -> None:
    workflow_id = world.begin("reminder", 30)
    world.reach(workflow_id, "sleeps")
    page.goto(at(workflow_id, "waits"))
    page.get_by_role("row", name=re.compile("timer")).first.get_by_role("button", name="Skip wait").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Show what would be written").click()
    expect(dialog.get_by_label("what would be written")).to_contain_text("event WaitSkipped")
    dialog.get_by_label("Reason").fill("she called")
    dialog.get_by_role("button", name="Skip wait").click()
    expect(dialog).to_have_count(0)
    expect(page.locator(".badge").first).to_contain_text("completed")
    expect(page.get_by_role("button", name="Skip wait")).to_have_count(0)


def test_waits_name_their_condition_and_miss_their_tasks(page: Page) -> None:
    page.goto(at("approval-1", "waits"))
    row = page.get_by_role("region", name="Waits").get_by_role("row", name=re.compile("condition approved"))
    expect(row).to_contain_text("times out")
    expect(row).to_contain_text("ready timer task")

    def lost(told: Any) -> None:
        told["waits"][0] |= {"task_status": "missing", "task_backed": False}

    retold(page, "waits", lost)
    page.reload()
    expect(row).to_contain_text("missing timer task")


def test_progress_is_a_meter(page: Page) -> None:
    page.goto(at("import-1", "activities"))
    expect(page.locator(".attempt")).to_contain_text("400 of 1,000 rows, copying rows")
    expect(page.locator(".meter > span")).to_have_attribute("style", "width: 40%;")


@pytest.mark.contract("PCP-11")
def test_a_failed_grandchild_is_reached_from_its_grandparent(page: Page) -> None:
    page.goto(at("family-1", "lineage"))
    failed = page.locator(".kin", has_text="grandchild")
    expect(failed).to_contain_text("failed")
    expect(failed).to_contain_text("keeps running if the parent closes")
    failed.get_by_role("link").click()
    expect(page.locator(".kin[aria-current]")).to_contain_text("grandchild")
    expect(page.locator(".lineage > li > .kin")).to_contain_text("family-1")
    page.get_by_role("link", name="Failures").click()
    expect(page.get_by_label("trace", exact=True)).to_contain_text("CardDeclined: Kim has no money")
    expect(page.get_by_text("world_code:CardDeclined found by recorded class")).to_be_visible()


def test_a_parent_says_how_its_children_are(page: Page) -> None:
    page.goto(at("family-1", "lineage"))
    children = page.get_by_role("group", name="its children")
    expect(children).to_contain_text("4 children")
    expect(children).to_contain_text(re.compile(r"completed\s*2"))
    expect(children).to_contain_text(re.compile(r"waiting\s*2"))


def test_runs_that_were_continued_are_one_family(page: Page) -> None:
    page.goto(at("poller-1", "lineage"))
    expect(page.locator(".kin")).to_have_count(4)
    expect(page.locator(".kin", has_text="continued")).to_have_count(3)
    expect(page.locator(".kin[aria-current]")).to_contain_text("run 4")


@pytest.mark.parametrize("tab", ["timeline", "export"])  # the first one, and one that is about something else
def test_history_and_code_stand_side_by_side_under_the_sentence(page: Page, tab: str) -> None:
    page.goto(at("shipping-1", tab))
    unfit = page.get_by_role("region", name="history and code")
    expect(unfit.get_by_role("columnheader")).to_have_text(["recorded", "code asked for"])
    first = unfit.locator(".first")
    expect(first.get_by_role("cell").nth(0)).to_contain_text("1: activity pick")
    expect(first.get_by_role("cell").nth(1)).to_have_text("timer")
    expect(unfit.get_by_text("No other open run of this type has the same difference.")).to_be_visible()
    above, below = page.get_by_role("region", name="why").bounding_box(), unfit.bounding_box()
    assert above is not None
    assert below is not None
    assert abs(above["y"] + above["height"] - below["y"]) < 1
    # To try the same code again would block the run again: what helps is other code, and the way to test it.
    expect(page.get_by_role("region", name="why")).to_contain_text("Deploy code that fits")
    expect(page.get_by_role("region", name="why").get_by_role("button", name="Repair")).to_have_count(0)
    expect(unfit.get_by_text("dw verdict shipping-1 --app FILE")).to_be_visible()
    unfit.get_by_text("What blocked it").click()
    expect(unfit).to_contain_text("blocked by")

    def also(told: Any) -> None:
        same = [{"workflow_id": f"shipping-{n}", "run_id": f"R{n}", "message": ""} for n in range(2, 25)]
        told |= {"same_block_count": 23, "same_block": same}

    retold(page, "replay-difference", also)
    page.reload()
    expect(unfit).to_contain_text("23 other runs have the same difference")
    expect(unfit.get_by_role("link", name="shipping-2")).to_have_attribute("href", re.compile("shipping-2/R2"))
    expect(unfit.get_by_role("link", name="all blocked runs of shipping")).to_have_attribute(
        "href", "/waterline/runs?attention=blocked&workflow_type=shipping&bucket=running"
    )


def test_the_export_is_downloaded_and_verifies(page: Page) -> None:
    page.goto(at("welcome-1", "export"))
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    assert download.value.suggested_filename == "welcome-1.json"
    verified = subprocess.run([*DW, "export", "verify", str(download.value.path())], capture_output=True, check=False)
    assert verified.returncode == 0, verified.stderr
    expect(page.get_by_text("dw export verify welcome-1.json")).to_be_visible()


@pytest.mark.parametrize(("scheme", "width"), looks(1280, 390))
def test_a_tab_keeps_no_reader_out(new_page: NewPage, scheme: Literal["light", "dark"], width: int) -> None:
    page = new_page(color_scheme=scheme, viewport={"width": width, "height": 900})
    for tab, (workflow_id, more) in TABS.items():
        settled(page, at(workflow_id, tab, more))
        assert axe(page) == [], tab
        assert too_wide(page) <= 0, tab
