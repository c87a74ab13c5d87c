"""Every refusal is told at another node as it is at the owner: at once, with its status, its reason and its words."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from backstay.kernel.event import HistoryDamaged
from backstay.kernel.failure import Failure
from backstay.kernel.features.schedule.records import Action, SchedulePlan
from backstay.kernel.features.schedule.spec import Spec
from backstay.kernel.features.stream import StreamItem
from backstay.kernel.message import Refused
from backstay.kernel.task import Block
from backstay.kernel.values import Routing
from backstay.protocol import commands as tell
from backstay.protocol import requests as ask
from backstay.protocol import schedules, streams
from backstay.protocol.native import nodes
from backstay.server.routes import ROUTES

from .kit import ME, Api, blob
from .test_links import COMPLETE, Two, two

PLAN = SchedulePlan(spec=Spec(cron_expressions=["0 0 1 1 *"]), action=Action(workflow_type="order"))
UNKNOWN = "nobody"
CLOSED = "done-1"

BETWEEN_NODES = {
    *(nodes.AwaitEvents, nodes.TellWaiting, nodes.FetchWorkflowTask, nodes.FetchActivityTask, nodes.DeliverSend),
    *(nodes.AskWorker, nodes.ReadRegistry, nodes.ReadRates, nodes.SweepShards, nodes.SpareWorker),
}
"""Requests that no caller makes: nodes make them of each other."""


async def furnish(both: Two) -> dict[str, Any]:
    """A closed run with an activity, and the tasks that it had."""
    there = both.there
    await there.start(CLOSED)
    task = await there.poll()
    schedule = {"type": "schedule_activity", "activity_type": "charge", "arguments": blob([1])}
    assert (await there.complete(task, schedule)).status_code == 200
    attempt = await there.poll("activity")
    await there.activity("complete", attempt, result=blob(1))
    last = await there.poll()
    assert (await there.complete(last, COMPLETE)).status_code == 200
    plan = {"spec": {"cron_expressions": ["0 0 1 1 *"]}, "action": {"workflow_type": "order", "task_queue": "q"}}
    made = await there.control("POST", "/schedules", {"schedule_id": "s-1", **plan})
    assert made.status_code == 201, made.text
    return {"task": last, "attempt": attempt}


def asked(made: dict[str, Any]) -> list[ask.Request[Any]]:
    """What callers and workers ask of an instance that there is not, or whose run is over."""
    task, attempt = made["task"], made["attempt"]
    leased = {"task_id": task["task_id"], "lease_owner": ME, "workflow_task_attempt": 9}
    of_attempt = {"activity_attempt_id": attempt["activity_attempt_id"], "lease_owner": "somebody"}
    start = ask.StartWorkflow(workflow_type="order", workflow_id=CLOSED, routing=Routing(queue="q"))
    other_type = replace(start, workflow_type="other")
    found: list[ask.Request[Any]] = [
        start,
        other_type,
        ask.RunWorkflow(start=start),
        ask.ReserveWorkflow(workflow_type="other", workflow_id=CLOSED),
        tell.SignalWithStart(start=other_type, signal_name="paid"),
        tell.SignalWithStart(start=replace(start, workflow_id=UNKNOWN, arguments=bytes(2_200_000)), signal_name="paid"),
        schedules.CreateSchedule(schedule_id="s-1", plan=PLAN),
    ]
    for id in (UNKNOWN, CLOSED):
        of: dict[str, Any] = {"workflow_id": id}
        found += [
            ask.AwaitResult(**of, wait_seconds=0.0),
            tell.SignalWorkflow(**of, signal_name="paid"),
            tell.AppendMessage(**of, stream_name="in", message_id="1"),
            tell.UpdateWorkflow(**of, update_name="add"),
            tell.GetUpdate(**of, update_id="01ARZ3NDEKTSV4RRFFQ69G5FAV-u1.1", wait_seconds=1),
            tell.QueryWorkflow(**of, query_name="total"),
            tell.QueryWorkflow(**of, query_name="total", run_id="01ARZ3NDEKTSV4RRFFQ69G5FAV"),
            *(verb(**of) for verb in tell.OPERATOR.values()),
            *(streams.DescribeStream(**of, stream_name="out"), streams.ListStreams(**of)),
            streams.AppendStream(**of, stream_name="out", items=[StreamItem(payload=b"x", idempotency_key="k")]),
            *(streams.CloseStream(**of, stream_name="out"), streams.ReadStream(**of, stream_name="out")),
        ]
    of: dict[str, Any] = {"schedule_id": UNKNOWN}
    found += [
        schedules.UpdateSchedule(**of, changes={"note": "x"}),
        *(verb(**of) for verb in (schedules.PauseSchedule, schedules.ResumeSchedule, schedules.TriggerSchedule)),
        *(schedules.BackfillSchedule(**of, start=0, end=1), schedules.DeleteSchedule(**of)),
        ask.ClaimWorkflowTask(task_id=task["task_id"], worker_id=ME),
        ask.ClaimActivityTask(task_id=attempt["task_id"], worker_id=ME),
        ask.GetTaskHistory(**leased),
        ask.CompleteTask(**leased, commands=[]),
        ask.FailTask(**leased, failure=Block(message="no", type="E")),
        ask.HeartbeatTask(**leased),
        ask.CompleteActivityTask(**of_attempt),
        ask.FailActivityTask(**of_attempt, failure=Failure(message="no")),
        ask.HeartbeatActivityTask(activity_attempt_id="01ARZ3NDEKTSV4RRFFQ69G5FAV-1-1", lease_owner=ME),
    ]
    return found


def filled(path: str, ids: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda name: ids.get(name[1], UNKNOWN), path)


async def told(api: Api, request: ask.Request[Any]) -> tuple[str, str, dict[str, Any]] | None:
    """How a request is refused; None: it is not."""
    try:
        await api.server.api.call(request)
    except Refused as refusal:
        return refusal.reason, refusal.message, refusal.fields
    return None


async def test_every_verb_is_refused_alike(postgresql_url: str) -> None:
    async with two(postgresql_url) as both:
        made = await furnish(both)
        both.counts.clear()
        refused: Counter[type[Any]] = Counter()
        requests = asked(made)
        for request in requests:
            there, front = await told(both.there, request), await told(both.front, request)
            assert front == there, request
            refused[type(request)] += there is not None
        assert both.counts["forwarded"] == sum(both.counts.values()), (
            "each was answered by the owner, and none counts as lost"
        )
        assert both.counts["forwarded"] >= len(requests)
        assert {kind for kind in nodes.OF if not refused[kind]} == BETWEEN_NODES, "these are never refused here"


async def test_every_route_is_refused_alike(postgresql_url: str) -> None:
    """With ids that there are not, with ids of a closed run, and with a body that says nothing."""
    async with two(postgresql_url, query_timeout_seconds=0.2) as both:
        made = await furnish(both)
        run_id = (await both.there.describe(CLOSED))["run_id"]
        closed = {"workflow_id": CLOSED, "run_id": run_id, "schedule_id": "s-2", "task_id": made["task"]["task_id"]}
        versions = {
            "X-Durable-Workflow-Control-Plane-Version": "2",
            "X-Durable-Workflow-Protocol-Version": "1.20",
            "X-Backstay-Protocol": "1",
        }
        compared: Counter[int] = Counter()
        for route in ROUTES:
            if "{" not in route.path or not route.needs_credential or route.path.startswith("/api/nodes/"):
                continue
            for ids in ({}, closed):
                path = filled(route.path, ids)
                answers = [
                    await api.http.request(
                        route.method,
                        path,
                        json=None if route.method == "GET" else {},
                        headers=versions | {"Authorization": "Bearer secret"},
                    )
                    for api in (both.there, both.front)
                ]
                statuses = [answer.status_code for answer in answers]
                if max(statuses) < 400:
                    continue
                compared[max(statuses)] += 1
                said = [{name: answer.json().get(name) for name in ("reason", "message")} for answer in answers]
                assert (statuses[0], said[0]) == (statuses[1], said[1]), path
        assert compared[404] >= 50
        assert max(compared) < 500 or compared.keys() <= {400, 404, 405, 409, 410, 421, 422, 504}
        assert both.counts["failed"] == both.counts["here"] == 0


async def test_a_damaged_history_says_nothing_of_the_link(postgresql_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner says what is wrong with the run. The caller is told that, and the link to the owner goes on."""
    async with two(postgresql_url) as both:
        await both.front.start("o-1")
        damage = HistoryDamaged(7, 3, "its checksum is wrong", workflow_id="o-1", run_id="r")

        async def damaged(request: Any) -> Any:
            raise damage

        monkeypatch.setattr(both.there.server.api, "here", damaged)
        both.counts.clear()
        for _ in range(4):
            refused = await both.front.control("POST", "/workflows/o-1/signal/paid", {})
            assert (refused.status_code, refused.json()["reason"]) == (409, "history_damaged"), refused.text
            assert refused.json()["damage"] == "its checksum is wrong"
        assert both.counts == {"forwarded": 4}
        assert both.front.server.links.unreachable == []
