"""The overview: what needs attention, what there is, how it went, and what comes; and what will wake."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from backstay.cli.main import dw

from .kit import TOKEN, Api, serving, sql

HOUR = 3600


async def overview(api: Api, window: str = "1h", after: float = 1) -> dict[str, Any]:
    await api.world.advance(after)  # stored views follow a commit
    answer = await api.control("GET", f"/overview?window={window}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def causes(seen: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in seen["causes"]}


async def sleeper(api: Api, workflow_id: str, seconds: float) -> None:
    await api.start(workflow_id)
    await api.complete(await api.poll(), {"type": "start_timer", "delay_seconds": seconds})


async def ended(api: Api, workflow_id: str, how: str, after: float = 0) -> None:
    await api.start(workflow_id)
    await api.world.advance(after)
    failed = {"type": "fail_workflow", "message": "no", "exception_type": "Error"}
    await api.complete(await api.poll(), {"type": "complete_workflow"} if how == "completed" else failed)


async def test_an_empty_namespace_needs_no_attention() -> None:
    async with serving() as api:
        seen = await overview(api)
        assert seen["causes"] == []
        assert seen["stock"]["open"] == 0
        assert set(seen["stock"]["states"].values()) == {0}
        assert seen["totals"] == {
            **dict.fromkeys(("started", "completed", "failed", "cancelled", "terminated", "continued"), 0),
            **dict.fromkeys(("pass_rate", "p50_ms", "p95_ms")),
        }
        assert (seen["types"]["busiest"], seen["queues"]["oldest_waiting"]) == ([], [])
        assert seen["wakes"]["next_day"]["runs"] == 0
        assert (seen["engine"], seen["window"], seen["namespace"]) == ("here", "1h", "default")


async def test_open_runs_are_counted_by_state() -> None:
    async with serving() as api:
        await api.register()
        await sleeper(api, "sleeps", 60 * 60)
        await api.start("works")
        assert (await api.poll())["workflow_id"] == "works"
        await api.start("is-ready")
        stock = (await overview(api))["stock"]
        assert (stock["open"], stock["without_view"]) == (3, 0)
        assert {state: runs for state, runs in stock["states"].items() if runs} == {
            "sleeping": 1,
            "working": 1,
            "ready": 1,
        }
        sql(api, "delete from workflow_run_summaries where workflow_type = 'order' and state = 'ready'")
        again = (await overview(api, after=0))["stock"]
        assert (again["open"], again["without_view"]) == (3, 1), "what has no view yet is told"


async def test_starts_and_ends_are_a_series_with_percentiles_by_type() -> None:
    async with serving() as api:
        await api.register(supported_workflow_types=[])
        for number in range(8):
            await ended(api, f"good-{number}", "completed", after=1)
        for number in range(2):
            await ended(api, f"bad-{number}", "failed", after=30)
        seen = await overview(api)
        totals = seen["totals"]
        assert (totals["started"], totals["completed"], totals["failed"], totals["pass_rate"]) == (10, 8, 2, 0.8)
        assert 500 < totals["p50_ms"] <= 2048, "one second, within a factor of two"
        assert 16_000 < totals["p95_ms"] <= 65_600
        (one,) = seen["types"]["busiest"]
        assert (one["workflow_type"], one["pass_rate"], one["p95_ms"]) == ("order", 0.8, totals["p95_ms"])
        series = seen["series"]
        assert (series["interval_seconds"], len(series["points"])) == (60, 60)
        assert sum(point["started"] for point in series["points"]) == 10
        assert sum(point["failed"] for point in series["points"]) == 2
        day = await overview(api, "24h")
        assert (day["series"]["interval_seconds"], len(day["series"]["points"])) == (3600, 24)
        assert day["totals"] == totals
        week = await overview(api, "7d")
        assert (len(week["series"]["points"]), week["totals"]) == (168, totals)
        await api.world.advance(2 * HOUR)
        assert (await overview(api))["totals"]["started"] == 0, "it is longer ago than the window"
        assert (await overview(api, "24h"))["totals"]["started"] == 10


async def test_each_of_the_busiest_types_has_a_trend_of_twelve_parts() -> None:
    async with serving() as api:
        await api.register()
        minute = 60_000_000
        current = api.server.now // minute * minute
        for ago, kind, outcome, runs in (
            (59, "order", "started", 3),  # the first minute of the window
            (55, "order", "started", 1),
            (54, "order", "completed", 2),
            (2, "order", "failed", 1),
            (0, "order", "started", 4),
            (0, "new", "started", 1),
        ):
            row = "insert into tally values ('default', 60000000, ?, ?, ?, 0, ?)"
            sql(api, row, current - ago * minute, kind, outcome, runs)
        order, new = (await overview(api))["types"]["busiest"]
        assert order["trend"] == {
            "started": [4, *[0] * 10, 4],
            "completed": [0, 2, *[0] * 10],
            "failed": [*[0] * 11, 1],
        }
        assert new["trend"] == {"started": [*[0] * 11, 1], "completed": [0] * 12, "failed": [0] * 12}
        await ended(api, "good", "completed")
        for window in ("1h", "24h", "7d"):
            (one,) = [one for one in (await overview(api, window))["types"]["busiest"] if one["completed"] % 2]
            assert one["trend"]["completed"][-1] == 1, "what happens now is in it"
            assert {name: sum(values) for name, values in one["trend"].items()} == {
                name: one[name] for name in ("started", "completed", "failed")
            }


async def test_what_is_added_late_to_an_interval_that_is_over_is_seen_within_a_minute() -> None:
    async with serving() as api:
        assert (await overview(api))["totals"]["started"] == 0
        now = api.server.now
        past = now - now % 60_000_000 - 600_000_000
        sql(api, "insert into tally values ('default', 60000000, ?, 'order', 'started', 0, 7)", past)
        await api.world.advance(61)
        assert (await overview(api))["totals"]["started"] == 7


async def test_a_type_that_fails_too_often_needs_attention() -> None:
    async with serving() as api:
        await api.register()
        for number in range(3):
            await ended(api, f"good-{number}", "completed")
        for number in range(3):
            await ended(api, f"bad-{number}", "failed")
        one = causes(await overview(api))["failing"]
        assert one["sentence"] == "3 of 6 order runs failed in the last hour (50%)."
        assert (one["count"], one["subject"]["workflow_type"], one["link"]) == (
            3,
            "order",
            "/api/flows/failed?workflow_type=order",
        )


async def test_a_queue_a_type_and_a_build_without_a_worker_need_attention() -> None:
    async with serving() as api:
        await api.start("no-queue", task_queue="nowhere")
        await api.register(build_id="b1")
        await api.start("no-type", workflow_type="unknown")
        await api.start("no-build", build_id="b2")
        await api.start("served")
        await api.world.advance(90)
        await api.worker("heartbeat", {"worker_id": "worker-1"})
        found = {
            one["subject"]["missing"]: one for one in (await overview(api))["causes"] if one["name"] == "no_worker"
        }
        assert set(found) == {"queue", "type", "build"}
        queue = found["queue"]
        assert queue["sentence"].startswith(
            "No live worker serves queue 'nowhere': 1 task waits there for workflow order"
        )
        assert (queue["count"], queue["subject"]["tasks"], queue["severity"]) == (1, 1, "error")
        assert queue["age_seconds"] == pytest.approx(91, abs=1)
        assert queue["link"] == "/api/flows/running?attention=no_worker&queue=nowhere"
        assert queue["action"] == {
            "label": "Start a worker of queue 'nowhere'",
            "command": "dw worker FILE --queue nowhere",
        }
        assert "runs workflow unknown" in found["type"]["sentence"]
        assert "has build b2" in found["build"]["sentence"]
        await api.register("mender", queue="nowhere")
        left = [one["subject"]["missing"] for one in (await overview(api))["causes"] if one["name"] == "no_worker"]
        assert sorted(left) == ["build", "type"]


async def test_blocked_and_retrying_runs_need_attention() -> None:
    async with serving() as api:
        await api.register()
        await api.start("blocked")
        task = await api.poll()
        failed = await api.fail(task, message="it differs", type="HistoryShapeMismatch", replay_blocked=True)
        assert failed.status_code == 200, failed.text
        await api.start("retries")
        retry = {"max_attempts": 5, "backoff_seconds": [3600]}
        await api.complete(
            await api.poll(), {"type": "schedule_activity", "activity_type": "charge", "retry_policy": retry}
        )
        await api.activity("fail", await api.poll("activity"), failure={"message": "no", "type": "Error"})
        await api.world.advance(600)
        whole = await overview(api)
        seen = causes(whole)
        assert (seen["blocked"]["count"], seen["blocked"]["severity"]) == (1, "error")
        said = "1 order run is blocked by worker worker-1: the code cannot go on. “it differs”"
        assert seen["blocked"]["sentence"] == said
        assert seen["blocked"]["example"]["workflow_id"] == "blocked"
        assert seen["retrying"]["count"] == 1
        assert seen["retrying"]["link"] == "/api/flows/running?attention=retrying&workflow_type=order"
        assert seen["retrying"]["age_seconds"] == pytest.approx(601, abs=2)
        said = "1 order run is retrying activity charge: “no”. The next attempt is in 49 min 59 s."
        assert (seen["retrying"]["severity"], seen["retrying"]["sentence"]) == ("info", said)
        assert whole["verdict"] == {"status": "error", "sentence": "1 thing needs attention.", "needs_attention": 1}


async def test_wakes_that_passed_are_overdue() -> None:
    async with serving() as api:
        await api.register()
        await sleeper(api, "late", 50_000)
        await overview(api)
        sql(api, "update workflow set next_wake = ?", api.server.now - 60_000_000)
        one = causes(await overview(api))["overdue"]
        assert (one["count"], one["sentence"]) == (1, "1 run should have continued by now, the first 1 min 1 s ago.")


async def test_a_queue_that_is_held_back_needs_attention() -> None:
    async with serving(workflow_task_max_active_leases_per_queue=1) as api:
        await api.register(queue="a b?c")
        for number in range(3):
            await api.start(f"o-{number}", task_queue="a b?c")
        await api.poll(queue="a b?c")
        seen = await overview(api)
        one = causes(seen)["throttled"]
        assert (one["count"], one["subject"]["task_queue"], one["link"]) == (
            2,
            "a b?c",
            "/api/task-queues/a%20b%3Fc/tasks",
        )
        assert len((await api.control("GET", one["link"].removeprefix("/api"))).json()["tasks"]) == 2
        assert "max_active_leases_per_queue" in one["sentence"]
        (queue,) = seen["queues"]["oldest_waiting"]
        assert (queue["backlog"], queue["leased"], queue["workers"]) == (2, 1, 1)
        assert one["sentence"].endswith(queue["throttled_because"])


async def test_a_long_history_needs_attention() -> None:
    async with serving(continue_as_new_event_threshold=250) as api:
        await api.start()
        await api.world.advance(1)
        sql(api, "update workflow_run_summaries set events = 300")
        one = causes(await overview(api, after=0))["history_budget"]
        assert one["link"] == "/api/flows/running?continue_as_new_recommended=true"
        assert (await api.control("GET", one["link"].removeprefix("/api"))).status_code == 200
        assert one["count"] == 1
        assert "the longest history has 300 events" in one["sentence"]


async def test_the_certificate_is_in_it_and_stranded_runs_come_first() -> None:
    async with serving() as api:
        await api.start()
        assert (await api.control("GET", "/system/liveness?fresh=1")).json()["status"] == "ok"
        seen = await overview(api)
        assert (seen["certificate"]["status"], seen["certificate"]["stranded"]) == ("ok", 0)
        sql(api, "delete from task")
        sql(api, "update workflow set expects = 0")
        assert (await api.control("GET", "/system/liveness?fresh=1")).json()["stranded"] == 1
        assert (await api.control("GET", "/overview")).json()["causes"][0]["name"] == "repair_needed"


async def test_schedules_that_are_due_or_late_are_counted() -> None:
    async with serving() as api:
        for name, cron in (("soon", "*/10 * * * *"), ("later", "0 0 1 1 *")):
            body = {
                "schedule_id": name,
                "spec": {"cron_expressions": [cron]},
                "action": {"workflow_type": "order", "task_queue": "q"},
            }
            assert (await api.control("POST", "/schedules", body)).status_code == 201
        await api.control("POST", "/schedules/later/pause", {})
        seen = await overview(api)
        assert (seen["schedules"]["active"], seen["schedules"]["paused"]) == (1, 1)
        assert (seen["schedules"]["due_next_hour"], seen["schedules"]["overdue"]) == (1, 0)
        sql(api, "update workflow set next_wake = ? where next_wake is not null", api.server.now - 60_000_000)
        late = await overview(api)
        assert late["schedules"]["overdue"] == 1
        one = causes(late)["missed_schedules"]
        assert one["sentence"] == "1 schedule has not fired in time, the first was due 1 min 1 s ago."


async def test_the_fleet_is_in_it() -> None:
    async with serving(worker_stale_after_seconds=60) as api:
        await api.register("silent", build_id="b1")
        await api.world.advance(100)
        await api.register("alive", build_id="b2", queue="r")
        fleet = (await overview(api))["fleet"]
        assert (fleet["active"], fleet["stale"], fleet["queues"], fleet["builds"]) == (1, 1, 1, ["b2"])


async def test_namespaces_are_apart() -> None:
    async with serving() as api:
        await api.control("POST", "/namespaces", {"name": "other"})
        await api.start()
        await api.world.advance(1)
        other = (await api.control("GET", "/overview", headers={"X-Namespace": "other"})).json()
        assert (other["stock"]["open"], other["totals"]["started"], other["queues"]["backlog"]) == (0, 0, 0)
        assert other["causes"] == []


async def test_a_window_that_is_not_known_is_refused() -> None:
    async with serving() as api:
        wrong = await api.control("GET", "/overview?window=2h")
        assert (wrong.status_code, wrong.json()["reason"], wrong.json()["field"]) == (422, "unknown_window", "window")
        assert "1h, 24h, 7d" in wrong.json()["message"]


async def test_requests_that_come_together_share_one_answer() -> None:
    async with serving(still=False) as api:
        answers = await asyncio.gather(*(api.control("GET", "/overview") for _ in range(20)))
        assert {answer.status_code for answer in answers} == {200}


async def test_a_standby_has_an_overview_too(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'shared.db'}"
    async with serving(still=False, store=store) as engine:
        await engine.start()
        async with serving(still=False, store=store) as standby:
            seen = (await standby.control("GET", "/overview")).json()
            assert (seen["engine"], seen["certificate"]) == ("elsewhere", None)
            assert (seen["stock"]["open"], seen["queues"]["backlog"]) == (1, 1)


async def test_an_overview_of_a_postgresql_server(postgresql_url: str) -> None:
    async with serving(still=False, store=postgresql_url) as api:
        await api.register()
        await sleeper(api, "sleeps", 600)
        await api.start("waits", task_queue="nowhere", build_id="b1")
        deadline = asyncio.get_running_loop().time() + 10
        while True:
            seen = (await api.control("GET", "/overview?window=1h")).json()
            if seen["stock"]["states"]["sleeping"] and seen["totals"]["started"] == 2:
                break
            assert asyncio.get_running_loop().time() < deadline, seen
            await asyncio.sleep(0.01)
        assert (seen["stock"]["open"], seen["queues"]["backlog"]) == (2, 1)
        assert seen["wakes"]["next_hour"]["runs"] == 1
        assert causes(seen)["no_worker"]["subject"]["task_queue"] == "nowhere"
        builds = (await api.control("GET", "/task-queues/nowhere/build-ids")).json()["build_ids"]
        assert [(one["build_id"], one["open_runs"]) for one in builds] == [("b1", 1)]
        (task,) = (await api.control("GET", "/task-queues/nowhere/tasks")).json()["tasks"]
        assert task["workflow_id"] == "waits"


# -- what will wake


async def wakes(api: Api, asked: str = "") -> dict[str, Any]:
    answer = await api.control("GET", f"/wakes{asked}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_wakes_are_counted_by_bucket() -> None:
    async with serving() as api:
        await api.register()
        for number, seconds in enumerate((30, 40, 90, 7200)):
            await sleeper(api, f"s-{number}", seconds)
        seen = await wakes(api, "?until=2m&bucket=1m")
        assert (seen["bucket_seconds"], seen["runs"], seen["complete"]) == (60, 3, True)
        assert [one["runs"] for one in seen["buckets"]] == [2, 1]
        assert seen["counted_until"] == seen["until"]
        assert (await wakes(api))["runs"] == 3, "an hour, if nothing is said"
        assert (await wakes(api, "?until=1d"))["runs"] == 4
        until = (await api.describe("s-0"))["started_at"][:10]
        assert (await wakes(api, f"?until={int(until[:4]) + 1}{until[4:]}T00:00:00Z"))["runs"] == 4
        seen = (await overview(api))["wakes"]
        assert (seen["next_hour"]["runs"], seen["next_day"]["runs"], seen["complete"]) == (3, 4, True)


async def test_too_many_wakes_are_counted_up_to_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backstay.store.figures.MOST_WAKES", 2)
    async with serving() as api:
        await api.register()
        for number, seconds in enumerate((30, 40, 90, 95, 100)):
            await sleeper(api, f"s-{number}", seconds)
        seen = await wakes(api, "?until=10m&bucket=1m")
        assert (seen["runs"], seen["complete"]) == (2, False)
        assert seen["counted_until"] < seen["until"]


@pytest.mark.parametrize(
    ("asked", "field", "reason"),
    [
        ("?until=yesterday", "until", "invalid_until"),
        ("?until=2027-01-01T00:00:00", "until", "invalid_until"),
        ("?until=2001-01-01T00:00:00Z", "until", "until_in_the_past"),
        ("?until=0s", "until", "until_in_the_past"),
        ("?until=9999-01-01T00:00:00Z", "until", "until_too_far"),
        ("?until=1d&bucket=1s", "bucket", "bucket_too_small"),
        ("?bucket=0", "bucket", "bucket_too_small"),
        ("?bucket=soon", "bucket", "invalid_bucket"),
    ],
)
async def test_a_time_or_a_bucket_that_makes_no_sense_is_refused(asked: str, field: str, reason: str) -> None:
    async with serving() as api:
        answer = await api.control("GET", f"/wakes{asked}")
        assert (answer.status_code, answer.json()["field"], answer.json()["reason"]) == (422, field, reason)


# -- on a terminal


async def test_dw_prints_the_overview_and_the_queues_of_a_server() -> None:
    async with serving(still=False) as api:
        await api.register()
        await api.start("o-1", task_queue="nowhere")
        where = ("--server", str(api.http.base_url), "--token", TOKEN)

        async def printed(*words: str) -> str:
            done = await asyncio.to_thread(CliRunner().invoke, dw, [*words, *where], prog_name="dw")
            assert done.exit_code == 0, done.output
            return done.output

        shown = await printed("overview", "--window", "1h")
        assert "No live worker serves queue 'nowhere'" in shown
        assert "1 active, 0 stale" in shown
        queues = await printed("queues")
        assert "nowhere" in queues
        assert "o-1" in await printed("queues", "nowhere")
