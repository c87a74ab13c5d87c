"""What every node tells about the whole database: the same, whichever of them is asked, or that it does not know."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from backstay import AsyncBackstay
from backstay.store.postgresql.connection import address

from .kit import PATIENCE, Api, serving, until


@asynccontextmanager
async def three(store: str) -> AsyncIterator[list[Api]]:
    async with (
        serving(store=store, still=False) as one,
        serving(store=store, still=False) as two,
        serving(store=store, still=False) as three,
    ):
        everybody = [one, two, three]
        await until(lambda: all(80 <= sum(api.server.engine.owned) <= 92 for api in everybody))
        yield everybody


async def get(api: Api, path: str) -> Any:
    answer = await api.control("GET", path)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def work(everybody: list[Api]) -> None:
    """Runs on all nodes, whose tasks nobody takes."""
    for number, api in enumerate(everybody * 4):
        await api.start(f"o-{number}")


async def test_backlogs_and_leases_are_those_of_all_nodes(postgresql_url: str) -> None:
    async with three(postgresql_url) as everybody:
        await work(everybody)
        await everybody[0].register()
        task = await everybody[0].poll()
        await until(lambda: all(api.server.workers.get("default", "worker-1") for api in everybody))
        for api in everybody:
            queue = await get(api, "/task-queues/q")
            stats = queue["stats"]["workflow_tasks"]
            assert (stats["ready_count"], stats["leased_count"], queue["counted_by"]) == (11, 1, "disk")
            assert [one["task_id"] for one in queue["current_leases"]] == [task["task_id"]]
            assert queue["workers"]["ids"] == ["worker-1"]
            assert [*queue["rates"].values()] == pytest.approx([12, 1, 0], abs=0.9)  # they fade with the minute
            assert queue["schedule_to_start"]["workflow_tasks"]["count"] == 1
            metrics = (await get(api, "/system/operator-metrics"))["operator_metrics"]
            assert (metrics["backlog"]["runnable_tasks"], metrics["tasks"]["ready_due"]) == (11, 11)
            assert metrics["backlog"]["leased_tasks"] == 1
            assert metrics["backend"]["database"]["shards_owned"] == sum(api.server.engine.owned)
            overview = await get(api, "/overview")
            assert (overview["queues"]["backlog"], overview["stock"]["open"]) == (11, 12)
            assert (overview["nodes"]["alive"], overview["nodes"]["unowned"]) == (3, 0)
            assert overview["nodes"]["owned_here"] == sum(api.server.engine.owned)


async def test_tasks_that_no_worker_can_take_are_found_by_every_node(postgresql_url: str) -> None:
    async with three(postgresql_url) as everybody:
        await work(everybody)
        for api in everybody:
            metrics = (await get(api, "/system/operator-metrics"))["operator_metrics"]
            (gap,) = metrics["compatibility"]["gaps"]
            assert (gap["task_queue"], gap["missing"], gap["ready_count"]) == ("q", "queue", 12)
            told = await get(api, "/workflows/o-1/why")
            assert "No live worker serves" in told["sentence"]
        async with AsyncBackstay(postgresql_url, client_only=False) as app:
            await until(lambda: all(len(api.server.node.shards.nodes) == 4 for api in everybody))
            me = app.engine.store.me
            await until(lambda: all(me in {row.owner for row in api.server.node.shards.rows} for api in everybody))
            for api in everybody:
                assert (await get(api, "/task-queues/q"))["rates"] is None, "it does not count"
                metrics = (await get(api, "/system/operator-metrics"))["operator_metrics"]
                assert metrics["compatibility"]["gaps"] == [], "that one may take them, and nobody else knows"


async def test_every_node_shows_the_last_proof(postgresql_url: str) -> None:
    async with three(postgresql_url) as everybody:
        await work(everybody)
        owner = next(api for api in everybody if api.server.engine.owned[0])
        await owner.server.node.certificate.follow()
        for api in everybody:
            if api is not owner:
                await api.server.node.certificate.follow()
        proofs = [(await get(api, "/overview"))["certificate"] for api in everybody]
        assert {proof["open_runs"] for proof in proofs} == {12}
        assert len({proof["proven_at"] for proof in proofs}) == 1


async def test_a_pass_repairs_what_other_nodes_own(postgresql_url: str) -> None:
    async with three(postgresql_url) as everybody:
        asked = everybody[0]
        await work(everybody)
        for api in everybody:
            await api.server.engine.commits.drain()
        place = address(postgresql_url)
        connection = await asyncpg.connect(place.dsn)
        await connection.execute(f"delete from {place.schema}.task")
        await connection.close()
        for api in everybody:
            api.server.engine.matching.lanes.forget(lambda key: True)
        done = (await asked.control("POST", "/system/repair/pass", {"sweep_owner": "me"})).json()
        assert done["selected_missing_task_candidates"] == done["repaired_missing_tasks"] == 12
        assert 0 < done["candidates_of_other_nodes"] < 12
        assert done["swept_shards"] > 200, "of all nodes; some may just be moving"
        for api in everybody:
            assert (await get(api, "/cluster/info"))["topology"]["matching_role"]["wake_marker"]["owner"] == "me"
        async with asyncio.timeout(PATIENCE):
            due = 0
            while due != 12:  # clocks differ by a moment: what is due where it was repaired may not be due here yet
                due = (await get(everybody[1], "/system/operator-metrics"))["operator_metrics"]["tasks"]["ready_due"]


async def test_commits_that_the_database_has_lost_are_a_finding(postgresql_url: str) -> None:
    place = address(postgresql_url)
    async with serving(store=postgresql_url, still=False) as api:
        await api.start("o-1")
        assert "database_forgot_commits" not in await codes(api)
        connection = await asyncpg.connect(place.dsn)
        await connection.execute(f"update {place.schema}.writer set committed = 0, batch = 0")
        await connection.close()
        given = {"workflow_type": "order", "workflow_id": "o-2", "task_queue": "q"}
        await api.control("POST", "/workflows", given)  # it commits, or finds out that it cannot
        await until(lambda: api.server.engine.down is None and api.server.engine.owns_all)
        assert "database_forgot_commits" in await codes(api)
        answer = await api.control("POST", "/workflows", given)
        assert answer.status_code in (200, 201), answer.text


async def codes(api: Api) -> list[str]:
    return [one["name"] for one in (await get(api, "/system/health"))["causes"]]


async def test_runs_of_shards_that_were_handed_over_get_their_views_at_once(postgresql_url: str) -> None:
    """The node that had them did not store their views any more. The other one looks for them, though it was idle."""
    async with (
        serving(store=postgresql_url, still=False, node_name="one") as one,
        serving(store=postgresql_url, still=False, node_name="two") as two,
    ):
        await until(lambda: sum(two.server.engine.owned) == 128)
        await until(lambda: two.server.node.views._next_pass > two.server.engine.world.now())
        one.server.node.projector.stop()
        await work([one, two])
        assert 0 < (await get(two, "/overview"))["stock"]["without_view"] <= 8
        await two.control("POST", "/nodes/one/drain", {})
        await until(lambda: two.server.engine.owns_all)
        async with asyncio.timeout(PATIENCE):
            while (await get(two, "/overview"))["stock"]["without_view"]:
                await asyncio.sleep(0.1)
