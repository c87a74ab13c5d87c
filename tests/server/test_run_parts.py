"""Parts of a run: each is a page, for the current run and for any other, and says the same as the detail of the run."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from backstay.codec import avro
from backstay.engine.reading import slices
from backstay.server.published.control import history as history_route
from backstay.server.published.control.parts import outline as outline_route

from .kit import Api, blob, detail, serving, sql
from .test_exports import SECRET, busy, closed


async def asked(api: Api, part: str, workflow_id: str = "o-1") -> httpx.Response:
    return await api.control("GET", f"/workflows/{workflow_id}/{part}")


async def found(api: Api, part: str, workflow_id: str = "o-1") -> dict[str, Any]:
    answer = await asked(api, part, workflow_id)
    assert answer.status_code == 200, answer.text
    return answer.json()


PARTS = ("summary", "outline", "history", "events/1", "activities", "waits", "messages", "failures", "lineage", "at/1")


@pytest.mark.parametrize("part", [*PARTS, "replay-difference"])
async def test_a_part_is_the_same_for_the_current_run_and_by_its_id(part: str) -> None:
    async with serving() as api:
        run = (await busy(api))["run_id"]
        current, named = await found(api, part), await found(api, f"runs/{run}/{part}")
        current.pop("control_plane", None)
        named.pop("control_plane", None)
        assert current == named
        assert (current["workflow_id"], current["run_id"]) == ("o-1", run)


@pytest.mark.parametrize("part", [*PARTS, "replay-difference"])
async def test_a_part_of_something_that_does_not_exist_is_not_found(part: str) -> None:
    async with serving() as api:
        missing = await asked(api, part, "nobody")
        assert (missing.status_code, missing.json()["reason"]) == (404, "instance_not_found")
        await api.register()
        await api.start()
        other = await asked(api, f"runs/nobody/{part}")
        assert (other.status_code, other.json()["reason"]) == (404, "run_not_found")
        await api.control("POST", "/reservations", {"workflow_type": "order", "workflow_id": "r-1", "task_queue": "q"})
        reserved = await asked(api, part, "r-1")
        assert (reserved.status_code, reserved.json()["reason"]) == (409, "instance_not_started")


async def test_an_older_run_has_all_of_its_parts() -> None:
    async with serving() as api:
        await api.register()
        first = (await api.start())["run_id"]
        await api.complete(await api.poll(), {"type": "continue_as_new", "arguments": blob([1])})
        second = (await api.describe())["run_id"]
        assert second != first
        for part in PARTS:
            older = await found(api, f"runs/{first}/{part}")
            assert older["run_id"] == first
            assert (await found(api, part))["run_id"] == second
        assert (await found(api, f"runs/{first}/summary"))["state"] == "continued"
        tree = await found(api, f"runs/{first}/lineage?depth=3")
        assert [child["run_id"] for child in tree["run"]["children"]] == [second]
        assert [one["run_id"] for one in (await found(api, "lineage"))["parents"]] == [first]


# -- history


async def test_a_history_is_read_from_either_end() -> None:
    async with serving() as api:
        await busy(api)
        whole = (await found(api, "history"))["events"]
        numbers = [event["sequence"] for event in whole]
        for order, expected in (("asc", numbers), ("desc", numbers[::-1])):
            told: list[int] = []
            path = f"history?order={order}&page_size=3"
            token: str | None = ""
            while token is not None:
                page = await found(api, path + (f"&next_page_token={token}" if token else ""))
                told += [event["sequence"] for event in page["events"]]
                token = page["next_page_token"]
                assert (token is None) == page["complete"]
            assert told == expected
        assert (await found(api, "history?order=desc&page_size=1"))["last_sequence"] == numbers[-1]


async def test_a_history_is_chosen_by_range_kind_type_step_and_text() -> None:
    async with serving() as api:
        await busy(api)
        whole = (await found(api, "history"))["events"]

        async def numbers(query: str) -> list[int]:
            return [event["sequence"] for event in (await found(api, f"history?{query}"))["events"]]

        assert await numbers("from=3&to=5") == [3, 4, 5]
        assert await numbers("from=4&to=4&order=desc") == [4]
        activity = [event["sequence"] for event in whole if event["event_type"].startswith("Activity")]
        assert activity
        assert await numbers("kind=activity") == activity
        assert await numbers("type=ActivityFailed,ActivityStarted") == [
            event["sequence"] for event in whole if event["event_type"] in ("ActivityFailed", "ActivityStarted")
        ]
        step = next(event["step"] for event in whole if event["event_type"] == "ActivityScheduled")
        of_step = await numbers(f"step={step}")
        assert of_step == [event["sequence"] for event in whole if event["step"] == step]
        assert set(activity) <= set(of_step)
        assert await numbers("text=DECLINED") == [
            event["sequence"] for event in whole if "declined" in json.dumps(event).lower()
        ]
        # A text is found inside payloads, too.
        assert [event["event_type"] for event in whole if event["sequence"] in await numbers(f"text={SECRET}")][:2] == [
            "WorkflowStarted",
            "SideEffectRecorded",
        ]
        assert await numbers("text=nothing+of+that") == []


async def test_every_event_says_what_its_code_had_seen_and_what_happened_in_words() -> None:
    async with serving() as api:
        await busy(api)
        whole = (await found(api, "history"))["events"]
        assert all("decided_after" in event for event in whole)
        scheduled = next(event for event in whole if event["event_type"] == "ActivityScheduled")
        assert (scheduled["decided_after"], scheduled["kind"], scheduled["step"]) == (2, "activity", 3)
        assert scheduled["words"] == f"charge('{SECRET}') scheduled on queue 'q'"
        failed = next(event for event in whole if event["event_type"] == "ActivityFailed")
        assert failed["tone"] == "bad"
        assert "declined" in failed["words"]
        # A page from the middle tells the same words.
        middle = (await found(api, f"history?from={failed['sequence']}&to={failed['sequence']}"))["events"]
        assert middle[0]["words"] == failed["words"]


async def test_payloads_of_a_history_are_blobs_text_or_left_out() -> None:
    async with serving() as api:
        await api.register()
        await api.start(input=[2**62, "ä"])
        started = (await found(api, "history"))["events"][1]["payload"]["arguments"]
        assert isinstance(started, str)
        text = (await found(api, "history?payloads=text"))["events"][1]["payload"]["arguments"]
        assert (text["decoded"], text["text"]) == (True, f'[{2**62}, "ä"]')
        none = await found(api, "history?payloads=none")
        assert none["events"][1]["payload"]["arguments"] is None


async def test_a_search_looks_at_a_bounded_number_of_events_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_route, "LOOKED_AT", 4)
    async with serving() as api:
        await busy(api)
        length = (await found(api, "history"))["last_sequence"]
        told: list[int] = []
        pages = 0
        token = ""
        while True:
            page = await found(api, f"history?kind=timer&order=desc{token}")
            assert page["looked_at"] <= 4
            told += [event["sequence"] for event in page["events"]]
            pages += 1
            if page["complete"]:
                break
            token = f"&next_page_token={page['next_page_token']}"
        assert (pages, len(told)) == (-(-length // 4), 1)


@pytest.mark.parametrize(
    ("query", "reason", "nearest"),
    [
        ("kind=activty", "unknown_kind", "activity"),
        ("type=ActivityFaild", "unknown_type", "ActivityFailed"),
        ("order=dsc", "unknown_order", "desc"),
        ("payloads=txt", "unknown_payloads", "text"),
        ("knid=activity", "unknown_parameter", "kind"),
        ("from=5&to=3", "invalid_range", None),
        ("from=x", "validation_failed", None),
        ("step=-1", "validation_failed", None),
        (f"text={'x' * 300}", "validation_failed", None),
    ],
)
async def test_a_history_that_cannot_be_meant_is_refused(query: str, reason: str, nearest: str | None) -> None:
    async with serving() as api:
        await api.register()
        await api.start()
        answer = await asked(api, f"history?{query}")
        said = answer.json()
        assert (answer.status_code, said["reason"]) == (422, reason)
        assert said["field"] in said["validation_errors"]
        if nearest is not None:
            assert said["nearest"] == nearest
            assert nearest in said["message"]


async def test_a_token_of_another_list_is_refused() -> None:
    async with serving() as api:
        await busy(api)
        descending = (await found(api, "history?order=desc&page_size=2"))["next_page_token"]
        plain = (await found(api, "history?page_size=2"))["next_page_token"]
        waits = (await found(api, "waits?page_size=1"))["next_page_token"]
        assert None not in (descending, plain, waits)
        for path in (
            f"history?next_page_token={descending}",
            f"history?order=desc&kind=timer&next_page_token={descending}",
            f"history?order=desc&next_page_token={plain}",
            f"history?order=desc&next_page_token={waits}",
            f"waits?next_page_token={descending}",
            f"waits?status=open&next_page_token={waits}",
            "waits?next_page_token=x",
        ):
            answer = await asked(api, path)
            assert (answer.status_code, answer.json()["reason"]) == (400, "invalid_page_token"), path


# -- one event


async def test_one_event_has_its_payloads_as_exact_text_and_its_cause() -> None:
    async with serving() as api:
        await api.register()
        await api.start(input=[2**63 - 1, {"cents": -(2**62)}, "é"])
        event = (await found(api, "events/2"))["event"]
        assert event["event_type"] == "WorkflowStarted"
        (payload,) = event["payloads"]
        assert (payload["field"], payload["decoded"], payload["truncated"]) == ("arguments", True, False)
        assert payload["text"] == '[9223372036854775807, {"cents": -4611686018427387904}, "é"]'
        assert event["payload"]["arguments"] is None, "it is below, once"
        task = await api.poll()
        await api.complete(task, {"type": "schedule_activity", "activity_type": "charge", "arguments": blob([1])})
        event = (await found(api, "events/3"))["event"]
        context = event["context"]
        assert (context["task_id"], context["worker"], context["decided_after"]) == (task["task_id"], "worker-1", 2)
        assert (event["words"], event["payload_fields"]) == (
            "charge(1) scheduled on q",
            ["activity.arguments"],
        ) or event["words"].startswith("charge(1) scheduled")


async def test_what_cannot_be_decoded_says_so_and_why() -> None:
    async with serving() as api:
        await api.register()
        await api.start()
        broken = avro.to_text(avro.from_text(blob("xyz")["blob"])[:-2])  # it begins well, and ends too early
        done = await api.complete(await api.poll(), {"type": "record_side_effect", "result": broken})
        assert done.status_code == 200, done.text
        (payload,) = (await found(api, "events/3"))["event"]["payloads"]
        assert (payload["field"], payload["decoded"], payload["text"]) == ("result", False, None)
        assert payload["reason"] == "invalid_payload_framing"
        assert payload["message"]
        listed = (await found(api, "history?payloads=text"))["events"][2]["payload"]["result"]
        assert listed == {name: value for name, value in payload.items() if name != "field"}
        stored = await asked(api, "events/3?download=result")
        assert avro.to_text(stored.content) == broken, "what cannot be decoded is sent as it is stored"


async def test_a_large_payload_is_shown_by_its_beginning_and_can_be_downloaded() -> None:
    large = "x" * 1_000_000
    async with serving() as api:
        await api.register()
        await api.start(input=[large])
        answer = await asked(api, "events/2")
        assert len(answer.content) < 100_000
        (payload,) = answer.json()["event"]["payloads"]
        assert (payload["truncated"], len(payload["text"])) == (True, 20 << 10)
        whole = await asked(api, "events/2?download=arguments")
        assert whole.headers["content-type"] == "application/json"
        assert whole.json() == [large]
        stored = await asked(api, "events/2?download=arguments&form=blob")
        assert stored.headers["content-type"] == "application/octet-stream"
        assert stored.content[:2] == b"\xc3\x01"
        unknown = await asked(api, "events/2?download=argument")
        assert (unknown.status_code, unknown.json()["nearest"]) == (422, "arguments")


@pytest.mark.parametrize("part", ["events", "at"])
async def test_an_event_beyond_the_end_is_not_found_and_the_last_one_is_named(part: str) -> None:
    async with serving() as api:
        await api.register()
        await api.start()
        for sequence in (0, 3, 10**12):
            answer = await asked(api, f"{part}/{sequence}")
            said = answer.json()
            assert (answer.status_code, said["reason"], said["last_sequence"]) == (404, "event_not_found", 2)
        wrong = await asked(api, f"{part}/x")
        assert (wrong.status_code, wrong.json()["field"]) == (422, "n")


# -- the outline


async def test_an_outline_has_every_step_with_its_attempts_tasks_and_marks() -> None:
    async with serving() as api:
        await busy(api)
        outline = await found(api, "outline")
        whole = (await found(api, "history"))["events"]
        texts = outline["texts"]
        steps = outline["steps"]
        rows = [dict(zip(steps, values, strict=True)) for values in zip(*steps.values(), strict=True)]
        named = {texts[row["kind"]]: row for row in rows}
        assert sorted(named) == ["activity", "child", "side_effect", "timer"]
        charge = named["activity"]
        assert (texts[charge["name"]], texts[charge["state"]], charge["attempts"]) == ("charge", "failed", 2)
        assert [charge["first"], charge["last"]] == [
            next(e["sequence"] for e in whole if e["event_type"] == "ActivityScheduled"),
            next(e["sequence"] for e in whole if e["event_type"] == "ActivityFailed"),
        ]
        (first,) = outline["attempts"]["attempt"]
        assert (first, texts[outline["attempts"]["state"][0]]) == (1, "failed")
        assert outline["attempts"]["next"][0] >= 1_000_000
        assert (texts[named["timer"]["state"]], named["timer"]["until"]) == ("pending", 60_000_000)
        assert texts[named["child"]["state"]] == "completed"
        marks = [texts[number] for number in outline["marks"]["type"]]
        assert {"SignalReceived", "UpdateCompleted"} <= set(marks)
        decisions = {event["workflow_task_id"] for event in whole if event["decided_after"] is not None}
        assert len(outline["tasks"]["first"]) == len(decisions)
        assert outline["complete"] is True
        assert outline["through"] == whole[-1]["sequence"]


async def test_an_outline_is_extended_by_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as api:
        await busy(api)
        before = await found(api, "outline")
        read: list[int] = []
        through = slices.Slices.through

        async def counted(self: Any, run: int, take: Any, *, after: int = 0, **more: Any) -> int:
            read.append(after)
            return await through(self, run, take, after=after, **more)

        monkeypatch.setattr(slices.Slices, "through", counted)
        await closed(api)
        news = await found(api, f"outline?after={before['through']}")
        assert read == [before["through"]], "the events that it was made of are not read again"
        texts = before["texts"] + news["texts"]
        assert news["texts_from"] == len(before["texts"])
        assert [texts[number] for number in news["steps"]["state"]] == ["fired"]
        assert news["steps"]["first"][0] in before["steps"]["first"], "a step that was known has changed"
        assert [texts[number] for number in news["marks"]["type"]] == ["WorkflowCompleted"]
        nothing = await found(api, f"outline?after={news['through']}")
        assert nothing["steps"]["first"] == nothing["marks"]["sequence"] == []


async def test_an_outline_in_pages_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as api:
        await busy(api)
        await closed(api)
        whole = await found(api, "outline")
        monkeypatch.setattr(outline_route, "ROWS", 3)
        texts: list[str] = []
        rows: dict[int, list[int]] = {}
        after, pages = 0, 0
        while True:
            page = await found(api, f"outline?after={after}")
            assert page["texts_from"] == len(texts)
            texts += page["texts"]
            for row in zip(*page["steps"].values(), strict=True):
                rows[row[0]] = list(row)
            pages, after = pages + 1, page["through"]
            if page["complete"]:
                break
        assert pages > 3
        assert texts == whole["texts"]
        assert sorted(rows.values()) == sorted(map(list, zip(*whole["steps"].values(), strict=True)))


async def test_an_outline_whose_history_was_replaced_is_made_again() -> None:
    async with serving() as api:
        await api.register()
        run = (await api.start())["run_id"]
        assert (await found(api, "outline"))["through"] == 2
        outlines = api.server.api.outlines
        (cached,) = outlines.cached.values()
        cached.outline.checksum += 1
        cached.outline.texts.append("of another history")
        again = await found(api, f"runs/{run}/outline")
        assert "of another history" not in again["texts"]
        assert again["through"] == 2


# -- lists


async def test_lists_say_the_same_as_the_detail() -> None:
    async with serving() as api:
        await busy(api)
        shown = await detail(api)
        pages = [await found(api, "activities?payloads=blob"), await found(api, "waits"), await found(api, "failures")]
        assert pages[0]["activities"] == shown["activities"]
        assert pages[1]["waits"] == shown["waits"]
        assert pages[1]["counts"] == {
            status: sum(wait["status"] == status for wait in shown["waits"])
            for status in ("open", "resolved", "cancelled")
        }
        assert [one["failure_id"] for one in pages[2]["failures"]] == [one["failure_id"] for one in shown["failures"]]
        text = (await found(api, "activities"))["activities"][0]["arguments"]
        assert text["text"] == json.dumps([SECRET])


async def test_lists_are_read_page_by_page() -> None:
    async with serving() as api:
        await api.register()
        await api.start()
        command = {"type": "schedule_activity", "activity_type": "charge", "arguments": blob([])}
        await api.complete(await api.poll(), *[command] * 7)
        steps: list[int] = []
        after = 0
        while after is not None:
            page = await found(api, f"activities?page_size=3&after={after}")
            steps += [activity["sequence"] for activity in page["activities"]]
            after = page["next_after"]
        assert steps == [1, 2, 3, 4, 5, 6, 7]
        waits: list[str] = []
        token = ""
        while token is not None:
            page = await found(api, f"waits?status=open&page_size=2{token and f'&next_page_token={token}'}")
            waits += [wait["wait_id"] for wait in page["waits"]]
            token = page["next_page_token"]
        assert len(waits) == len(set(waits)) == 7


async def test_messages_say_who_told_what_and_what_became_of_it() -> None:
    async with serving() as api:
        await busy(api)
        told = (await found(api, "messages"))["messages"]
        assert [(one["type"], one["name"], one["status"]) for one in told] == [
            ("start", None, "accepted"),
            ("signal", "note", "accepted"),
            ("update", "change", "accepted"),
        ]
        signal, update = told[1], told[2]
        assert signal["payload"]["text"] == json.dumps([SECRET])
        assert signal["who"]["route"]
        assert signal["signal"]["signal_name"] == "note"
        assert (update["update"]["status"], update["update"]["result"]["text"]) == ("completed", json.dumps(SECRET))
        assert not {"run", "behind"} & signal.keys()
        first = await found(api, "messages?page_size=1")
        assert len(first["messages"]) == 1
        rest = await found(api, f"messages?after={first['next_after']}")
        assert first["messages"] + rest["messages"] == told


async def test_lineage_is_a_tree_with_the_state_of_now() -> None:
    async with serving() as api:
        await api.register()
        await api.start()
        child = {"type": "start_child_workflow", "workflow_type": "order", "arguments": blob([])}
        await api.complete(await api.poll(), child, child)
        below = await api.poll()
        await api.complete(below, child)
        one = await found(api, "lineage")
        assert [len(one["run"]["children"]), one["complete"]] == [2, True]
        assert all(node["children"] == [] for node in one["run"]["children"])
        two = await found(api, "lineage?depth=2")
        (grandchild,) = [node for child in two["run"]["children"] for node in child["children"]]
        assert grandchild["status_bucket"] == "running"
        up = await found(api, "lineage?depth=5", grandchild["workflow_id"])
        assert [(parent["workflow_id"], parent["generation"]) for parent in up["parents"]] == [
            (below["workflow_id"], 1),
            ("o-1", 2),
        ]
        await api.control("POST", f"/workflows/{grandchild['workflow_id']}/terminate", {})
        now = await found(api, "lineage?depth=2")
        (grandchild,) = [node for child in now["run"]["children"] for node in child["children"]]
        assert grandchild["status"] == "terminated", "as the index has it, before the parent has heard of it or after"
        few = await found(api, "lineage?depth=3&limit=2")
        assert (few["runs"], few["complete"]) == (2, False)


async def test_the_state_at_an_event_is_what_it_was_then() -> None:
    async with serving() as api:
        await busy(api)
        await closed(api)
        whole = (await found(api, "history"))["events"]
        kinds = {event["event_type"]: event["sequence"] for event in reversed(whole)}
        started = await found(api, f"at/{kinds['WorkflowStarted']}")
        assert (started["summary"]["state"], started["waits"], len(started["expected_tasks"])) == ("ready", [], 1)
        assert started["memo"]["note"]["text"] == json.dumps(SECRET)
        retried = await found(api, f"at/{kinds['ActivityRetryScheduled']}")
        assert retried["summary"]["state"] in ("retrying", "ready")
        (charge,) = retried["activities"]
        assert (charge["activity_type"], charge["status"], charge["attempt_count"]) == ("charge", "pending", 1)
        assert {wait["kind"] for wait in retried["waits"]} >= {"activity"}
        assert any(task["kind"] == "activity" for task in retried["expected_tasks"])
        timer = await found(api, f"at/{kinds['TimerScheduled']}")
        assert "timer" in {wait["kind"] for wait in timer["waits"]}
        assert timer["next_wake_at"] is not None
        last = await found(api, f"at/{whole[-1]['sequence']}")
        assert (last["summary"]["state"], last["waits"], last["expected_tasks"]) == ("completed", [], [])


async def test_a_replay_block_is_shown_in_two_columns_with_the_runs_that_have_the_same() -> None:
    async with serving() as api:
        await api.register()
        block = {
            "message": "step 1 is another",
            "type": "HistoryShapeMismatch",
            "reason": "history_shape_mismatch",
        }
        for workflow_id in ("o-1", "o-2", "o-3"):
            await api.start(workflow_id)
            await api.fail(await api.poll(), **block)
        fine = await api.start("o-4")
        assert (await found(api, "replay-difference", "o-4"))["blocked"] is False
        await api.world.advance(1)
        for workflow_id in ("o-2", "o-3"):
            await found(api, "summary", workflow_id)  # stored, if it was not
        columns = """update task
            set body = cast(json_set(cast(body as text), '$.block.difference', json(?), '$.block.workflow_sequence', ?) as blob)
            where workflow = (select key from workflow where workflow_id = ?)"""
        for workflow_id, step in (("o-1", 1), ("o-2", 1), ("o-3", 2)):
            assert sql(api, columns, '[["1: activity charge", "timer of 5 s"]]', step, workflow_id) == 1
        shown = await found(api, "replay-difference")
        assert (shown["blocked"], shown["block"]["reason"]) == (True, "history_shape_mismatch")
        assert shown["block"]["difference"] == [{"recorded": "1: activity charge", "replayed": "timer of 5 s"}]
        assert [other["workflow_id"] for other in shown["same_block"]] == ["o-2"]
        assert (shown["same_block_count"], shown["complete"]) == (1, True)
        assert fine["run_id"]


async def test_the_summary_of_a_run_says_its_state_and_who_could_take_its_work() -> None:
    async with serving() as api:
        await busy(api)
        shown = await found(api, "summary")
        assert (shown["state"], shown["wait_kind"], shown["is_terminal"]) == ("ready", "timer", False)
        assert shown["history_length"] == (await found(api, "history"))["last_sequence"]
        assert shown["compatibility_fleet"]
        for inside in ("run", "workflow", "stamp"):
            assert inside not in shown
        await closed(api)
        assert (await found(api, "summary"))["state"] == "completed"
