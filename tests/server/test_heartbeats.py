"""When workers were last heard of is on disk: a restart makes nobody younger, and the fleet says who is where."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from backstay import AsyncWorker, workflow
from backstay.kernel.values import SECOND
from backstay.store.errors import Unavailable

from ..remote.kit import TOKEN as HOUSE_TOKEN
from ..remote.kit import House
from ..sdk.kit import eventually
from .kit import Api, serving
from .test_process import Process


async def shown(api: Api, worker_id: str = "w") -> dict[str, Any]:
    (found,) = [w for w in (await api.control("GET", "/workers")).json()["workers"] if w["worker_id"] == worker_id]
    return found


def rows(api: Api) -> int:
    found = api.server.store.kept("heartbeat").__await__()
    try:
        next(found)
    except StopIteration as done:
        return len(done.value)
    raise AssertionError("a database in memory answers at once")


@pytest.mark.contract("FLEET-01")
@pytest.mark.parametrize("store", ["sqlite:here.db", "postgresql"])
def test_a_worker_that_was_stale_stays_stale_after_the_server_is_killed(
    tmp_path: Path, store: str, request: pytest.FixtureRequest
) -> None:
    if store == "postgresql":
        store = request.getfixturevalue("postgresql_url")
    (tmp_path / "dw.toml").write_text("heartbeat_interval_seconds = 1\nworker_stale_after_seconds = 2\n")
    process = Process(tmp_path, "--token", "t", "--store", store, "--config", "dw.toml")

    def worker() -> dict[str, Any]:
        return process.call("GET", "/workers", "t").json()["workers"][0]

    try:
        register = {"worker_id": "w", "task_queue": "q"}
        assert process.call("POST", "/worker/register", "t", register).status_code == 201
        heard = worker()["last_heartbeat_at"]
        assert worker()["status"] == "active"
        while worker()["status"] == "active":
            pass
        process.popen.kill()
        process.popen.communicate()
        process = Process(tmp_path, "--token", "t", "--store", store, "--config", "dw.toml")
        found = worker()
        assert found["status"] == "stale"
        assert found["registered_at"] <= found["last_heartbeat_at"] <= heard
        assert process.call("POST", "/worker/heartbeat", "t", {"worker_id": "w"}).status_code == 200
        assert worker()["status"] == "active"
    finally:
        process.stop()


@pytest.mark.contract("FLEET-01")
async def test_heartbeats_are_written_together_and_not_for_each_request(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'h.db'}"
    async with serving() as api:
        for id in ("a", "b", "c"):
            await api.register(id)
        written: list[int] = []
        keep_all = api.server.store.keep_all

        def counted(entries: Any, done: Any) -> None:
            written.append(len(entries))
            keep_all(entries, done)

        api.server.store.keep_all = counted  # type: ignore[method-assign]
        for _ in range(5):
            for id in ("a", "b", "c"):
                await api.worker("heartbeat", {"worker_id": id})
        await api.world.advance(9)
        assert written == []
        await api.world.advance(2)
        assert written == [3]
        await api.world.advance(600)
        assert written == [3], "silence is not written"
        assert rows(api) == 3
        assert (await api.worker("registrations/a", method="DELETE")).status_code == 200
        assert rows(api) == 2
    async with serving(store=store) as api:
        await api.register("w")
        await api.world.advance(60)
        await api.worker("heartbeat", {"worker_id": "w"})
        heard = (await shown(api))["last_heartbeat_at"]
        now = api.world.now()
    async with serving(store=store) as api:
        assert (await shown(api))["last_heartbeat_at"] == heard, (
            "a server that stops writes what it has not written yet"
        )
        api.world._still = now + 179 * SECOND
        assert (await shown(api))["status"] == "active"
        api.world._still = now + 181 * SECOND
        assert (await shown(api))["status"] == "stale"


async def test_a_heartbeat_that_could_not_be_written_is_written_with_the_next() -> None:
    async with serving() as api:
        await api.register("w")
        keep_all = api.server.store.keep_all
        api.server.store.keep_all = lambda entries, done: done(Unavailable("the disk is full"))  # type: ignore[method-assign]
        await api.world.advance(11)
        assert rows(api) == 0
        api.server.store.keep_all = keep_all  # type: ignore[method-assign]
        await api.register("v")
        await api.world.advance(11)
        assert rows(api) == 2


async def test_after_a_long_outage_a_worker_that_was_not_heard_is_stale_and_still_asked(tmp_path: Path) -> None:
    """The view says what is known; a start and a query still count on a worker that had no chance to be heard."""
    store = f"sqlite:{tmp_path / 'h.db'}"
    contract = {"order": {"queries": ["state"], "query_contracts": [{"name": "state", "parameters": []}]}}
    async with serving(store=store) as api:
        await api.register("w", workflow_command_contracts=contract, capabilities=["query_tasks"])
    async with serving(store=store) as api:
        api.server.workers._began = api.world._still = api.world._still + 3600 * SECOND
        assert (await shown(api))["status"] == "stale"
        await api.start()
        assert (await api.describe())["can_query"] is True
        await api.world.advance(181)
        assert (await api.describe())["can_query"] is False


@pytest.mark.contract("FLEET-03")
async def test_the_fleet_says_host_process_and_connection_of_a_registration() -> None:
    async with serving() as api:
        await api.register("w", host="box-7", process_id=4711, connection="redis")
        await api.start()
        (entry,) = (await api.describe())["compatibility_fleet"]
        assert (entry["host"], entry["process_id"], entry["connection"]) == ("box-7", 4711, "redis")
        assert entry["source"] == "database"
        refused = await api.register("v", host="x" * 256)
        assert refused.status_code == 422


@pytest.mark.contract("FLEET-04")
async def test_with_a_compatibility_namespace_only_heartbeats_of_it_count(tmp_path: Path) -> None:
    """Two apps share one database, each with a server of its own."""
    store = f"sqlite:{tmp_path / 'h.db'}"
    async with serving(store=store, compatibility_namespace="shop") as api:
        await api.register("shop-1")
        await api.start("o-1")
        found = await api.describe("o-1")
        assert found["compatibility_namespace"] == "shop"
        assert [(e["worker_id"], e["namespace"]) for e in found["compatibility_fleet"]] == [("shop-1", "shop")]
        workers = (await api.control("GET", "/system/operator-metrics")).json()["operator_metrics"]["workers"]
        assert (workers["compatibility_namespace"], workers["active_workers"]) == ("shop", 1)
    async with serving(store=store, compatibility_namespace="bank") as api:
        found = await api.describe("o-1")
        assert (found["compatibility_namespace"], found["compatibility_fleet"]) == ("bank", [])
        assert "'bank'" in found["compatibility_fleet_reason"]
        await api.register("bank-1")
        await api.register("guest", compatibility_namespace="shop")
        found = await api.describe("o-1")
        assert [e["worker_id"] for e in found["compatibility_fleet"]] == ["bank-1"]
        workers = (await api.control("GET", "/system/operator-metrics")).json()["operator_metrics"]["workers"]
        assert (workers["compatibility_namespace"], workers["active_workers"]) == ("bank", 1)
    async with serving(store=store) as api:
        found = await api.describe("o-1")
        assert {e["worker_id"] for e in found["compatibility_fleet"]} == {"shop-1", "bank-1", "guest"}


@workflow
def nothing() -> None:
    return None


@pytest.mark.contract("FLEET-03")
async def test_our_own_worker_says_its_host_and_its_process() -> None:
    async with House() as house:
        async with AsyncWorker(
            house.url, [nothing], token=HOUSE_TOKEN, drain=0.3, compatibility_namespace="shop"
        ) as worker:
            found = house.server.workers.get("default", worker.worker_id)
            assert found is not None
            assert (found.host, found.process_id) == (socket.gethostname(), os.getpid())
            assert found.compatibility_namespace == "shop"
        await eventually(lambda: house.server.workers.get("default", worker.worker_id) is None)
