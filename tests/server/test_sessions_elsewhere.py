"""Worker sessions and leases at two nodes that cannot call each other: what one has done, the other finds in the database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from backstay.kernel.values import partition_of

from .kit import ME, Api, serving, until
from .test_sessions import OTHER, create, scheduled, shown, step, two_workers


@asynccontextmanager
async def apart(store: str, **settings: int) -> AsyncIterator[tuple[Api, Api]]:
    async with (
        serving(store=store, still=False, linked=False, **settings) as one,
        serving(store=store, still=False, linked=False, **settings) as other,
    ):
        await until(lambda: all(0 < sum(api.server.engine.owned) < 256 for api in (one, other)))
        yield one, other


def owned_by(api: Api, prefix: str = "o") -> str:
    """The id of a workflow that this node owns."""
    owned = api.server.engine.owned
    return next(id for number in range(10**4) if owned[partition_of("default", id := f"{prefix}-{number}") & 255])


async def test_a_step_that_was_completed_at_another_node_leaves_room_for_the_next(postgresql_url: str) -> None:
    async with apart(postgresql_url) as (one, other):
        await two_workers(one)
        for owner in (one, other):
            session, name = f"at-{id(owner)}", owned_by(owner, str(owner is one))
            await owner.start(name)
            task = await owner.poll(timeout_seconds=5)
            for _ in range(3):
                await owner.complete(task, step(session))
                began = await one.poll("activity", timeout_seconds=5)
                assert began is not None, "the step before has ended"
                await other.activity("complete", began)
                task = await owner.poll(timeout_seconds=5)
                assert task is not None


async def test_a_lease_that_ends_at_another_node_makes_room_below_a_limit(postgresql_url: str) -> None:
    async with apart(postgresql_url, activity_task_max_active_leases_per_queue=1) as (one, other):
        await two_workers(one)
        for number in range(3):
            name = owned_by(one, f"n{number}")
            await one.start(name)
            await one.complete(
                await one.poll(timeout_seconds=5), {"type": "schedule_activity", "activity_type": "charge"}
            )
            began = await one.poll("activity", timeout_seconds=5)
            assert began is not None, number
            await other.activity("complete", began)


async def test_a_worker_that_is_not_known_here_keeps_its_session(postgresql_url: str) -> None:
    async with apart(postgresql_url) as (one, other):
        await one.register(ME)
        one.server.registries.stop()
        await other.register(OTHER)
        await create(other, worker_id=OTHER)
        await scheduled(one, step(), workflow_id=owned_by(one))
        for _ in range(3):
            assert await one.poll("activity", timeout_seconds=1) is None
        await other.server.registries.refresh()
        assert (await shown(other))["lease_owner"] == OTHER


async def test_a_session_that_was_closed_at_another_node_has_no_further_step(postgresql_url: str) -> None:
    async with apart(postgresql_url) as (one, other):
        await two_workers(one)
        await create(one)
        one.server.registries.stop()
        closed = await other.worker("sessions/gpu", {"worker_id": ME}, method="DELETE")
        assert closed.json()["outcome"] == "closed", closed.text
        await scheduled(one, step(), workflow_id=owned_by(one))
        assert await one.poll("activity", timeout_seconds=1) is None


async def test_a_session_that_was_closed_at_another_node_is_not_said_to_be_held(postgresql_url: str) -> None:
    async with apart(postgresql_url) as (one, other):
        await two_workers(one)
        await create(one)
        one.server.registries.stop()
        await other.worker("sessions/gpu", {"worker_id": ME}, method="DELETE")
        again = await create(one, worker_id=OTHER)
        assert (again.status_code, again.json()["reason"]) == (409, "session_closed")


async def test_what_another_node_has_acknowledged_is_shown(postgresql_url: str) -> None:
    async with apart(postgresql_url) as (one, other):
        await two_workers(one)
        await create(one)
        one.server.registries.stop()
        await other.worker("sessions/gpu", {"worker_id": ME}, method="DELETE")
        assert (await shown(one))["status"] == "closed"
        assert (await one.control("GET", "/worker-sessions?status=active")).json()["worker_sessions"] == []
        await other.control("POST", "/namespaces", {"name": "shop"})
        assert "shop" in (await one.control("GET", "/namespaces")).text


async def test_one_worker_of_a_session_however_many_nodes_create_it(postgresql_url: str) -> None:
    async with apart(postgresql_url) as (one, other):
        await two_workers(one)
        made = await asyncio.gather(
            *(create(api, f"s-{number}", id) for number in range(5) for api, id in ((one, ME), (other, OTHER)))
        )
        assert sorted(answer.status_code for answer in made) == [201] * 5 + [409] * 5
