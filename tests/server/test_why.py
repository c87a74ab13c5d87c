"""Why a run is where it is: the sentence of every state, for runs that were really brought there over HTTP."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from .kit import Api, serving, settle, sql

CHARGE = {"type": "schedule_activity", "activity_type": "charge"}
RETRIED = CHARGE | {"retry_policy": {"max_attempts": 21, "backoff_seconds": [3600]}}
DONE = {"type": "complete_workflow"}
TIMER = {"type": "start_timer", "delay_seconds": 2700}
SIGNAL = {"type": "open_signal_wait", "signal_name": "pay"}
CONDITION = {"type": "open_condition_wait", "condition_key": "paid", "timeout_seconds": 600}
CHILD = {"type": "start_child_workflow", "workflow_type": "order", "task_queue": "elsewhere"}
DRIFT = {
    "message": "recorded a timer, the code asks for an activity",
    "reason": "history_shape_mismatch",
}


async def running(api: Api, *commands: dict[str, Any], **more: Any) -> None:
    await api.register(**more)
    await api.start()
    answer = await api.complete(await api.poll(), *commands)
    assert answer.status_code == 200, answer.text


async def why(api: Api, path: str = "", **query: Any) -> dict[str, Any]:
    answer = await api.control("GET", f"/workflows/o-1{path}/why", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def failed_once(api: Api) -> None:
    await running(api, RETRIED)
    task = await api.poll("activity")
    await api.activity("fail", task, failure={"message": "carrier API did not answer within 30 s", "type": "Timeout"})


async def post(api: Api, path: str, body: Any = None) -> Any:
    return await api.control("POST", f"/workflows/o-1/{path}", {} if body is None else body)


# -- how runs get there


async def waits_for_signal(api: Api) -> None:
    await running(api, SIGNAL | {"timeout_seconds": 600})


async def waits_for_condition(api: Api) -> None:
    await running(api, CONDITION)


async def waits_for_child(api: Api) -> None:
    await running(api, CHILD)


async def sleeps(api: Api) -> None:
    await running(api, TIMER)


async def runs_activity(api: Api) -> None:
    await running(api, RETRIED)
    await api.poll("activity")


async def runs_code(api: Api) -> None:
    await api.register()
    await api.start()
    await api.poll()


async def update_waits(api: Api) -> None:
    await running(api, TIMER, workflow_command_contracts={"order": {"updates": ["rename"]}})
    accepted = await post(api, "update/rename", {"wait_for": "accepted"})
    assert accepted.status_code == 202, accepted.text
    await api.poll()


async def queued(api: Api) -> None:
    await api.register()
    await api.start()


async def throttled(api: Api) -> None:
    await api.register()
    await api.start("o-0")
    await api.poll()
    await api.start()


async def no_worker_on_queue(api: Api) -> None:
    await api.start()


async def no_worker_of_type(api: Api) -> None:
    await api.register(supported_workflow_types=["refund"])
    await api.start()


async def no_worker_of_activity_type(api: Api) -> None:
    await running(api, {"type": "schedule_activity", "activity_type": "ship"})


async def no_worker_of_build(api: Api) -> None:
    await api.register("old", build_id="build-1")
    await api.control("POST", "/task-queues/q/build-ids/promote", {"build_id": "build-1"})
    await api.start()
    await api.control("DELETE", "/workers/old")
    await api.register(build_id="build-2")


async def no_worker_of_activity_connection(api: Api) -> None:
    await running(api, CHARGE | {"connection": "eu"})
    await api.control("DELETE", "/workers/worker-1")
    await api.register("american", connection="us")


async def blocked(api: Api) -> None:
    await running(api, TIMER, workflow_definition_fingerprints={"order": "sha256:1"})
    await post(api, "signal/pay")
    answer = await api.fail(await api.poll(), **DRIFT)
    assert answer.status_code == 200, answer.text


async def task_failed(api: Api) -> None:
    await api.register()
    await api.start()
    await api.fail(await api.poll(), message="no such module", type="ImportError")


async def paused(api: Api) -> None:
    await running(api, SIGNAL)
    await api.control(
        "POST",
        "/workflows/o-1/pause",
        {"reason": "the warehouse is closed"},
        headers={"X-Workflow-Caller-Label": "ann"},
    )


async def lost(api: Api) -> None:
    await running(api, CHARGE)
    assert sql(api, "delete from task") == 1


async def lost_wake(api: Api) -> None:
    await running(api, TIMER)
    assert sql(api, "update workflow set next_wake = null where workflow_id = 'o-1'") == 1


async def completed(api: Api) -> None:
    await running(api, DONE)


async def failed(api: Api) -> None:
    await running(api, CHARGE)
    await api.activity("fail", await api.poll("activity"), failure={"message": "card declined", "type": "Declined"})
    failure = {"type": "fail_workflow", "message": "card declined", "exception_type": "Declined"}
    answer = await api.complete(await api.poll(), failure)
    assert answer.status_code == 200, answer.text


async def cancelled(api: Api) -> None:
    await running(api, SIGNAL)
    await post(api, "cancel", {"reason": "changed her mind"})


async def terminated(api: Api) -> None:
    await running(api, SIGNAL)
    await post(api, "terminate", {"reason": "started by mistake"})


TABLE: list[tuple[Callable[[Api], Awaitable[None]], str, str, str, str | None, str | None, dict[str, Any]]] = [
    # how, verb, tone, sentence, action, attention, settings
    (
        waits_for_signal,
        "waits_for_signal",
        "info",
        r"Waits for signal pay for 1 min; it times out in 9 min\.",
        "signal",
        None,
        {},
    ),
    (
        waits_for_condition,
        "waits_for_condition",
        "info",
        r"Waits for 1 min until its condition “paid” holds; it times out in 9 min\.",
        "signal",
        None,
        {},
    ),
    (waits_for_child, "waits_for_child", "info", r"Waits for child \w{26} for 1 min\.", "open_child", None, {}),
    (sleeps, "sleeps", "info", r"Sleeps for another 44 min, until \d\d:\d\d:\d\d UTC\.", None, None, {}),
    (
        runs_activity,
        "runs_activity",
        "info",
        r"Activity charge runs for 1 min at worker-1, attempt 1 of 21\.",
        None,
        None,
        {},
    ),
    (runs_code, "runs_code", "info", r"Its code runs for 1 min at worker-1\.", None, None, {}),
    (update_waits, "runs_code", "info", r"Its code runs for update rename for 1 min at worker-1\.", None, None, {}),
    (
        failed_once,
        "tries_again",
        "warning",
        r"Tries again in 59 min: charge has failed 1 of 21 times, last with “carrier API did not answer within 30 s”\.",
        "retry_now",
        "retrying",
        {},
    ),
    (
        task_failed,
        "tries_again",
        "warning",
        r"Its workflow task failed with “no such module” and is retried (in \d+ s|soon)\.",
        "repair",
        "retrying",
        {},
    ),
    (
        queued,
        "queued",
        "warning",
        r"The workflow task of order waits for 1 min for a free slot of its only worker on queue 'q'\.",
        None,
        None,
        {"worker_stale_after_seconds": 3600},
    ),
    (
        throttled,
        "throttled",
        "warning",
        r"The workflow task of order waits for 1 min: queue 'q' has reached max_active_leases_per_queue \(1 of 1,"
        r" settings\); held by worker-1 \(1\)\.",
        "raise_limit",
        "throttled",
        {"workflow_task_max_active_leases_per_queue": 1, "worker_stale_after_seconds": 3600},
    ),
    (
        no_worker_on_queue,
        "needs_worker",
        "danger",
        r"No live worker serves queue 'q'; the workflow task of order has waited for 1 min\.",
        "start_worker",
        "no_worker",
        {},
    ),
    (
        no_worker_of_type,
        "needs_worker",
        "danger",
        r"1 worker serves queue 'q', none of them runs workflow order; the workflow task of order has waited for 1 min\.",
        "start_worker",
        "no_worker",
        {"worker_stale_after_seconds": 3600},
    ),
    (
        no_worker_of_activity_type,
        "needs_worker",
        "danger",
        r"1 worker serves queue 'q', none of them runs activity ship; activity ship has waited for 1 min\.",
        "start_worker",
        "no_worker",
        {"worker_stale_after_seconds": 3600},
    ),
    (
        no_worker_of_build,
        "needs_worker",
        "danger",
        r"It is pinned to build build-1, and no live worker of queue 'q' has that \(live: build-2\);"
        r" the workflow task of order has waited for 1 min\.",
        "start_worker",
        "no_worker",
        {"worker_stale_after_seconds": 3600},
    ),
    (
        blocked,
        "blocked",
        "danger",
        r"Blocked for 1 min by worker worker-1: the code no longer fits the history of the run: “recorded a timer, the code asks for an activity”\.",
        "deploy",
        "blocked",
        {},
    ),
    (paused, "paused", "paused", r"Paused 1 min ago by ann: “the warehouse is closed”\.", "unpause", None, {}),
    (
        lost,
        "needs_repair",
        "danger",
        r"Nothing would wake it: the task of activity charge is missing, which its history expects\.",
        "repair",
        "repair_needed",
        {},
    ),
    (
        lost_wake,
        "needs_repair",
        "danger",
        r"Nothing would wake it: the wake of its timer is missing, which its history expects\.",
        "repair",
        "repair_needed",
        {},
    ),
    (completed, "completed", "good", r"Completed 1 min ago, after less than a second\.", None, None, {}),
    (failed, "failed", "danger", r"Failed 1 min ago.*, after less than a second: “card declined”\.", None, None, {}),
    (
        cancelled,
        "cancelled",
        "info",
        r"Cancelled 1 min ago, after less than a second: “.*changed her mind.*”\.",
        None,
        None,
        {},
    ),
    (
        terminated,
        "terminated",
        "info",
        r"Terminated 1 min ago, after less than a second: “.*started by mistake.*”\.",
        None,
        None,
        {},
    ),
]


@pytest.mark.parametrize(
    ("bring", "verb", "tone", "sentence", "action", "attention", "settings"),
    TABLE,
    ids=lambda one: getattr(one, "__name__", ""),
)
async def test_every_state_has_its_sentence(
    bring: Callable[[Api], Awaitable[None]],
    verb: str,
    tone: str,
    sentence: str,
    action: str | None,
    attention: str | None,
    settings: dict[str, Any],
) -> None:
    async with serving(
        **settings | {"task_repair_loop_throttle_seconds": settings.get("task_repair_loop_throttle_seconds", 3600)}
    ) as api:
        await bring(api)
        await api.world.advance(1 if bring is task_failed else 60)
        found = await why(api)
        assert re.fullmatch(sentence, found["sentence"]), found["sentence"]
        assert (found["verb"], found["tone"], found["attention"]) == (verb, tone, attention), found
        assert (found["action"] or {}).get("verb") == action
        if action is not None:
            assert found["action"]["label"]
            assert found["action"]["allowed"] is (action not in ("start_worker", "raise_limit", "deploy"))
            assert found["action"]["allowed"] or found["action"]["reason"]
        is_open = found["state"] not in ("completed", "failed", "cancelled", "terminated", "continued")
        assert (found["resume_source"] is None) is not is_open
        assert found["since"] <= found["generated_at"]
        assert found["chain"], "something led here"
        assert found["chain"][0]["because"] is None
        for cause, effect in zip(found["chain"], found["chain"][1:], strict=False):
            assert effect["because"] == cause["sequence"]


async def test_a_lease_that_has_ended_is_overdue() -> None:
    async with serving(task_repair_loop_throttle_seconds=3600) as api:
        await runs_code(api)
        api.server.engine.timers.stop()
        await api.world.advance(300 + 60)
        found = await why(api)
        assert found["verb"] == "overdue"
        assert found["attention"] == "overdue"
        assert "worker-1 took the workflow task of order and did not report" in found["sentence"]


async def test_the_action_does_what_it_says() -> None:
    """What `why` offers is accepted: the run is somewhere else afterwards."""
    async with serving(task_repair_loop_throttle_seconds=3600) as api:
        await failed_once(api)
        action = (await why(api))["action"]
        done = await post(api, f"activities/{action['target']}/retry-now")
        assert done.status_code == 200, done.text
        assert (await why(api))["verb"] == "queued"
    for bring, verb in ((paused, "unpause"), (lost, "repair")):
        async with serving(task_repair_loop_throttle_seconds=3600) as api:
            await bring(api)
            before = await why(api)
            assert before["action"]["verb"] == verb
            assert (await post(api, verb)).status_code == 200
            assert (await why(api))["verb"] != before["verb"]


async def test_a_worker_that_can_take_it_ends_the_complaint() -> None:
    async with serving() as api:
        await no_worker_of_type(api)
        assert (await why(api))["verb"] == "needs_worker"
        assert (await api.control("GET", "/workflows/o-1/summary")).json()["attention"] == "no_worker"
        await api.register("worker-2")
        assert (await why(api))["verb"] == "queued"
        assert (await api.control("GET", "/workflows/o-1/summary")).json()["attention"] is None


async def test_continued_runs_name_the_next_one() -> None:
    async with serving() as api:
        await api.register()
        old = (await api.start())["run_id"]
        await api.complete(await api.poll(), {"type": "continue_as_new"})
        new = (await api.describe())["run_id"]
        found = await why(api, f"/runs/{old}")
        assert found["sentence"].startswith(f"Continued as run 2 ({new}) ")
        assert (found["verb"], found["action"]["verb"], found["action"]["target"]) == ("continued", "open_run", new)
        assert (await why(api))["verb"] == "queued"
        first = (await why(api))["chain"][0]
        assert (first["type"], first["outside"]) == ("WorkflowStarted", f"run {old}, which continued as new")


async def test_the_chain_of_a_branch_leads_back_to_what_came_from_outside() -> None:
    async with serving() as api:
        await running(api, SIGNAL)
        await post(api, "signal/pay", {"input": [5]})
        await api.complete(await api.poll(), CHARGE)
        events = await api.history()
        scheduled = next(e["sequence"] for e in events if e["event_type"] == "ActivityScheduled")
        received = next(e["sequence"] for e in events if e["event_type"] == "SignalReceived")
        found = await why(api, event=scheduled)
        assert found["verb"] == "happened"
        assert found["sentence"] == (
            f"Event {scheduled}, ActivityScheduled charge, follows from event {received}, SignalReceived pay,"
            " which came from a command (http)."
        )
        assert [(cause["sequence"], cause["because"]) for cause in found["chain"]] == [
            (received, None),
            (scheduled, received),
        ]
        await api.activity("complete", await api.poll("activity"))
        await api.complete(await api.poll(), DONE)
        types = [cause["about"] for cause in (await why(api))["chain"]]
        assert types == [
            "SignalReceived pay",
            "ActivityScheduled charge",
            "ActivityStarted charge",
            "ActivityCompleted charge",
            "WorkflowCompleted",
        ]


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        ("/workflows/nobody/why", 404, "instance_not_found"),
        ("/workflows/o-1/runs/none/why", 404, "run_not_found"),
        ("/workflows/o-1/why?event=99", 404, "event_not_found"),
        ("/workflows/o-1/why?event=0", 422, "validation_failed"),
        ("/workflows/o-1/why?event=x", 422, "validation_failed"),
        ("/workflows/held/why", 409, "instance_not_started"),
    ],
)
async def test_what_cannot_be_explained_says_so(path: str, status: int, reason: str) -> None:
    async with serving() as api:
        await queued(api)
        await api.control("POST", "/reservations", {"workflow_id": "held", "workflow_type": "order"})
        answer = await api.control("GET", path)
        assert (answer.status_code, answer.json()["reason"]) == (status, reason), answer.text


async def test_the_message_of_a_failure_is_one_short_quoted_line() -> None:
    async with serving() as api:
        await running(api, RETRIED)
        task = await api.poll("activity")
        await api.activity("fail", task, failure={"message": "boom\x1b[31m\n" + "x" * 5000, "type": "Timeout"})
        found = await why(api)
        assert "\n" not in found["sentence"]
        assert "\x1b" not in found["sentence"]
        assert len(found["sentence"]) < 400


async def test_a_long_run_is_explained_from_its_last_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as api:
        await running(api, SIGNAL)
        for number in range(150):
            await post(api, "signal/other", {"input": [number]})
            await api.complete(await api.poll(), CONDITION | {"condition_key": f"{number}"})
        await settle()
        length = len(await api.history())
        assert length > 300
        await why(api)  # its summary is stored now
        reads: list[int] = []
        store = api.server.engine.store
        read = store.history

        def history(run: int, after: int = 0, limit: int | None = None) -> Any:
            reads.append(limit or 10**9)
            return read(run, after, limit)

        monkeypatch.setattr(store, "history", history)
        found = await why(api)
        assert found["chain"]
        assert reads
        assert max(reads) <= 200
        assert found["chain"][-1]["sequence"] > length - 10
        middle = await why(api, event=200)
        assert middle["chain"][-1]["sequence"] == 200
        assert max(reads) <= 200


async def test_a_damaged_history_is_said() -> None:
    async with serving(views=False) as api:
        await sleeps(api)
        assert sql(api, "delete from event where sequence = 2") == 1
        api.server.engine.reload((await api.server.store.find("default", "o-1")) or 0)
        found = await why(api)
        assert (found["verb"], found["tone"], found["attention"]) == ("damaged", "danger", "blocked")
        assert found["sentence"].startswith("Its history is damaged at event 2: missing")
        assert found["action"]["allowed"] is False


async def test_a_pause_names_the_token_that_asked_for_it() -> None:
    async with serving() as api:
        await running(api, SIGNAL)
        made = (await api.control("POST", "/tokens", {"role": "operator"})).json()
        paused = await api.control("POST", "/workflows/o-1/pause", {}, token=made["token"])
        assert paused.status_code == 200, paused.text
        assert f" ago by token {made['token_id']}." in (await why(api))["sentence"]


async def test_many_ask_at_once() -> None:
    async with serving() as api:
        await failed_once(api)
        found = await asyncio.gather(*(why(api) for _ in range(20)))
        assert len({one["sentence"] for one in found}) == 1
        assert found[0]["action"]["target"].endswith("-1")
