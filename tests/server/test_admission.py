"""Admission: what a queue, a namespace and a budget group may hand out, and what operators see of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from backstay.server.settings import Settings, WrongSetting, load

from .kit import ME, Api, parked, serving


async def statuses(api: Api, polls: list[tuple[str, str]], kind: str = "workflow") -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = []
    for worker_id, queue in polls:
        answer = (await api.worker(f"{kind}-tasks/poll", {"worker_id": worker_id, "task_queue": queue})).json()
        found.append((answer["poll_status"], answer.get("reason")))
    return found


async def two_queues(api: Api) -> None:
    await api.register()
    await api.register("far", queue="far")
    for number in range(3):
        await api.start(f"here-{number}")
        await api.start(f"there-{number}", task_queue="far")


HERE, THERE = (ME, "q"), ("far", "far")


async def test_a_namespace_has_a_cap_on_leases_that_its_queues_share() -> None:
    async with serving(workflow_task_max_active_leases_per_namespace=2) as api:
        await two_queues(api)
        assert await statuses(api, [HERE, THERE, HERE]) == [
            ("leased", None),
            ("leased", None),
            ("throttled", "max_active_leases_per_namespace"),
        ]
        seen = (await api.control("GET", "/task-queues/far")).json()["admission"]["workflow_tasks"]
        assert (seen["status"], seen["reason"]) == ("throttled", "max_active_leases_per_namespace")
        limits = {budget["limit"]: budget for budget in seen["budgets"]}
        assert limits["max_active_leases_per_namespace"] == {
            "limit": "max_active_leases_per_namespace",
            "allowed": 2,
            "used": 2,
            "remaining": 0,
            "share": None,
            "source": "settings",
        }
        held = next(lease for lease in api.server.engine.leases if lease.routing.queue == "q")
        waiting = asyncio.create_task(api.poll(worker_id="far", queue="far", timeout_seconds=30))
        await parked(api)
        body = {"lease_owner": ME, "workflow_task_attempt": held.attempt, "commands": [{"type": "complete_workflow"}]}
        await api.worker(f"workflow-tasks/{held.id}/complete", body)
        assert (await waiting)["workflow_id"].startswith("there"), "what one queue gives back another may take"
        await api.control("POST", "/namespaces", {"name": "own"})
        await api.worker(
            "register",
            {"worker_id": ME, "task_queue": "q", "runtime": "python"},
            headers={"X-Namespace": "own"},
        )
        elsewhere = await api.worker(
            "workflow-tasks/poll", {"worker_id": ME, "task_queue": "q"}, headers={"X-Namespace": "own"}
        )
        assert elsewhere.json()["poll_status"] == "empty", "another namespace has a cap of its own"


async def test_dispatches_of_a_namespace_are_budgeted() -> None:
    async with serving(workflow_task_max_dispatches_per_minute_per_namespace=2) as api:
        await two_queues(api)
        assert [status for status, _ in await statuses(api, [HERE, THERE, HERE, THERE])] == [
            "leased",
            "leased",
            "throttled",
            "throttled",
        ]
        waiting = asyncio.create_task(api.poll(timeout_seconds=60))
        await parked(api)
        await api.world.advance(61)
        assert await waiting is not None, "the next minute serves who waits"


async def test_queues_of_a_budget_group_share_one_budget() -> None:
    overrides = load(
        {},
        {
            "DW_TASK_QUEUE_ADMISSION_OVERRIDES": '{"default:q": {"budget_group": "bank"}, "far": {"budget_group": "bank"}}',
            "DW_TASK_QUEUE_BUDGET_GROUPS": '{"bank": 3}',
        },
    )
    async with serving(
        task_queue_admission_overrides=overrides.task_queue_admission_overrides,
        task_queue_budget_groups=overrides.task_queue_budget_groups,
    ) as api:
        await two_queues(api)
        await api.register("free", queue="free")
        await api.start("free", task_queue="free")
        found = await statuses(api, [HERE, THERE, HERE, THERE, HERE, ("free", "free")])
        assert [status for status, _ in found] == ["leased", "leased", "leased", "throttled", "throttled", "leased"]
        assert found[3][1] == "max_dispatches_per_minute_of_budget_group"
        seen = (await api.control("GET", "/task-queues/q")).json()["admission"]["workflow_tasks"]
        assert seen["budget_group"] == "bank"
        assert "bank" in next(b for b in seen["budgets"] if b["used"] == 3 and "group" in b["limit"])["source"]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"default:q": {"max_active_leases": 1}, "q": {"max_active_leases": 9}}, 1),
        ({"default:*": {"max_active_leases": 2}, "q": {"max_active_leases": 9}}, 2),
        ({"q": {"max_active_leases": 3}, "*": {"max_active_leases": 9}}, 3),
        ({"*": {"max_active_leases": 4}}, 4),
        ({"other": {"max_active_leases": 9}}, 5),
        ({"q": {"max_active_leases": 0}}, None),
        ({"q": {"max_active_leases": 9, "workflow_tasks": {"max_active_leases": 6}}}, 6),
    ],
)
async def test_the_nearest_override_counts(overrides: dict[str, Any], expected: int | None) -> None:
    settings = load({"task_queue_admission_overrides": overrides}, {})
    async with serving(
        workflow_task_max_active_leases_per_queue=5,
        task_queue_admission_overrides=settings.task_queue_admission_overrides,
    ) as api:
        seen = (await api.control("GET", "/task-queues/q")).json()["admission"]["workflow_tasks"]
        assert seen["max_active_leases_per_queue"] == expected


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ('{"q": {"max_leases": 1}}', "max_leases"),
        ("[1]", "expected `object`"),
        ('{"q": {"budget_group": "bnak"}}', "did you mean 'bank'"),
    ],
)
def test_wrong_overrides_stop_the_start(wrong: str, says: str) -> None:
    environment = {"DW_TASK_QUEUE_ADMISSION_OVERRIDES": wrong, "DW_TASK_QUEUE_BUDGET_GROUPS": '{"bank": 3}'}
    with pytest.raises(WrongSetting, match=says):
        load({}, environment)


async def test_urgent_work_goes_first_and_tenants_take_turns() -> None:
    async with serving() as api:
        await api.register()
        for number in range(4):
            await api.start(f"big-{number}", fairness_key="big")
        await api.start("small-0", fairness_key="small")
        await api.start("late-and-urgent", priority=0)
        order = [(await api.poll())["workflow_id"] for _ in range(4)]
        assert order == ["late-and-urgent", "big-0", "small-0", "big-1"]


def test_the_default_settings_limit_nothing() -> None:
    assert Settings().task_queue_admission_overrides == {}
