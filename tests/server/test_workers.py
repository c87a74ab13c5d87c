"""The fleet behind a run: who could take its work, who is told no, and what happens while two builds work side by side."""

from __future__ import annotations

import pytest

from backstay.server.workers import worker_registry as workers

from .kit import Api, serving

ENTRY = {
    "worker_id", "namespace", "host", "process_id", "connection", "queue", "supported", "supports_required",
    "recorded_at", "expires_at", "source",
}  # fmt: skip


@pytest.mark.contract("FLEET-01", "FLEET-02", "FLEET-03", "FLEET-08")
async def test_the_detail_of_a_run_shows_the_workers_in_its_scope() -> None:
    async with serving(worker_stale_after_seconds=120) as api:
        await api.start(build_id="b1")
        nobody = await api.describe()
        assert (nobody["compatibility_fleet"], "no worker" in nobody["compatibility_fleet_reason"]) == ([], True)
        await api.register("old", build_id="b0", process_metrics={"host": "here", "process_id": 7})
        await api.register("elsewhere", queue="far", build_id="b1")
        wrong = await api.describe()
        assert "'b1'" in wrong["compatibility_fleet_reason"]
        (entry,) = wrong["compatibility_fleet"]
        assert entry.keys() == ENTRY
        assert (entry["worker_id"], entry["host"], entry["process_id"], entry["supported"]) == (
            "old",
            "here",
            7,
            ["b0"],
        )
        assert (entry["supports_required"], entry["source"]) == (False, "database")
        await api.register("new", build_id="b1")
        right = await api.describe()
        assert right["compatibility_fleet_reason"] is None
        assert {e["worker_id"]: e["supports_required"] for e in right["compatibility_fleet"]} == {
            "old": False,
            "new": True,
        }
        await api.world.advance(100)
        await api.worker("heartbeat", {"worker_id": "new"})
        await api.world.advance(30)
        left = (await api.describe())["compatibility_fleet"]
        assert [e["worker_id"] for e in left] == ["new"], "whoever is silent for long enough has left"


@pytest.mark.contract("FLEET-04")
async def test_workers_of_another_namespace_are_no_part_of_it() -> None:
    async with serving() as api:
        await api.control("POST", "/namespaces", {"name": "other"})
        registration = {"worker_id": "theirs", "task_queue": "q", "runtime": "python"}
        await api.worker("register", registration, headers={"X-Namespace": "other"})
        await api.start()
        mine = await api.describe()
        assert (mine["compatibility_namespace"], mine["compatibility_fleet"]) == ("default", [])
        await api.control(
            "POST",
            "/workflows",
            {"workflow_type": "order", "workflow_id": "o-1", "task_queue": "q"},
            headers={"X-Namespace": "other"},
        )
        theirs = (await api.control("GET", "/workflows/o-1", headers={"X-Namespace": "other"})).json()
        assert (theirs["compatibility_namespace"], len(theirs["compatibility_fleet"])) == ("other", 1)


@pytest.mark.contract("MATCH-16")
async def test_while_two_builds_overlap_it_shows_and_claims_across_them_are_refused() -> None:
    async with serving() as api:
        await api.register("old", build_id="b0")
        builds = (await api.control("GET", "/task-queues/q/build-ids")).json()
        assert builds["overlap"]["live"] is False
        await api.register("new", build_id="b1")
        builds = (await api.control("GET", "/task-queues/q/build-ids")).json()
        assert (builds["overlap"]["live"], builds["overlap"]["builds"]) == (True, ["b0", "b1"])
        await api.start(build_id="b1")
        assert await api.poll(worker_id="old") is None
        task = next(iter(api.server.engine.matching.lanes.waiting_since()))
        assert task[0] == "workflow"
        (row,) = await api.server.engine.store.ready(10)
        refused = await api.worker(f"workflow-tasks/{row.id}/claim", {"worker_id": "old"})
        assert (refused.status_code, refused.json()["reason"]) == (409, builds["overlap"]["blocked_reason"])
        assert (await api.poll(worker_id="new"))["task_id"] == row.id
        await api.control("POST", "/task-queues/q/build-ids/drain", {"build_id": "b0"})
        assert (await api.control("GET", "/task-queues/q/build-ids")).json()["overlap"]["live"] is False


@pytest.mark.contract("QRY-16")
async def test_a_run_whose_type_no_live_worker_knows_says_why_it_cannot_be_queried() -> None:
    async with serving() as api:
        contract = {"order": {"queries": ["state"], "query_contracts": [{"name": "state", "parameters": []}]}}
        await api.register(workflow_command_contracts=contract, capabilities=["query_tasks"])
        await api.start()
        known = await api.describe()
        assert (known["can_query"], known["query_blocked_reason"]) == (True, None)
        await api.worker("registrations/worker-1", method="DELETE")
        gone = await api.describe()
        assert (gone["can_query"], gone["query_blocked_reason"]) == (False, "query_worker_unavailable")
        await api.register("stranger", supported_workflow_types=["other"])
        unknown = await api.describe()
        assert (unknown["can_query"], unknown["query_blocked_reason"]) == (False, "workflow_definition_unavailable")


async def registered(api: Api) -> list[str]:
    return [worker["worker_id"] for worker in (await api.control("GET", "/workers")).json()["workers"]]


async def test_a_list_of_workers_leaves_out_what_they_declare() -> None:
    async with serving() as api:
        await api.register(workflow_command_contracts={"order": {"signals": ["poke"]}})
        (row,) = (await api.control("GET", "/workers")).json()["workers"]
        worker = (await api.control("GET", f"/workers/{row['worker_id']}")).json()
        left_out = worker.keys() - row.keys() - {"generated_at"}
        assert left_out == {
            "workflow_command_contracts",
            "workflow_definition_fingerprints",
            "definitions",
            "capability_manifest",
        }
        assert {name: worker[name] for name in row} == row


async def test_silent_workers_are_forgotten() -> None:
    async with serving(worker_forgotten_after_seconds=600) as api:
        await api.register("killed")
        await api.register("alive")
        for _ in range(9):
            await api.world.advance(61)
            await api.worker("heartbeat", {"worker_id": "alive"})
        assert await registered(api) == ["killed", "alive"], "stale, and still shown"
        await api.world.advance(61)
        await api.worker("heartbeat", {"worker_id": "alive"})
        assert await registered(api) == ["alive"]
        assert (await api.worker("workflow-tasks/poll", {"worker_id": "killed", "task_queue": "q"})).status_code == 412
        assert (await api.register("killed")).status_code == 201


async def test_of_many_stale_workers_the_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "STALE_KEPT", 3)
    monkeypatch.setattr(workers, "MOST", 6)
    async with serving() as api:
        for number in range(6):
            assert (await api.register(f"w{number}")).status_code == 201
            await api.world.advance(1)
        full = await api.register("one more")
        assert (full.status_code, full.json()["reason"]) == (429, "worker_capacity_exhausted")
        assert (await api.register("w0")).status_code == 201, "one that is known comes again"
        await api.world.advance(300)
        assert sorted(await registered(api)) == ["w0", "w4", "w5"]
        assert (await api.register("one more")).status_code == 201
