"""Every cause is collected, for servers that were really brought there, and is gone after its cure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from backstay.engine.reading import run_search
from backstay.server.operators.causes.cause import CHECKS
from backstay.store.errors import Unavailable

from . import test_why as states
from .kit import TOKEN, Api, serving, settle, sql

Bring = Callable[[Api], Awaitable[None]]
PATIENT: dict[str, Any] = {"worker_stale_after_seconds": 360_000, "task_repair_loop_throttle_seconds": 3600}


async def health(api: Api, **query: Any) -> dict[str, Any]:
    answer = await api.control("GET", "/system/health", params=query)
    found = answer.json()
    stands = found["checks"]["backend_capabilities"]["status"] == "error"
    assert answer.status_code == (503 if stands else 200), answer.text
    return found


NUMBERS = ("name", "severity", "count", "unit", "exact", "sentence")


async def all_surfaces_agree(api: Api, found: dict[str, Any]) -> None:
    """The same causes with the same numbers everywhere at the same moment. The clock of these tests stands still."""

    def numbers(causes: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        return [tuple(cause[name] for name in NUMBERS) for cause in causes]

    async def get(path: str) -> dict[str, Any]:
        answer = await api.control("GET", path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    said = numbers(found["causes"])
    alone = await get("/causes")
    assert (numbers(alone["causes"]), alone["verdict"]) == (said, found["verdict"])
    overview = await get("/overview")
    assert (numbers(overview["causes"]), overview["verdict"]) == (said, found["verdict"])
    assert overview["stock"]["open"] == alone["open_runs"]
    needs = (await get("/stats"))["needs_attention"]
    assert numbers(needs["causes"]) == said
    assert (needs["count"], needs["sentence"]) == (found["verdict"]["needs_attention"], found["verdict"]["sentence"])
    scraped = (await api.http.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})).text
    gauge = Counter[str]()
    for cause in found["causes"]:
        gauge[f'backstay_causes{{namespace="default",cause="{cause["name"]}",severity="{cause["severity"]}"}}'] += (
            cause["count"]
        )
    lines = [line for line in scraped.splitlines() if line.startswith("backstay_causes{")]
    assert sorted(lines) == sorted(f"{place} {count}" for place, count in gauge.items())
    queues = {queue["name"]: queue for queue in (await get("/task-queues"))["task_queues"]}
    for cause in found["causes"]:
        if cause["name"] == "throttled":
            queue = queues[cause["subject"]["task_queue"]]
            assert queue["stats"]["approximate_backlog_count"] == cause["count"]
            assert cause["sentence"].endswith(queue["throttled_because"])
        listed = cause["link"].partition("?")
        if cause["unit"] == "run" and cause["name"] in ("blocked", "retrying", "no_worker", "overdue"):
            bucket = listed[0].removeprefix("/api/flows/")
            assert (await get(f"/flows/{bucket}/count?{listed[2]}"))["count"] == cause["count"], cause["link"]


async def healthy(api: Api) -> None:
    await states.sleeps(api)


async def lease_ended(api: Api) -> None:
    await states.runs_code(api)
    api.server.engine.timers.stop()
    await api.world.advance(400)


async def lost(api: Api) -> None:
    await states.lost(api)
    await api.world.advance(25)  # the next pass of the certificate


async def overdue(api: Api) -> None:
    await states.sleeps(api)
    api.server.engine.timers.stop()
    await api.world.advance(2800)


async def unoffered(api: Api) -> None:
    await states.queued(api)
    api.server.engine.matching.lanes.forget(lambda key: True)
    await api.world.advance(10)


async def late_schedule(api: Api) -> None:
    body = {
        "schedule_id": "nightly",
        "spec": {"intervals": [{"every": "PT1H"}]},
        "action": {"workflow_type": "order", "task_queue": "q"},
    }
    made = await api.control("POST", "/schedules", body)
    assert made.status_code == 201, made.text
    api.server.engine.timers.stop()
    await api.world.advance(7200)


async def long_history(api: Api) -> None:
    await states.sleeps(api)
    await api.world.advance(1)  # the projector writes its summary


async def retrying(api: Api) -> None:
    await states.failed_once(api)
    await api.world.advance(1)


async def retrying_for_long(api: Api) -> None:
    await states.running(api, states.CHARGE | {"retry_policy": {"max_attempts": 9, "backoff_seconds": [360_000]}})
    await api.activity("fail", await api.poll("activity"), failure={"message": "no answer", "type": "Timeout"})
    await api.world.advance(7200)


async def task_failed(api: Api) -> None:
    await states.task_failed(api)
    await api.world.advance(1)


async def blocked(api: Api) -> None:
    await states.blocked(api)
    await api.world.advance(1)


async def down(api: Api) -> None:
    api.server.engine.down = Unavailable("the disk is full")


async def elsewhere(api: Api) -> None:
    api.server.engine.owned[:] = bytes(256)


async def draining(api: Api) -> None:
    api.server.draining = True


TABLE: list[tuple[Bring, str, str | None, str, int, dict[str, Any]]] = [
    # how, status, name, check, count, settings
    (healthy, "ok", None, "", 0, {}),
    (states.no_worker_on_queue, "error", "no_worker", "worker_compatibility", 1, {}),
    (states.no_worker_of_type, "error", "no_worker", "worker_compatibility", 1, {}),
    (states.no_worker_of_activity_type, "error", "no_worker", "worker_compatibility", 1, {}),
    (states.no_worker_of_build, "error", "no_worker", "worker_compatibility", 1, {}),
    (states.no_worker_of_activity_connection, "error", "no_worker", "worker_compatibility", 1, {}),
    (lease_ended, "error", "stale_leases", "task_transport", 1, {}),
    (task_failed, "warning", "retrying", "task_transport", 1, {}),
    (blocked, "error", "blocked", "task_transport", 1, {}),
    (unoffered, "warning", "dispatch_overdue", "task_transport", 1, {}),
    (lost, "error", "repair_needed", "durable_resume_paths", 1, {}),
    (overdue, "error", "overdue", "durable_resume_paths", 1, {}),
    (late_schedule, "error", "missed_schedules", "scheduler_role", 1, {}),
    (
        long_history,
        "warning",
        "history_budget",
        "history_retention_invariant",
        1,
        {"continue_as_new_event_threshold": 3},
    ),
    (retrying, "ok", "retrying", "activity_path", 1, {}),
    (retrying_for_long, "warning", "retrying", "activity_path", 1, {}),
    (states.throttled, "ok", "throttled", "routing_health", 1, {"workflow_task_max_active_leases_per_queue": 1}),
    (down, "error", "database_unavailable", "backend_capabilities", 1, {}),
    (elsewhere, "error", "engine_elsewhere", "backend_capabilities", 1, {}),
    (draining, "warning", "draining", "backend_capabilities", 1, {}),
]


@pytest.mark.contract("MATCH-14", "FLEET-06")
@pytest.mark.parametrize(
    ("bring", "status", "name", "check", "count", "settings"), TABLE, ids=lambda one: getattr(one, "__name__", "")
)
async def test_every_cause_is_collected(
    bring: Bring, status: str, name: str | None, check: str, count: int, settings: dict[str, Any]
) -> None:
    async with serving(**PATIENT | settings) as api:
        await bring(api)
        found = await health(api, metrics=0)
        names = [one["name"] for one in found["causes"]]
        assert found["status"] == found["verdict"]["status"] == status, found["causes"]
        assert tuple(found["checks"]) == CHECKS
        await all_surfaces_agree(api, found)
        if name is None:
            assert names == []
            assert {one["status"] for one in found["checks"].values()} == {"ok"}
            assert found["verdict"]["sentence"] == "The one open run is moving or waiting as it should."
            return
        assert name in names, names
        cause = found["causes"][names.index(name)]
        assert (cause["check"], cause["count"]) == (check, count)
        expected = {"error": "error", "warning": "warning", "info": "ok"}[cause["severity"]]
        assert found["checks"][check] == {"status": expected, "causes": [name]}
        assert cause["sentence"].endswith((".", "”"))
        assert cause["link"].startswith("/api/")
        assert cause["action"]["label"]
        if cause["since"] is not None:
            assert cause["age_seconds"] >= 0
        others = {name for name, one in found["checks"].items() if one["status"] != "ok"} - {check}
        assert others <= {"durable_resume_paths"}, "nothing else is called wrong"
        if check != "backend_capabilities":
            link = await api.control("GET", cause["link"].removeprefix("/api"))
            assert link.status_code == 200, (cause["link"], link.text)
        if name == "no_worker":
            missing = cause["subject"]["missing"]
            assert bring.__name__.removeprefix("no_worker_of_").removeprefix("no_worker_on_").endswith(missing)
            assert cause["subject"]["tasks"] == 1


@pytest.mark.contract("FLEET-06", "MATCH-14", "ACTION-03")
@pytest.mark.parametrize(
    ("bring", "cure"),
    [
        (states.no_worker_on_queue, {}),
        (states.no_worker_of_type, {}),
        (states.no_worker_of_activity_type, {"supported_activity_types": ["ship"]}),
        (states.no_worker_of_build, {"build_id": "build-1"}),
        (states.no_worker_of_activity_connection, {"connection": "eu"}),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
async def test_a_gap_of_the_fleet_is_told_everywhere_and_ends_with_a_worker(bring: Bring, cure: dict[str, Any]) -> None:
    """Detail, list, metrics, health and why say the same, and the task is kept for the worker that comes."""
    async with serving(**PATIENT) as api:
        await bring(api)
        await api.world.advance(1)
        detail = (await api.control("GET", "/workflows/o-1/detail")).json()
        kind = "activity" if "activity" in bring.__name__ else "workflow"
        assert detail["liveness_state"] == f"{kind}_task_waiting_for_compatible_worker"
        (row,) = (await api.control("GET", "/flows/running?repair_attention=true")).json()["flows"]
        assert row["liveness_state"] == detail["liveness_state"]
        assert (row["repair_blocked_reason"], row["repair_attention"]) == ("waiting_for_compatible_worker", True)
        metrics = (await health(api))["operator_metrics"]
        assert metrics["runs"]["compatibility_blocked"] == 1
        assert metrics["runs"]["repair_needed"] == 0, "it is no loss"
        (gap,) = metrics["compatibility"]["gaps"]
        assert (gap["kind"], gap["task_queue"], gap["ready_count"]) == (kind, "q", 1)
        assert (await states.why(api))["attention"] == "no_worker"
        await api.register("worker-9", **cure)
        assert (await api.control("GET", "/workflows/o-1/detail")).json()["liveness_state"] == f"{kind}_task_ready"
        assert (await api.control("GET", "/flows/running?repair_attention=true")).json()["flows"] == []
        cured = await health(api)
        assert (cured["status"], cured["causes"]) == ("ok", [])
        assert cured["operator_metrics"]["runs"]["compatibility_blocked"] == 0
        assert (await api.poll(kind, "worker-9"))["task_id"], "the task was kept"


@pytest.mark.contract("MATCH-09")
async def test_pressure_survives_a_restart_as_backlog_and_redelivery(tmp_path: Any) -> None:
    settings: dict[str, Any] = PATIENT | {"store": f"sqlite:{tmp_path / 'pressed.db'}"}
    async with serving(**settings) as api:
        await api.register()
        for number in range(5):
            await api.start(f"p-{number}")
        assert (await api.poll())["workflow_task_attempt"] == 1
        stats = (await api.control("GET", "/task-queues/q")).json()["stats"]
        assert (stats["workflow_tasks"]["ready_count"], stats["workflow_tasks"]["leased_count"]) == (4, 1)
    async with serving(**settings) as api:
        await settle()
        stats = (await api.control("GET", "/task-queues/q")).json()["stats"]
        assert (stats["workflow_tasks"]["ready_count"], stats["workflow_tasks"]["leased_count"]) == (4, 1)
        await api.world.advance(301)
        stats = (await api.control("GET", "/task-queues/q")).json()["stats"]
        assert stats["workflow_tasks"]["ready_count"] == 5, "the lease that ended is offered again"
        await api.register()
        attempts = [(await api.poll())["workflow_task_attempt"] for _ in range(5)]
        assert sorted(attempts) == [1, 1, 1, 1, 2]
        redelivered = (await health(api))["operator_metrics"]["leases"]["redelivered"]
        assert redelivered == 1


@pytest.mark.contract("LIVE-01")
@pytest.mark.parametrize(
    ("bring", "kind", "status"),
    [
        (states.queued, "workflow", "ready"),
        (states.runs_code, "workflow", "leased"),
        (states.task_failed, "workflow", "failed"),
        (states.runs_activity, "activity", "leased"),
        (states.failed_once, "activity", "ready"),
        (states.update_waits, "workflow", "leased"),
        (states.sleeps, None, None),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
async def test_the_summary_has_the_next_task_in_every_state(bring: Bring, kind: str | None, status: str | None) -> None:
    async with serving(**PATIENT) as api:
        await bring(api)
        await settle()
        (row,) = (await api.control("GET", "/flows/running?instance_id=o-1")).json()["flows"]
        assert (row["next_task_type"], row["next_task_status"]) == (kind, status)
        assert (row["next_task_id"] is None) is (kind is None)
        if bring is states.update_waits:
            assert (row["wait_kind"], row["resume_source_kind"]) == ("update", "workflow_update")
            assert row["open_wait_id"] == f"update:{row['resume_source_id']}"


@pytest.mark.contract("METRIC-06")
async def test_runs_are_counted_by_their_trouble() -> None:
    async with serving(**PATIENT) as api:
        await states.lost(api)
        await api.start("fails")
        await api.fail(await api.poll(), message="no such module", type="ImportError")
        await api.start("nobodys", workflow_type="refund")
        runs = (await health(api))["operator_metrics"]["runs"]
        assert (runs["repair_needed"], runs["claim_failed"], runs["compatibility_blocked"]) == (1, 1, 1)


@pytest.mark.contract("ACTION-03", "ACTION-04")
async def test_lists_find_runs_by_what_is_wrong_with_them() -> None:
    """Rows that were deleted, code that is blocked, and a worker that is missing, under a running server."""
    async with serving(**PATIENT) as api:
        await states.blocked(api)
        await api.start("lost")
        await api.complete(await api.poll(), states.SIGNAL)
        await api.start("alone", workflow_type="refund")
        await api.start("fine")
        await api.complete(await api.poll(), states.TIMER)
        await api.control("POST", "/workflows/lost/signal/pay", {"input": [1]})
        await api.world.advance(1)
        key = await api.server.store.find("default", "lost")
        assert sql(api, "delete from task where workflow = ?", key) == 1

        async def ids(query: str) -> list[str]:
            answer = await api.control("GET", f"/flows/running?{query}")
            assert answer.status_code == 200, answer.text
            return sorted(one["workflow_id"] for one in answer.json()["flows"])

        assert await ids("task_problem=true") == ["lost", "o-1"]
        assert await ids("repair_attention=true") == ["alone"]
        assert await ids("task_problem=false") == ["alone", "fine"]
        await api.register("worker-2", supported_workflow_types=["refund"])
        assert await ids("repair_attention=true") == []
        assert (await api.control("POST", "/workflows/lost/repair", {})).json()["outcome"] == "repair_dispatched"
        await api.world.advance(1)
        assert (await api.control("GET", "/workflows/lost/detail")).json()["liveness_state"] == "workflow_task_ready"


# -- readiness


@pytest.mark.parametrize(
    ("bring", "reason"),
    [(down, "database_unavailable"), (elsewhere, "engine_elsewhere"), (draining, "draining")],
    ids=lambda one: getattr(one, "__name__", one),
)
async def test_a_server_that_is_not_ready_says_why(bring: Bring, reason: str) -> None:
    async with serving() as api:
        good = await api.http.get("/api/ready")
        assert (good.status_code, good.json()["status"], good.json()["reasons"]) == (200, "ready", [])
        await bring(api)
        answer = await api.http.get("/api/ready")
        assert (answer.status_code, answer.json()["status"]) == (503, "not_ready")
        assert [one["code"] for one in answer.json()["reasons"]] == [reason]
        assert answer.json()["reasons"][0]["message"]


async def test_a_server_that_recovers_is_not_ready_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as api:
        monkeypatch.setattr(api.server.recovery, "_unread", {7})
        answer = await api.http.get("/api/ready")
        assert (answer.status_code, answer.json()["reasons"][0]["code"]) == (503, "engine_recovering")
        assert answer.json()["checks"]["engine"] == "recovering"
        assert (await health(api, metrics=0))["causes"][0]["name"] == "engine_recovering"


async def test_health_of_a_probe_reads_no_history_and_scans_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(**PATIENT) as api:
        for number in range(20):
            await api.start(f"p-{number}")
        store = api.server.store

        def forbidden(*_: Any, **__: Any) -> Any:
            raise AssertionError("health of a probe may not ask for this")

        for name in ("load", "history", "mismatched", "event_types", "history_sizes", "count_by_status", "leased"):
            monkeypatch.setattr(store, name, forbidden)
        assert (await health(api, metrics=0))["status"] == "error"


@pytest.mark.contract("MATCH-02")
@pytest.mark.parametrize("many", [False, True], ids=["few runs", "many runs"])
async def test_only_the_tasks_of_a_connection_that_no_worker_serves_are_a_gap(
    monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    async with serving(**PATIENT) as api:
        if many:
            monkeypatch.setattr(run_search, "SMALL", 1)
        await api.register()
        for id, connection in (("far", {"connection": "eu"}), ("near", {"connection": "us"}), ("none", {})):
            await api.start(id)
            await api.complete(await api.poll(), states.CHARGE | connection)
        await api.control("DELETE", "/workers/worker-1")
        await api.register("american", connection="us")
        await api.world.advance(1)
        missing = next(one for one in (await health(api))["causes"] if one["name"] == "no_worker")
        gaps = (await health(api))["operator_metrics"]["compatibility"]["gaps"]
        assert missing["subject"]["missing"] == "connection"
        assert sorted((gap["connection"] or "", gap["ready_count"]) for gap in gaps) == [("", 1), ("eu", 1)]
        for query in ("attention=no_worker", "liveness_state=activity_task_waiting_for_compatible_worker"):
            flows = (await api.control("GET", f"/flows/running?{query}")).json()["flows"]
            assert sorted(flow["instance_id"] for flow in flows) == ["far", "none"]
            assert (await api.control("GET", f"/flows/running/count?{query}")).json()["count"] == 2
        near = (await api.control("GET", "/workflows/near/detail")).json()
        assert near["liveness_state"] == "activity_task_ready"
        told = (await api.control("GET", "/workflows/far/why")).json()["sentence"]
        assert "none of them takes activity charge with connection 'eu' (live: us)" in told
        overview = (await api.control("GET", "/overview")).json()
        sentences = [one["sentence"] for one in overview["causes"] if one["name"] == "no_worker"]
        assert any("takes connection 'eu': 1 task waits for activity charge" in one for one in sentences)
        assert len(sentences) == 2
