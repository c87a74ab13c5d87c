"""Lists and counts with any combination of filters: what they find, in which order, how far they look, and bad input."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from backstay.engine.reading import run_search
from backstay.protocol import requests as ask
from backstay.server.published.control import saved_views

from .kit import Api, serving, sql

CHARGE = {"type": "schedule_activity", "activity_type": "charge"}


async def flows(api: Api, bucket: str = "all", **filters: Any) -> dict[str, Any]:
    answer = await api.control("GET", f"/flows/{bucket}", params={"definition": "0"} | filters)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def ids(api: Api, bucket: str = "all", **filters: Any) -> str:
    return " ".join(sorted(flow["instance_id"] for flow in (await flows(api, bucket, **filters))["flows"]))


async def counted(api: Api, bucket: str = "all", **filters: Any) -> dict[str | None, int]:
    answer = await api.control("GET", f"/flows/{bucket}/count", params={"definition": "0"} | filters)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["complete"]
    return {group["value"]: group["count"] for group in found["groups"]} or {None: found["count"]}


async def asking(api: Api, id: str, *commands: dict[str, Any], **more: Any) -> None:
    await api.start(id, **more)
    await api.complete(await api.poll(), *commands)


async def furnished(api: Api) -> None:
    """Runs in every state, with labels and attributes."""
    await api.register()
    for name, type in (("customer", "keyword"), ("amount", "int"), ("vip", "bool")):
        await api.control("POST", "/search-attributes", {"name": name, "type": type})
    shop, bank = {"team": "shop"}, {"team": "bank", "tier": "gold"}
    await asking(
        *(api, "sleeps", {"type": "start_timer", "delay_seconds": 3600}),
        visibility_labels=shop,
        search_attributes={"amount": 1, "vip": True},
    )
    await asking(api, "waits", {"type": "open_signal_wait", "signal_name": "go"}, visibility_labels=bank)
    await asking(api, "fails", {"type": "fail_workflow", "message": "no"}, visibility_labels=shop, business_key="k-1")
    await asking(api, "ends", {"type": "complete_workflow"}, search_attributes={"customer": "ada", "amount": 2})
    await asking(api, "again", {"type": "continue_as_new"}, business_key="k-2")
    await api.complete(await api.poll(), {"type": "open_condition_wait", "condition_key": "paid"})
    await api.start("stops", search_attributes={"customer": "ada"})
    await api.control("POST", "/workflows/stops/terminate", {})
    await api.start("pauses", visibility_labels=shop)
    await api.control("POST", "/workflows/pauses/pause", {})
    await asking(api, "retries", {**CHARGE, "retry_policy": {"max_attempts": 5, "backoff_seconds": [600]}})
    await api.activity("fail", await api.poll("activity"), failure={"message": "card declined", "type": "Declined"})
    await api.start("blocks")
    await api.fail(await api.poll(), message="it differs", type="HistoryShapeMismatch")
    await asking(api, "works", CHARGE)
    await api.poll("activity")
    await asking(api, "ready", CHARGE, visibility_labels=bank, search_attributes={"amount": 1})
    await api.start("nobody", task_queue="far", workflow_type="order")


STATES = {
    "sleeps": "sleeping",
    "waits": "waiting",
    "again": "waiting",
    "pauses": "paused",
    "retries": "retrying",
    "blocks": "blocked",
    "works": "working",
    "ready": "ready",
    "nobody": "ready",
    "fails": "failed",
    "ends": "completed",
    "stops": "terminated",
}

FOUND: list[tuple[dict[str, Any], str]] = [
    ({"status": "running"}, "again blocks nobody pauses ready retries sleeps waits works"),
    ({"status": ["failed", "terminated"]}, "fails stops"),
    ({"state": "sleeping"}, "sleeps"),
    ({"state": ["retrying", "blocked"]}, "blocks retries"),
    ({"state": ["ready", "terminated"]}, "nobody ready stops"),
    ({"state": "continued"}, "again"),
    ({"state": ["waiting", "continued"], "business_key": "k-2"}, "again again"),
    ({"attention": "blocked"}, "blocks"),
    ({"attention": "retrying"}, "retries"),
    ({"attention": "no_worker"}, "nobody"),
    ({"attention": ["no_worker", "blocked"]}, "blocks nobody"),
    ({"repair_attention": "true"}, "nobody"),
    ({"repair_blocked_reason": "waiting_for_compatible_worker"}, "nobody"),
    ({"liveness_state": "workflow_task_waiting_for_compatible_worker"}, "nobody"),
    ({"liveness_state": ["timer_scheduled", "waiting_for_signal"]}, "sleeps waits"),
    ({"task_problem": "true"}, "blocks"),
    ({"wait_kind": ["signal", "condition"]}, "again waits"),
    ({"label[team]": "shop"}, "fails pauses sleeps"),
    ({"label[team]": ["shop", "bank"], "status": "running"}, "pauses ready sleeps waits"),
    ({"label[team]": "bank", "labels[tier]": "gold", "state": "ready"}, "ready"),
    ({"attribute[amount]": "1"}, "ready sleeps"),
    ({"attribute[amount]": ["1", "2"], "attribute[customer]": "ada"}, "ends"),
    ({"attribute[vip]": "true"}, "sleeps"),
    ({"q": "re"}, "ready retries"),
    ({"q": "k-1"}, "fails"),
    ({"q": "order", "state": "blocked"}, "blocks"),
    ({"q": "rder"}, ""),
    ({"instance_id": ["waits", "works", "gone"]}, "waits works"),
    ({"is_terminal": "true", "label[team]": "shop"}, "fails"),
]


@pytest.mark.contract("VIS-03", "VIS-04", "VIS-05", "VIS-06", "ACTION-03", "ACTION-04")
@pytest.mark.parametrize("many", [False, True], ids=["each is looked at", "by index"])
@pytest.mark.parametrize("stored", [False, True], ids=["before summaries are stored", "after"])
async def test_several_values_states_causes_labels_and_attributes(
    monkeypatch: pytest.MonkeyPatch, many: bool, stored: bool
) -> None:
    """Among few runs each is looked at; among many, what is stored counts. Both find the same."""
    async with serving() as api:
        await furnished(api)
        if stored:
            await api.world.advance(1)
        if many:
            monkeypatch.setattr(run_search, "SMALL", 1)
        for filters, found in FOUND:
            assert await ids(api, **filters) == found, filters
            assert sum((await counted(api, **filters)).values()) == len(found.split()), filters
        told = {flow["instance_id"]: flow["state"] for flow in (await flows(api, is_current_run="true"))["flows"]}
        assert told == STATES
        states = await counted(api, "running", group_by="state")
        assert states == {"waiting": 2, "ready": 2} | dict.fromkeys(
            ("sleeping", "paused", "retrying", "blocked", "working"), 1
        )


@pytest.mark.contract("LIVE-01", "LIVE-02")
async def test_a_row_says_why_it_waits_since_when_and_until_when() -> None:
    async with serving() as api:
        await furnished(api)
        rows = {flow["instance_id"]: flow for flow in (await flows(api, "running"))["flows"]}
        retries, sleeps = rows["retries"], rows["sleeps"]
        assert (retries["attempt"], retries["attempts"], retries["last_error"]) == (1, 5, "card declined")
        assert (retries["wait_reason"], retries["attention"]) == ("activity charge", "retrying")
        assert "card declined" in retries["why"]
        assert retries["next_task_at"] > retries["wait_started_at"]
        assert (sleeps["state"], sleeps["wait_deadline_at"], sleeps["until"]) == ("sleeping", *[sleeps["until"]] * 2)
        assert "No live worker serves queue 'far'" in rows["nobody"]["why"]
        assert all(flow["why"] and flow["duration_ms"] >= 0 and flow["since"] for flow in rows.values())
        (failed,) = (await flows(api, "failed"))["flows"]
        assert (failed["exception_count"], failed["last_error"], failed["duration_ms"]) == (1, "no", 1)
        (chosen,) = (await flows(api, instance_id="fails", fields="instance_id,why"))["flows"]
        assert set(chosen) == {"instance_id", "why"}


@pytest.mark.contract("LIVE-03")
async def test_a_thousand_runs_of_one_millisecond_are_paged_in_one_order() -> None:
    async with serving() as api:
        starts = (ask.StartWorkflow(workflow_id=f"o-{n}", workflow_type="order") for n in range(1000))
        await asyncio.gather(*(api.server.api.call(start) for start in starts))
        found: list[dict[str, Any]] = []
        token = ""
        while True:
            page = await flows(api, page_size=77, next_page_token=token, fields="run_id,sort_timestamp,sort_key")
            found += page["flows"]
            if page["complete"]:
                break
            token = page["next_page_token"]
            await api.server.api.call(ask.StartWorkflow(workflow_id=f"late-{len(found)}", workflow_type="order"))
        assert len({row["run_id"] for row in found}) == len(found) == 1000, "each once, and none that came later"
        assert found == sorted(found, key=lambda row: (row["sort_timestamp"], row["run_id"]), reverse=True)
        assert len({row["sort_key"] for row in found}) == 1000
        assert (page["next_page_token"], page["flow_count"]) == (None, 1000 - 12 * 77)


async def test_any_combination_of_filters_finds_what_the_rows_say(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = ("workflow_type", "status", "state", "attention", "wait_kind", "liveness_state", "queue", "business_key")
    flags = ("is_terminal", "is_current_run", "task_problem", "repair_attention", "archived")
    async with serving() as api:
        await furnished(api)
        await api.world.advance(1)
        rows = (await flows(api))["flows"]
        chance = random.Random(7)
        for turn in range(120):
            monkeypatch.setattr(run_search, "SMALL", chance.choice((1, 500)))
            monkeypatch.setattr(run_search, "BOUND", chance.choice((2, 2000)))
            asked: dict[str, Any] = {}
            for name in chance.sample(fields, chance.randrange(3)):
                values = sorted({str(row[name]) for row in rows if row[name] is not None})
                asked[name] = chance.sample(values, min(len(values), chance.randint(1, 2)))
            for name in chance.sample(flags, chance.randrange(2)):
                asked[name] = chance.choice(("true", "false"))
            wanted = [
                row["run_id"]
                for row in rows
                if all(str(row[name]) in values for name, values in asked.items() if name in fields)
                and all(row[name] == (asked[name] == "true") for name in flags if name in asked)
            ]
            found: list[str] = []
            token = ""
            while True:
                page = await flows(api, page_size=chance.randint(1, 4), next_page_token=token, **asked)
                found += [row["run_id"] for row in page["flows"]]
                token = page["next_page_token"]
                if token is None:
                    break
            assert found == wanted, (turn, asked)


async def test_a_namespace_has_room_for_so_many_views(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_views, "MOST", 2)
    async with serving() as api:
        ids = [(await api.control("POST", "/saved-views", {"name": name})).json()["id"] for name in "ab"]
        refused = await api.control("POST", "/saved-views", {"name": "c"})
        assert (refused.status_code, refused.json()["reason"]) == (409, "too_many_saved_views")
        assert (await api.control("PUT", f"/saved-views/{ids[0]}", {"name": "c"})).status_code == 200
        await api.control("DELETE", f"/saved-views/{ids[1]}")
        assert (await api.control("POST", "/saved-views", {"name": "d"})).status_code == 201


async def test_times_and_orders() -> None:
    async with serving() as api:
        await api.register()
        marks: list[str] = []
        for n, id in enumerate(("a", "b", "c")):
            await asking(api, id, {"type": "start_timer", "delay_seconds": 3600})
            marks.append((await api.describe(id))["started_at"])
            await api.world.advance(60 * (n + 1))
        for id in ("c", "a"):
            await api.control("POST", f"/workflows/{id}/terminate", {})
            await api.world.advance(60)
        await api.world.advance(600)

        async def order(**filters: Any) -> str:
            return "".join(flow["instance_id"] for flow in (await flows(api, **filters))["flows"])

        assert await order() == "cba"
        assert await order(order="asc") == "abc"
        assert await order(started_after=marks[1]) == "cb"
        assert await order(started_before=marks[1]) == "a"
        assert await order(started_after=marks[1], started_before=marks[2], status="running") == "b"
        assert await order(started_after="9999-12-31T23:59:59Z") == ""
        assert await order(started_before="9999-12-31T23:59:59Z") == "cba"
        ended = {flow["instance_id"]: flow["closed_at"] for flow in (await flows(api, "terminated"))["flows"]}
        assert await order(closed_after=ended["a"]) == "a"
        assert await order(closed_before=ended["a"]) == "c"
        assert await order(sort="closed") == "ac"
        assert await order(sort="closed", order="asc") == "ca"
        assert await order(sort="duration") == "bac"
        assert await order(sort="duration", order="asc") == "cab"
        assert await order(sort="events", status="running") == "b"
        assert await order(sort="since", status="running") == "b"
        query = f"StartTime >= '{marks[1]}' AND Status IN ('running', 'terminated')"
        answer = await api.control("GET", "/workflows", params={"query": query})
        assert [found["workflow_id"] for found in answer.json()["workflows"]] == ["c", "b"]
        query = "State = 'sleeping' AND CloseTime < '2100-01-01'"
        assert (await api.control("GET", "/workflows", params={"query": query})).json()["workflows"] == []


async def test_an_order_of_its_own_says_how_far_it_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_search, "BOUND", 4)
    async with serving() as api:
        for n in range(6):
            await api.start(f"o-{n}", task_queue="near" if n % 2 else "far")
        found = await flows(api, sort="duration", page_size=3)
        assert (found["looked_at"], found["complete"], found["flow_count"]) == (4, False, 3)
        rest = await flows(api, sort="duration", page_size=3, next_page_token=found["next_page_token"])
        assert [flow["instance_id"] for flow in (*found["flows"], *rest["flows"])] == ["o-2", "o-3", "o-4", "o-5"]
        assert (rest["next_page_token"], rest["complete"]) == (None, False), "older runs were not looked at"
        seldom = await flows(api, queue="nowhere")
        assert (seldom["flow_count"], seldom["looked_at"], seldom["complete"]) == (0, 4, False)
        more = await flows(api, queue="nowhere", next_page_token=seldom["next_page_token"])
        assert (more["looked_at"], more["complete"]) == (2, True)


async def test_counts_by_each_field() -> None:
    async with serving() as api:
        await furnished(api)
        assert await counted(api) == {None: 13}
        assert await counted(api, "running") == {None: 9}
        assert await counted(api, group_by="status") == {
            "waiting": 6,
            "pending": 3,
            "completed": 2,
            "failed": 1,
            "terminated": 1,
        }
        assert await counted(api, group_by="type") == {"order": 13}
        assert await counted(api, group_by="queue") == {"q": 12, "far": 1}
        assert await counted(api, group_by="attention", state=["blocked", "retrying", "ready"]) == {
            "blocked": 1,
            "retrying": 1,
            "no_worker": 1,
            None: 1,
        }
        assert {"shop": 3, "bank": 2}.items() <= (await counted(api, group_by="label:team")).items()
        assert {"1": 2, "2": 1}.items() <= (await counted(api, group_by="attribute:amount")).items()
        assert await counted(api, "failed", group_by="label:team") == {"shop": 1}
        answer = await api.control("GET", "/flows/running/count", params={"group_by": "statte"})
        assert (answer.status_code, "did you mean 'state'?" in answer.json()["message"]) == (422, True)


@pytest.mark.contract("VIS-07")
async def test_the_definition_has_its_own_route_and_can_be_left_out() -> None:
    async with serving() as api:
        await furnished(api)
        found = (await api.control("GET", "/flows/definition")).json()
        inside = (await api.control("GET", "/flows/all")).json()["visibility_filters"]["definition"]
        assert inside.items() <= found.items()
        assert [field["field"] for field in found["further_fields"]] == ["state", "attention"]
        assert found["attributes"] == {"customer": "keyword", "amount": "int", "vip": "bool"}
        assert "definition" not in (await flows(api))["visibility_filters"]
        for field, prefix, suggested in (
            ("instance_id", "re", ["ready", "retries"]),
            ("workflow_type", "", ["order"]),
            ("business_key", "k-", ["k-1", "k-2"]),
            ("queue", "", ["far", "q"]),
            ("label", "t", ["team", "tier"]),
            ("label:team", "s", ["shop"]),
            ("attribute:amount", "", ["1", "2"]),
        ):
            answer = await api.control("GET", "/suggest", params={"field": field, "prefix": prefix})
            assert answer.json()["suggestions"] == suggested, (field, answer.text)


@pytest.mark.contract("VIS-02", "VIS-10", "VIS-11")
async def test_views_are_read_changed_and_keep_their_bucket() -> None:
    async with serving() as api:
        await furnished(api)
        body = {
            "name": "Shop",
            "bucket": "running",
            "labels": {"team": ["shop", "bank"]},
            "filters": {"sort": "events"},
        }
        made = (await api.control("POST", "/saved-views", body | {"owner": "ada", "position": 2})).json()
        path = f"/saved-views/{made['id']}"
        assert (await api.control("GET", path)).json()["owner"] == "ada"
        elsewhere = await flows(api, "completed", view=made["id"])
        assert elsewhere["visibility_filters"]["bucket"] == "running", "the bucket of the view counts"
        assert sorted(flow["instance_id"] for flow in elsewhere["flows"]) == ["pauses", "ready", "sleeps", "waits"]
        problems = await flows(api, "completed", view="system:running-task-problems")
        assert [flow["instance_id"] for flow in problems["flows"]] == ["blocks"]
        changed = await api.control("PUT", path, {"name": "Bank", "bucket": "all", "labels": {"team": "bank"}})
        assert (changed.json()["name"], changed.json()["owner"], changed.json()["position"]) == ("Bank", "ada", 0)
        assert await ids(api, view=made["id"], state="ready") == "ready"
        assert await ids(api, view=made["id"]) == "ready waits"
        for bucket in ("all", "running", "completed", "failed", "cancelled", "terminated"):
            saved = await api.control("POST", "/saved-views", {"name": bucket, "bucket": bucket, "filters": {"q": "w"}})
            assert saved.status_code == 201, "every bucket"
        for method, view, status, reason in (
            ("PUT", "system:running", 409, "system_view"),
            ("PUT", "gone", 404, "saved_view_not_found"),
            ("GET", "gone", 404, "saved_view_not_found"),
        ):
            wrong = await api.control(method, f"/saved-views/{view}", {"name": "x"} if method == "PUT" else None)
            assert (wrong.status_code, wrong.json()["reason"]) == (status, reason)
        wrong = await api.control("PUT", path, {"name": "x", "filters": {"statte": "waiting"}})
        assert (wrong.status_code, wrong.json()["field"]) == (422, "statte")
        assert (await api.control("GET", path)).json()["name"] == "Bank", "and nothing was stored"
        assert (await api.control("GET", "/saved-views/system:running")).json()["system"] is True


@pytest.mark.parametrize(
    ("path", "params", "field", "told"),
    [
        ("all", {"statsu": "x"}, "statsu", "did you mean 'status'?"),
        ("all", {"sort": "startd"}, "sort", "did you mean 'started'?"),
        ("all", {"order": "down"}, "order", "must be one of desc, asc"),
        ("all", {"state": "waitng"}, "state", "did you mean 'waiting'?"),
        ("all", {"attention": "blockd"}, "attention", "did you mean 'blocked'?"),
        ("runing", {}, "bucket", "did you mean 'running'?"),
        ("all", {"fields": "run_id,whhy"}, "fields", "did you mean 'why'?"),
        ("all", {"started_after": "yesterday"}, "started_after", "a time like"),
        ("all", {"started_after": "2027-01-02", "started_before": "2027-01-01"}, "started_before", "ends before"),
        ("all", {"closed_after": "2027-01-01", "closed_before": "2027-01-01"}, "closed_before", "ends before"),
        ("all", {"attribute[amont]": "1"}, "attribute[amont]", "did you mean 'amount'?"),
        ("all", {"attribute[amount]": "many"}, "attribute[amount]", "is a number"),
        ("all", {"archived": ["true", "false"]}, "archived", "one value"),
        ("all", {"q": "x" * 200}, "q", "at most 191"),
        ("all", {"status": [f"s{n}" for n in range(60)]}, "status", "1 to 50 values"),
        ("all/count", {"group_by": "labels"}, "group_by", "must be one of"),
        ("all/count", {"page_size": "3"}, "page_size", "no field to filter by"),
        ("all", {"page_size": "many"}, "page_size", "whole number"),
    ],
)
async def test_what_cannot_be_asked_says_what_can(path: str, params: dict[str, Any], field: str, told: str) -> None:
    async with serving() as api:
        await api.control("POST", "/search-attributes", {"name": "amount", "type": "int"})
        answer = await api.control("GET", f"/flows/{path}", params=params)
        assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text
        assert told in answer.json()["message"]


async def test_a_page_token_belongs_to_its_list() -> None:
    async with serving() as api:
        for n in range(4):
            await api.start(f"o-{n}")
        token = (await flows(api, page_size=2))["next_page_token"]
        for bucket, filters in (
            ("running", {}),
            ("all", {"status": "running"}),
            ("all", {"order": "asc"}),
            ("all", {"sort": "closed"}),
        ):
            answer = await api.control("GET", f"/flows/{bucket}", params=filters | {"next_page_token": token})
            assert (answer.status_code, answer.json()["reason"]) == (422, "page_token_of_another_list")
        for wrong in ("x", "MA==", "WyJhIl0=", token[:-4]):
            answer = await api.control("GET", "/flows/all", params={"next_page_token": wrong})
            assert (answer.status_code, answer.json()["reason"]) == (400, "invalid_page_token")
        workflows = (await api.control("GET", "/workflows?page_size=2")).json()["next_page_token"]
        mixed = await api.control("GET", "/workflows", params={"next_page_token": token})
        assert (mixed.status_code, mixed.json()["reason"]) == (422, "page_token_of_another_list")
        rest = await api.control("GET", "/workflows", params={"next_page_token": workflows})
        assert [found["workflow_id"] for found in rest.json()["workflows"]] == ["o-1", "o-0"]


async def test_lists_are_right_about_rows_that_were_changed_by_hand() -> None:
    async with serving() as api:
        await furnished(api)
        await api.world.advance(1)
        sql(api, "delete from workflow_run_summaries where workflow_type = 'order'")
        assert await ids(api, state="blocked") == "blocks"
        await api.world.advance(1)
        sql(api, "update workflow_run_summaries set state = 'waiting'")
        assert await ids(api, state="blocked") == "blocks"
        assert await ids(api, "running", state="waiting") == "again waits"
        sql(api, "delete from task where workflow = (select workflow from run where workflow_id = 'ready')")
        assert await ids(api, task_problem="true") == "blocks ready"
        assert await ids(api, attention="repair_needed") == "ready"
