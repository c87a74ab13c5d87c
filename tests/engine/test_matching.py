"""Matching over the bridge: who gets which task, that only one does, and that none is lost with its wake-up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from backstay import AsyncBackstay, RequestRefused, activity, sleep, workflow
from backstay.kernel.features.activity import ScheduleActivity
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.values import Routing
from backstay.protocol import requests as ask
from tests.sim.virtual import VirtualWorld, run


@activity(type="ship")
def ship() -> str:
    return "shipped"


@workflow(type="order")
def order() -> str:
    sleep(60)
    return ship()


def story(tell: Callable[[AsyncBackstay], Coroutine[Any, Any, None]], **options: Any) -> None:
    """Tell a story with an engine whose tasks nobody runs unless asked."""

    async def told(world: Callable[[], VirtualWorld]) -> None:
        options.setdefault("client_only", True)
        async with AsyncBackstay(":memory:", [order, ship], guard="off", world=world, **options) as app:
            await tell(app)

    run(1, told)


async def start(app: AsyncBackstay, id: str = "o", **routing: Any) -> None:
    await app.call(ask.StartWorkflow(workflow_type="order", workflow_id=id, routing=Routing(**routing)))


def poll(**options: Any) -> ask.PollWorkflowTask:
    return ask.PollWorkflowTask(worker_id="w", **options)


@pytest.mark.contract("MATCH-02", "MATCH-06", "LEASE-02")
@pytest.mark.parametrize(
    ("routing", "wrong", "right"),
    [
        ({"queue": "blue"}, {"queue": "default"}, {"queue": "blue"}),
        ({"connection": "eu"}, {"connection": "us"}, {"connection": "eu"}),
        ({"compatibility": "v2"}, {"compatibility": frozenset({"v1"})}, {"compatibility": frozenset({"v2"})}),
        ({"compatibility": "v2"}, {}, {"compatibility": frozenset({"*"})}),
        ({}, {"workflow_types": frozenset({"other"})}, {"workflow_types": frozenset({"order"})}),
        ({"namespace": "default"}, {"namespace": "other"}, {"namespace": "default"}),
    ],
)
def test_a_task_goes_only_to_a_poll_that_matches_it(
    routing: dict[str, Any], wrong: dict[str, Any], right: dict[str, Any]
) -> None:
    async def tell(app: AsyncBackstay) -> None:
        await start(app, **routing)
        assert await app.call(poll(**wrong)) is None
        got = await app.call(poll(**right))
        assert got is not None
        assert got.workflow_id == "o"

    story(tell)


@pytest.mark.contract("MATCH-03")
def test_one_task_and_fifty_polls_make_one_owner() -> None:
    async def tell(app: AsyncBackstay) -> None:
        polls = [asyncio.ensure_future(app.call(poll(wait_seconds=5))) for _ in range(50)]
        await asyncio.sleep(0)
        await start(app)
        got = [task for task in await asyncio.gather(*polls) if task is not None]
        assert len(got) == 1

    story(tell)


@pytest.mark.contract("MATCH-04", "MATCH-05", "LEASE-14")
def test_a_lease_lasts_until_it_is_renewed_completed_or_expired() -> None:
    async def tell(app: AsyncBackstay) -> None:
        await start(app)
        first = await app.call(poll())
        assert first is not None
        await asyncio.sleep(200)
        renewed = await app.call(ask.HeartbeatTask(task_id=first.task.id, lease_owner="w", workflow_task_attempt=1))
        assert renewed.lease_expires_at is not None
        await asyncio.sleep(200)
        assert await app.call(poll()) is None, "renewed: still owned"
        await asyncio.sleep(101)
        again = await app.call(poll())
        assert again is not None
        assert (again.task.id, again.task.attempt) == (first.task.id, 2), "the same task, next attempt"
        late = ask.CompleteTask(
            task_id=first.task.id, lease_owner="w", workflow_task_attempt=1, commands=[StartTimer(delay_seconds=1)]
        )
        with pytest.raises(RequestRefused) as refused:
            await app.call(late)
        assert refused.value.reason == "workflow_task_attempt_mismatch"
        done = ask.CompleteTask(
            task_id=first.task.id, lease_owner="w", workflow_task_attempt=2, commands=[StartTimer(delay_seconds=9)]
        )
        assert (await app.call(done)).outcome == "completed"
        assert await app.call(poll()) is None

    story(tell)


@pytest.mark.contract("MATCH-07", "CMD-04")
def test_an_activity_goes_only_to_a_worker_that_has_its_type() -> None:
    async def tell(app: AsyncBackstay) -> None:
        await start(app)
        task = await app.call(poll())
        assert task is not None
        await app.call(
            ask.CompleteTask(
                task_id=task.task.id,
                lease_owner="w",
                workflow_task_attempt=1,
                commands=[ScheduleActivity(activity_type="ship")],
            )
        )
        other = ask.PollActivityTask(worker_id="a", activity_types=frozenset({"pack"}))
        assert await app.call(other) is None
        mine = await app.call(ask.PollActivityTask(worker_id="a", activity_types=frozenset({"ship"})))
        assert mine is not None
        assert mine.activity_type == "ship"

    story(tell)


@pytest.mark.contract("MATCH-08")
def test_a_task_whose_wake_up_was_lost_is_found_by_durable_polling() -> None:
    async def tell(app: AsyncBackstay) -> None:
        await start(app)
        lost = app.engine.matching.lanes.take_best(lambda lane: True)
        assert lost is not None
        assert await app.call(poll()) is None, "memory has forgotten it"
        waiting = asyncio.ensure_future(app.call(poll(wait_seconds=400)))
        assert (await waiting) is not None

    story(tell)


@pytest.mark.contract("MATCH-10")
def test_two_namespaces_share_no_names() -> None:
    async def tell(app: AsyncBackstay) -> None:
        for namespace in ("blue", "green"):
            request = ask.StartWorkflow(
                workflow_type="order", workflow_id="same", namespace=namespace, routing=Routing(namespace=namespace)
            )
            assert (await app.call(request)).outcome == "started_new"
        runs = {n: (await app.call(ask.ListWorkflows(namespace=n))) for n in ("blue", "green", "default")}
        assert [len(rows) for rows in runs.values()] == [1, 1, 0]
        got = await app.call(poll(namespace="green"))
        assert got is not None
        assert got.namespace == "green"

    story(tell)


@pytest.mark.contract("REPLAY-05", "REPLAY-07", "REPLAY-08")
def test_no_build_schedules_an_activity_over_a_recorded_timer() -> None:
    @workflow(type="order", unchecked=True)
    def changed() -> str:
        return ship()

    async def tell(app: AsyncBackstay) -> None:
        handle = await app.start(order, "o")
        await asyncio.sleep(1)
        app.registry.workflows["order"] = changed.definition
        app.executor.forget(app.engine.cache.get(app.engine.cache.named("default", "o") or 0).instance.current.key)  # type: ignore[union-attr]
        await asyncio.sleep(120)
        description = await handle.describe()
        assert description.liveness_state == "workflow_replay_blocked"
        assert [view.transport_state for view in description.tasks] == ["replay_blocked"]
        types = [entry.type for entry in await handle.history()]
        assert "ActivityScheduled" not in types
        assert "WorkflowFailed" not in types

    story(tell, client_only=False)


def test_a_task_that_is_gone_is_not_counted_in_the_backlog_of_a_queue_without_polls() -> None:
    async def tell(app: AsyncBackstay) -> None:
        queue = ("workflow", "default", "nobody")
        await start(app, "stays", queue="nobody")
        for number in range(5):
            await start(app, f"o{number}", queue="nobody")
            await app.handle(order, f"o{number}").terminate()
        assert len(app.engine.matching.lanes.waiting_since()[queue]) == 1
        await app.handle(order, "stays").terminate()
        assert app.engine.matching.lanes.waiting_since() == {}
        assert not app.engine.matching.lanes.waiting

    story(tell)
