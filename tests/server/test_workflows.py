"""Starting, describing and listing over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backstay.codec import avro
from backstay.codec.values import dumps

from .kit import ME, Api, blob, serving, value


@pytest.mark.contract("CODEC-10", "CODEC-11")
async def test_input_is_an_array_or_an_envelope() -> None:
    async with serving() as api:
        await api.register()
        await api.start("plain", input=["hello", 42, 1.0, {"a": None}])
        plain = await api.poll()
        assert value(plain["arguments"]) == ["hello", 42, 1.0, {"a": None}]
        assert isinstance(value(plain["arguments"])[2], float)
        # Two blocks where we would write one: kept as it came.
        odd = avro.to_text(dumps([])[:-2] + b"\x0c\x02\x04\x02\x02\x04\x04\x00")
        await api.start("packed", input={"codec": "avro", "blob": odd})
        packed = await api.poll()
        assert packed["arguments"] == {"codec": "avro", "blob": odd}
        assert value(packed["arguments"]) == [1, 2]
        await api.start("none")
        assert (await api.poll())["arguments"] is None


@pytest.mark.contract("START-05", "START-06", "START-08")
async def test_the_attributes_of_a_start_are_shown() -> None:
    async with serving() as api:
        await api.start(
            business_key="b-1",
            visibility_labels={"tenant": "x"},
            memo={"note": [1]},
            search_attributes={"size": 3},
            run_timeout_seconds=60,
        )
        found = await api.describe()
        assert (found["business_key"], found["visibility_labels"], found["memo"]) == (
            "b-1",
            {"tenant": "x"},
            {"note": [1]},
        )
        assert (found["search_attributes"], found["run_timeout_seconds"]) == ({"size": 3}, 60)
        started = (await api.history())[1]["payload"]
        assert (started["business_key"], started["visibility_labels"]) == ("b-1", {"tenant": "x"})
        listed = (await api.control("GET", "/workflows?business_key=b-1")).json()["workflows"]
        assert [workflow["workflow_id"] for workflow in listed] == ["o-1"]


@pytest.mark.contract("START-08", "START-09")
async def test_a_memo_is_with_the_instance_its_runs_their_start_and_their_exports() -> None:
    async with serving() as api:
        await api.register()
        first = (await api.start(memo={"note": [1], "by": "ann"}))["run_id"]
        note = {"type": "upsert_memo", "entries": {"note": blob([2])}}
        await api.complete(await api.poll(), note, {"type": "continue_as_new"})
        second = (await api.describe())["run_id"]
        assert second != first
        for run_id, begun, now in ((first, [1], [2]), (second, [2], [2])):
            path = f"/workflows/o-1/runs/{run_id}"
            events = (await api.control("GET", f"{path}/history")).json()["events"]
            started = next(event["payload"] for event in events if event["event_type"] == "WorkflowStarted")
            assert {name: value({"blob": one}) for name, one in started["memo"].items()} == {"note": begun, "by": "ann"}
            for shown in ((await api.control("GET", path)).json(), (await api.control("GET", f"{path}/detail")).json()):
                assert shown["memo"] == {"note": now, "by": "ann"}
            exported = (await api.control("GET", f"{path}/history/export")).json()["workflow"]["memo"]
            assert {name: value(one) for name, one in exported.items()} == {"note": now, "by": "ann"}
        assert (await api.describe())["memo"] == {"note": [2], "by": "ann"}, "of the instance"
        listed = (await api.control("GET", "/flows/all")).json()
        assert "memo" not in {field for flow in listed["flows"] for field in flow}
        fields = [field["field"] for field in listed["visibility_filters"]["definition"]["fields"]]
        assert "business_key" in fields
        assert "memo" not in fields
        assert (await api.control("GET", "/flows/all?memo=note")).status_code == 422


async def test_an_id_is_used_once_unless_the_running_one_will_do() -> None:
    async with serving() as api:
        await api.register()
        first = await api.start()
        body = {"workflow_type": "order", "workflow_id": "o-1"}
        again = await api.control("POST", "/workflows", body)
        assert (again.status_code, again.json()["reason"]) == (409, "instance_already_started")
        assert (again.json()["outcome"], again.json()["run_id"]) == ("rejected_duplicate", first["run_id"])
        existing = await api.control("POST", "/workflows", body | {"duplicate_policy": "use-existing"})
        assert (existing.status_code, existing.json()["outcome"]) == (200, "returned_existing_active")
        assert existing.json()["run_id"] == first["run_id"]
        await api.complete(await api.poll(), {"type": "complete_workflow"})
        closed = await api.control("POST", "/workflows", body | {"duplicate_policy": "use-existing"})
        assert closed.status_code == 409


async def test_lists_have_pages_and_filters() -> None:
    async with serving() as api:
        await api.register()
        for number in range(5):
            await api.start(f"o-{number}")
        await api.start("other", workflow_type="refund")
        await api.complete(await api.poll(), {"type": "fail_workflow", "message": "no"})
        found: list[str] = []
        token = ""
        while token is not None:
            page = (await api.control("GET", f"/workflows?page_size=2&next_page_token={token}")).json()
            assert page["workflow_count"] == len(page["workflows"]) <= 2
            found += [workflow["workflow_id"] for workflow in page["workflows"]]
            token = page["next_page_token"]
        assert found == ["other", "o-4", "o-3", "o-2", "o-1", "o-0"]
        for query, ids in (
            ("status=failed", ["o-0"]),
            ("status=completed", []),
            ("workflow_type=refund", ["other"]),
            ("status=running&workflow_type=order", ["o-4", "o-3", "o-2", "o-1"]),
        ):
            page = (await api.control("GET", f"/workflows?{query}")).json()
            assert [workflow["workflow_id"] for workflow in page["workflows"]] == ids


async def test_every_answer_about_workflows_names_its_operation() -> None:
    async with serving() as api:
        run = (await api.start())["run_id"]
        for method, path, operation, required in (
            ("GET", "/workflows", "list", []),
            ("GET", "/workflows/o-1", "describe", ["workflow_id"]),
            ("GET", "/workflows/nobody", "describe", ["workflow_id"]),
            ("GET", "/workflows/o-1/runs", "list_runs", ["workflow_id"]),
            ("GET", f"/workflows/o-1/runs/{run}", "describe_run", ["workflow_id"]),
            ("GET", f"/workflows/o-1/runs/{run}/history", "history", ["workflow_id", "run_id"]),
            ("POST", "/workflows/o-1/repair", "repair", ["workflow_id"]),
        ):
            answer = await api.control(method, path)
            contract = answer.json()["control_plane"]
            assert (contract["operation"], contract["version"]) == (operation, 1)
            assert contract["contract"]["required_fields"] == required
            assert all(contract[field] for field in required)
            if answer.status_code < 300:
                assert all(
                    field in contract or field in answer.json() for field in contract["contract"]["success_fields"]
                )
            assert answer.headers["X-Durable-Workflow-Control-Plane-Version"] == "2"


async def test_a_new_run_is_judged_by_the_newest_worker_of_its_type() -> None:
    async with serving() as api:
        contract = {"signals": ["pay"], "signal_contracts": [{"name": "pay", "parameters": []}], "queries": ["state"]}
        await api.register(
            workflow_command_contracts={"order": contract}, workflow_definition_fingerprints={"order": "sha256:1"}
        )
        await api.start()
        started = (await api.history())[1]["payload"]
        assert (started["declared_signals"], started["declared_queries"]) == (["pay"], ["state"])
        assert started["workflow_definition_fingerprint"] == "sha256:1"
        await api.worker(f"registrations/{ME}", method="DELETE")
        await api.start("later")
        assert "declared_signals" not in (await api.history("later"))[1]["payload"]


async def test_namespaces_are_made_changed_and_removed() -> None:
    async with serving() as api:
        made = await api.control("POST", "/namespaces", {"name": "Team-A", "retention_days": 7})
        assert (made.status_code, made.json()["name"], made.json()["retention_days"]) == (201, "team-a", 7)
        twice = await api.control("POST", "/namespaces", {"name": "team-a"})
        assert (twice.status_code, twice.json()["reason"]) == (409, "namespace_already_exists")
        changed = (await api.control("PUT", "/namespaces/team-a", {"description": "ours"})).json()
        assert (changed["description"], changed["retention_days"]) == ("ours", 7)
        names = [n["name"] for n in (await api.control("GET", "/namespaces")).json()["namespaces"]]
        assert names == ["default", "team-a"]
        inside = {"headers": {"X-Namespace": "team-a"}}
        await api.control("POST", "/workflows", {"workflow_type": "order"}, **inside)
        full = await api.control("DELETE", "/namespaces/team-a")
        assert (full.status_code, full.json()["reason"]) == (409, "namespace_not_empty")
        for name in ("", "a b", "a/b", "\u00fc"):
            bad = await api.control("POST", "/namespaces", {"name": name})
            assert (bad.status_code, bad.json()["field"]) == (422, "name")
        await api.control("POST", "/namespaces", {"name": "empty"})
        assert (await api.control("DELETE", "/namespaces/empty")).json()["status"] == "deleted"


def test_blobs_here_are_the_published_ones() -> None:
    assert blob(["hello", 42])["blob"] == "wwHioz3/VYAiNwwECgpoZWxsbwRUAA=="


@pytest.mark.contract("START-01", "START-02", "START-03", "CANCEL-04")
async def test_an_id_is_reserved_before_its_run_exists(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'd.db'}"

    async def reserve(api: Api, **body: Any) -> Any:
        return await api.control("POST", "/reservations", body)

    async with serving(store=store, worker_token="w") as api:
        made = await reserve(api, workflow_type="order", workflow_id="later")
        assert (made.status_code, made.json()["outcome"], made.json()["run_id"]) == (201, "reserved", None)
        anywhere = (await reserve(api, workflow_type="order")).json()
        assert (anywhere["outcome"], len(anywhere["workflow_id"])) == ("reserved", 26)
        for id in ("", "a b", "a/b", "ü", "x" * 192):
            refused = await reserve(api, workflow_type="order", workflow_id=id)
            assert (refused.status_code, refused.json()["field"]) == (422, "workflow_id")
            assert await api.server.engine.store.find("default", id) is None
        assert (await reserve(api, workflow_id="x")).json()["field"] == "workflow_type"
        forbidden = await api.control("POST", "/reservations", {"workflow_type": "order"}, token="w")
        assert forbidden.status_code == 403
    async with serving(store=store) as api:
        await api.register()
        again = await reserve(api, workflow_type="order", workflow_id="later")
        assert (again.status_code, again.json()["outcome"]) == (200, "already_reserved"), "over a restart"
        found = await api.describe("later")
        assert (found["status"], found["run_id"], found["workflow_type"]) == ("reserved", None, "order")
        unborn = await api.control("POST", "/workflows/later/cancel", {})
        assert (unborn.status_code, unborn.json()["outcome"]) == (409, "rejected_not_started")
        other = await reserve(api, workflow_type="refund", workflow_id="later")
        assert (other.status_code, other.json()["reason"]) == (409, "workflow_type_mismatch")
        wrong = await api.control("POST", "/workflows", {"workflow_type": "refund", "workflow_id": "later"})
        assert (wrong.status_code, wrong.json()["reason"]) == (409, "workflow_type_mismatch")
        started = await api.start("later")
        known = (await reserve(api, workflow_type="order", workflow_id="later")).json()
        assert (known["outcome"], known["run_id"], known["reserved"]) == ("already_started", started["run_id"], False)
        assert (await api.poll())["workflow_id"] == "later"
        document = (await api.http.get("/api/openapi.json")).json()
        said = document["paths"]["/api/reservations"]["post"]
        assert said["summary"].startswith("Reserve an instance id")
