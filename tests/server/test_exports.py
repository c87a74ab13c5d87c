"""The export of a run: complete, the same as its detail, readable and verifiable by somebody who has the file alone."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import io
import json
import re
import subprocess
import sys
import threading
from typing import Any

import fastavro
import pytest
from durable_workflow.history_bundle_verify import verify_bundle

from backstay import AsyncClient
from backstay.codec import avro
from backstay.engine.reading import looking, slices
from backstay.protocol import export_file, run_detail
from backstay.protocol.bundle_check import ExportBundle
from backstay.protocol.export import canonical
from backstay.server.published.control import detail as detail_route
from backstay.server.server import Server
from backstay.server.settings import Settings, WrongSetting

from .kit import TOKEN, Api, blob, detail, serving, sql, tampered, untasked

SECRET = "s3cret"


def without_secrets(value: Any, context: dict[str, Any]) -> Any:
    """A policy: no payload leaves, and no text that quotes one."""
    if context["category"] == "payload":
        return "[redacted]"
    return value.replace(SECRET, "[redacted]")


def broken(value: Any, context: dict[str, Any]) -> Any:
    raise RuntimeError("no policy for this")


async def export(api: Api, workflow_id: str = "o-1", run_id: str | None = None) -> dict[str, Any]:
    run_id = run_id or (await api.describe(workflow_id))["run_id"]
    answer = await api.control("GET", f"/workflows/{workflow_id}/runs/{run_id}/history/export")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def busy(api: Api) -> dict[str, Any]:
    """A run that has done everything there is, and what started it. It waits for a timer."""
    await api.register(build_id="b1")
    started = await api.start(
        input=[SECRET, {"cents": 4200}],
        business_key="k-1",
        visibility_labels={"team": "shop"},
        memo={"note": SECRET},
        build_id="b1",
    )
    policy = {"max_attempts": 2, "backoff_seconds": [1]}
    await api.complete(
        await api.poll(),
        {"type": "record_side_effect", "result": blob(SECRET)["blob"]},
        {"type": "start_child_workflow", "workflow_type": "order", "arguments": blob([SECRET])},
        {"type": "schedule_activity", "activity_type": "charge", "arguments": blob([SECRET]), "retry_policy": policy},
    )
    await api.complete(await api.poll(), {"type": "complete_workflow", "result": blob(SECRET)})
    failure = {"message": f"declined: {SECRET}", "type": "declined", "details": blob({"pin": SECRET})}
    await api.activity("fail", await api.poll("activity"), failure=failure)
    await api.world.advance(2)
    await api.activity("fail", await api.poll("activity"), failure=failure)
    await api.control("POST", "/workflows/o-1/signal/note", {"input": [SECRET]})
    await api.complete(await api.poll(), {"type": "start_timer", "delay_seconds": 60})
    asked = {"input": [SECRET], "wait_for": "accepted"}
    update = (await api.control("POST", "/workflows/o-1/update/change", asked)).json()["update_id"]
    await api.complete(await api.poll(), {"type": "complete_update", "update_id": update, "result": blob(SECRET)})
    return started


async def closed(api: Api) -> None:
    await api.world.advance(61)
    await api.complete(await api.poll(), {"type": "complete_workflow", "result": blob(SECRET)})


@pytest.mark.contract("EXPORT-01")
async def test_an_export_is_the_same_wherever_it_is_asked_for() -> None:
    async with serving() as api:
        run_id = (await busy(api))["run_id"]
        url = str(api.http.base_url).rstrip("/")
        over_http = await export(api)
        async with AsyncClient(url, token=TOKEN) as client:
            assert await client.export("o-1") == over_http
        command = [sys.executable, "-P", "-m", "backstay.cli.main", "export", "o-1", "--run", run_id]
        done = await asyncio.to_thread(
            lambda: subprocess.run(
                [*command, "--server", url, "--token", TOKEN], capture_output=True, text=True, timeout=60, check=True
            )
        )
        assert json.loads(done.stdout) == over_http
        unknown = await api.control("GET", "/workflows/o-1/runs/nobody/history/export")
        assert (unknown.status_code, unknown.json()["reason"]) == (404, "run_not_found")


@pytest.mark.contract("EXPORT-02", "EXPORT-05", "EXPORT-14")
async def test_an_export_keeps_events_run_input_and_output() -> None:
    async with serving() as api:
        await busy(api)
        open_run = await export(api)
        assert (open_run["schema"], open_run["schema_version"]) == ("durable-workflow.v2.history-export", 1)
        assert open_run["history_complete"] is False
        assert verify_bundle(open_run)["status"] == "ok", "a snapshot of an open run, and whole"
        await closed(api)
        await api.control("POST", "/workflows/o-1/archive", {"reason": "done with"})
        whole = await export(api)
        assert whole["history_complete"] is True
        assert verify_bundle(whole)["status"] == "ok"
        told = await api.history()
        assert [event["sequence"] for event in whole["history_events"]] == [*range(1, len(told) + 1)]
        for exported, event in zip(whole["history_events"], told, strict=True):
            assert {name: event[name] for name in exported if name != "type"} == {
                name: value for name, value in exported.items() if name != "type"
            }
        run = whole["workflow"]
        assert (run["status"], run["closed_reason"], run["archive_reason"]) == ("completed", "completed", "done with")
        assert run["archived_at"] >= run["closed_at"] > run["started_at"]
        assert run["archive_command_id"] in [command["id"] for command in whole["commands"]]
        assert (run["business_key"], run["visibility_labels"], run["compatibility"]) == ("k-1", {"team": "shop"}, "b1")
        assert (run["payload_codec"], whole["payloads"]["codec"]) == ("avro", "avro")
        assert decoded(whole["payloads"]["arguments"]["data"]) == [SECRET, {"cents": 4200}]
        assert decoded(whole["payloads"]["output"]["data"]) == SECRET


def decoded(text: str) -> Any:
    return avro.decode(avro.from_text(text))


SECTIONS = ("waits", "timeline", "signals", "updates", "activities", "timers", "failures")


@pytest.mark.contract("EXPORT-03", "EXPORT-04", "EXPORT-07", "EXPORT-08", "EXPORT-09", "EXPORT-15", "PROJ-03")
async def test_an_export_agrees_with_the_detail_whatever_the_rows_say() -> None:
    async with serving() as api:
        await busy(api)

        async def compared() -> tuple[dict[str, Any], dict[str, Any]]:
            exported, shown = await export(api), await detail(api)
            for section in SECTIONS:
                assert exported[section] == [without_actions(entry) for entry in shown[section]], section
                assert exported[section], section
            assert [task | {"task_type": task["type"]} for task in shown["tasks"]] == exported["tasks"]
            assert exported["links"]["parents"] == shown["parents"]
            assert exported["links"]["children"] == shown["continuedWorkflows"]
            for name in ("waits", "timeline", "timers", "lineage"):
                assert exported["selected_run"][f"{name}_projection_source"] == shown[f"{name}_projection_source"]
            for name in ("current_run_source", "wait_kind", "open_wait_id", "liveness_state"):
                assert exported["selected_run"][name] == shown[name], name
            return exported, shown

        before, _ = await compared()
        assert len(before["activities"][0]["attempts"]) == 2
        assert before["tasks"]
        (child,) = before["links"]["children"]
        assert (child["history_authority"], child["diagnostic_only"]) == ("typed_history", False)
        assert [command["command_type"] for command in before["commands"]] == ["start", "signal", "update"]
        # Rows that nothing in history speaks of, and rows that say something else.
        key = "(select workflow from run where workflow_id = 'o-1')"
        stray = """{"id":"stray-a9.1","workflow":1,"run":1,"kind":"activity","type":"charge","routing":{},
            "available_at":1,"created_at":1,"state":"leased","step":9}"""
        put = f"insert into task (workflow, id, state, available_at, body) values ({key}, 'stray-a9.1', 'leased', 1, ?)"
        assert sql(api, put, stray.encode()) == 1
        sql(api, "update workflow set next_wake = next_wake + 1 where workflow_id = 'o-1'")
        sql(api, "update run set status = 'failed' where workflow_id <> 'o-1'")
        drifted, _ = await compared()
        assert [timer["row_status"] for timer in drifted["timers"]] == ["fired"]
        assert [timer["status"] for timer in drifted["timers"]] == ["pending"]
        assert [activity["id"] for activity in drifted["activities"]] == [one["id"] for one in before["activities"]]
        await tampered(api)
        bare, _ = await compared()
        for section in ("activities", "failures", "signals", "updates", "timeline", "links"):
            assert bare[section] == before[section], section
        assert untasked(bare["waits"]) == untasked(before["waits"])


def without_actions(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry of detail as an export has it: what an operator may do now is not part of a record."""
    return {name: value for name, value in entry.items() if not re.match("can_|.*_blocked_reason$", name)}


@pytest.mark.contract("EXPORT-06")
async def test_every_payload_can_be_read_with_the_file_alone() -> None:
    async with serving() as api:
        await busy(api)
        await closed(api)
        exported = await export(api)
        schema = fastavro.parse_schema(json.loads(exported["codec_schemas"]["avro"]["writer_schema"]))
        magic = bytes.fromhex(exported["codec_schemas"]["avro"]["magic"])
        entries = exported["payload_manifest"]["entries"]
        read = {path: at(exported, path) for entry in entries for path in entry["paths"]}
        assert len(read) == sum(len(entry["paths"]) for entry in entries), "no place is named twice"
        texts = [read[entry["path"]] for entry in entries]
        assert len(texts) == len(set(texts)), "a payload is one entry, however often it stands in the file"
        for entry in entries:
            assert {read[path] for path in entry["paths"]} == {read[entry["path"]]}
            assert (entry["codec"], entry["available"], entry["redacted"]) == ("avro", True, False)
            assert entry["avro_framing"] == "single-object-v1"
            assert entry["writer_schema"] == exported["codec_schemas"]["avro"]["writer_schema"]
            raw = avro.from_text(read[entry["path"]])
            assert raw.startswith(magic)
            fastavro.schemaless_reader(io.BytesIO(raw[10:]), schema)
        for path in ("payloads.arguments.data", "payloads.output.data", "workflow.memo.note.blob"):
            assert path in read
        # Nothing that carries the secret is left out: without what the manifest names there is none but in words.
        for path in read:
            put(exported, path, "")
        for point in (*exported["timeline"], *(event["payload"] for event in exported["history_events"])):
            point.get("command", {}).pop("payload_preview", None)
        assert json.dumps(exported).count(SECRET) == json.dumps(exported).count(f"declined: {SECRET}")
        assert verify_bundle(await export(api))["status"] == "ok"


def at(content: Any, path: str) -> Any:
    for step in re.findall(r"[^.\[\]]+", path):
        content = content[int(step) if isinstance(content, list) else step]
    return content


def put(content: Any, path: str, value: Any) -> None:
    *steps, last = re.findall(r"[^.\[\]]+", path)
    for step in steps:
        content = content[int(step) if isinstance(content, list) else step]
    content[int(last) if isinstance(content, list) else last] = value


@pytest.mark.contract("EXPORT-04", "EXPORT-08")
async def test_attempts_are_a_section_of_their_own_and_agree_with_the_activities() -> None:
    async with serving() as api:
        await busy(api)
        exported = await export(api)
        found = exported["activity_attempts"]
        assert [(one["attempt_number"], one["status"]) for one in found] == [(1, "failed"), (2, "failed")]
        (charge,) = exported["activities"]
        for attempt in found:
            assert (attempt["activity_execution_id"], attempt["activity_type"]) == (charge["id"], "charge")
            assert attempt["lease_owner"] == "worker-1"
            assert attempt["sequence"] == charge["sequence"]
        shown = (await detail(api))["activities"][0]["attempts"]
        assert [attempt | one for attempt, one in zip(found, shown, strict=True)] == found


@pytest.mark.contract("EXPORT-10", "EXPORT-11", "EXPORT-12")
async def test_a_policy_may_replace_what_people_have_put_into_a_run() -> None:
    async with serving() as api:
        await busy(api)
        open_handed = await export(api)
        assert open_handed["redaction"] == {"applied": False, "policy": None, "paths": []}
        assert SECRET in json.dumps(open_handed)
    policy = f"{__name__}:without_secrets"
    async with serving(export_redactor=policy) as api:
        await busy(api)
        await closed(api)
        exported = await export(api)
        text = json.dumps(exported)
        assert SECRET not in text
        assert avro.to_text(avro.encode(SECRET)) not in text
        redaction = exported["redaction"]
        assert (redaction["applied"], redaction["policy"]) == (True, policy)
        assert {entry["path"] for entry in exported["payload_manifest"]["entries"]} <= set(redaction["paths"])
        assert all(entry["redacted"] and not entry["available"] for entry in exported["payload_manifest"]["entries"])
        assert {at(exported, path) for path in redaction["paths"]} >= {"[redacted]", "declined: [redacted]"}
        assert verify_bundle(exported)["status"] == "ok", "the checksum is that of what has left"
        assert f"declined: {SECRET}" in json.dumps(await api.history()), "what is kept is as it was"
    async with serving(export_redactor=f"{__name__}:broken") as api:
        await busy(api)
        run_id = (await api.describe())["run_id"]
        refused = await api.control("GET", f"/workflows/o-1/runs/{run_id}/history/export")
        assert (refused.status_code, refused.json()["reason"]) == (500, "export_redaction_failed")
        assert "no policy for this" in refused.json()["message"]


@pytest.mark.parametrize("name", ["nowhere:at_all", f"{__name__}:missing", f"{__name__}:SECRET", "nothing"])
def test_a_policy_that_is_not_there_is_no_policy(name: str) -> None:
    with pytest.raises(WrongSetting, match="export_redactor"):
        Server(Settings(export_redactor=name))


@pytest.mark.contract("EXPORT-12", "EXPORT-13")
async def test_one_changed_byte_is_found_and_a_signature_says_who_made_it() -> None:
    async with serving(export_signing_key="k3y", export_signing_key_id="2026") as api:
        await busy(api)
        exported = await export(api)
        integrity = exported["integrity"]
        assert (integrity["canonicalization"], integrity["key_id"]) == ("json-recursive-ksort-v1", "2026")
        body = {name: part for name, part in exported.items() if name != "integrity"}
        text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        assert integrity["checksum"] == hashlib.sha256(text).hexdigest()
        assert integrity["signature"] == hmac.new(b"k3y", text, hashlib.sha256).hexdigest()
        assert verify_bundle(exported, "k3y")["status"] == "ok"
        assert verify_bundle(exported, "other")["status"] == "failed"
        exported["history_events"][1]["payload"]["workflow_type"] += " "
        assert verify_bundle(exported, "k3y")["integrity"]["checksum_matches"] is False
    async with serving() as api:
        await busy(api)
        unsigned = (await export(api))["integrity"]
        assert (unsigned["signature"], unsigned["signature_algorithm"], unsigned["key_id"]) == (None, None, None)


GOES_ON = threading.Event()


def held(value: Any, context: dict[str, Any]) -> Any:
    """A policy that takes as long as a test likes."""
    assert GOES_ON.wait(30)
    return value


async def long(api: Api, monkeypatch: pytest.MonkeyPatch) -> str:
    """The current run of `o-1`, which counts as a long one."""
    await busy(api)
    monkeypatch.setattr(looking, "SHORT", 1)
    return (await api.describe())["run_id"]


async def test_others_are_answered_while_a_long_run_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(export_redactor=f"{__name__}:held") as api:
        run = await long(api, monkeypatch)
        GOES_ON.clear()
        path = f"/workflows/o-1/runs/{run}/history/export"
        exports = [asyncio.create_task(api.control("GET", path)) for _ in range(3)]
        try:
            for _ in range(20):
                assert (await api.http.get("/api/health")).status_code == 200
                assert (await api.control("GET", "/workflows/o-1")).status_code == 200
            assert not any(export.done() for export in exports)
        finally:
            GOES_ON.set()
        for export in exports:
            assert verify_bundle((await export).json())["status"] == "ok"


async def test_others_are_answered_while_the_detail_of_a_long_run_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as api:
        run = await long(api, monkeypatch)
        made, go_on = run_detail.run_detail, threading.Event()

        def slowly(*given: Any) -> Any:
            assert go_on.wait(30)
            return made(*given)

        monkeypatch.setattr(detail_route, "run_detail", slowly)
        shown = [
            asyncio.create_task(api.control("GET", f"/workflows/o-1{part}/detail")) for part in ("", f"/runs/{run}")
        ]
        try:
            for _ in range(20):
                assert (await api.http.get("/api/health")).status_code == 200
            assert not any(each.done() for each in shown)
        finally:
            go_on.set()
        assert [(await each).status_code for each in shown] == [200, 200]


async def test_an_export_is_the_same_whole_and_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(export_signing_key="k3y") as api:
        await busy(api)
        whole = await export(api)
        monkeypatch.setattr(slices, "SLICE", 1)
        monkeypatch.setattr(export_file, "STEP", 1)
        monkeypatch.setattr(export_file, "IN_MEMORY", 100)
        monkeypatch.setattr(export_file, "PART", 777)
        parts = await export(api)
        assert parts == whole
        assert verify_bundle(parts, "k3y")["status"] == "ok"


@pytest.mark.parametrize(
    "content", [{}, {"a": []}, {"b": [1] * 5, "a": {"c": {"d": [{"z": "\u00e9"}] * 5}}, "n": None}]
)
def test_a_bundle_of_any_spelling_has_one_canonical_text(content: dict[str, Any]) -> None:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    for spelled in (text, json.dumps(content, indent=2).encode()):
        assert b"".join(ExportBundle(spelled).canonical()) == canonical(content) == text


async def test_a_policy_that_fails_on_a_thread_fails_the_export(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(export_redactor=f"{__name__}:broken") as api:
        run = await long(api, monkeypatch)
        answer = await api.control("GET", f"/workflows/o-1/runs/{run}/history/export")
        assert (answer.status_code, answer.json()["reason"]) == (500, "export_redaction_failed")
