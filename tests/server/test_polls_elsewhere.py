"""Polls of published workers that reach a node which does not own the task they get."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx
import pytest
from msgspec.structs import replace

from backstay.engine.cluster import fetching, task_news
from backstay.engine.cluster.fetching import Fetching
from backstay.kernel.features.lease import Release
from backstay.kernel.values import SECOND
from backstay.server.registries.registry import tell_nobody
from backstay.server.workers import heartbeats

from ..remote.lossy import Lossy
from .kit import ME, PATIENCE, Api, blob, parked, serving, until

COMPLETE = {"type": "complete_workflow", "result": blob(7)}
CHARGE = {"type": "schedule_activity", "activity_type": "charge"}
FETCH = b"/fetch-workflow-task"


class Nodes(NamedTuple):
    """Servers of one database: `owner` owns every instance, `front` and `third` none."""

    owner: Api
    front: Api
    third: Api | None = None

    @property
    def fetching(self) -> Fetching:
        fetching = self.front.server.api.workers.fetching
        assert isinstance(fetching, Fetching)
        return fetching

    @property
    def told(self) -> int:
        news = self.owner.server.node.news
        assert news is not None
        return news.counts["told"]

    @property
    def stolen(self) -> int:
        return sum(api.server.engine.counters.stolen for api in self if api is not None)


async def known(*apis: Api) -> None:
    """Until every node knows the others."""
    for api in apis:
        await until(lambda shards=api.server.node.shards: len(shards.linked) == len(apis) - 1)


@asynccontextmanager
async def two(store: str) -> AsyncIterator[Nodes]:
    async with serving(store=store, still=False) as owner, serving(store=store, still=False, weight=0) as front:
        await known(owner, front)
        await owner.register()
        yield Nodes(owner, front)


@asynccontextmanager
async def three(store: str) -> AsyncIterator[Nodes]:
    async with two(store) as both, serving(store=store, still=False, weight=0) as third:
        await known(both.owner, both.front, third)
        yield Nodes(both.owner, both.front, third)


@asynccontextmanager
async def through_a_bad_network(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lossy]:
    """What is sent to the owner may be lost; whoever fetches from it has little patience."""
    monkeypatch.setattr(fetching, "PATIENCE", 0.2)
    monkeypatch.setattr(fetching, "LATE", 200_000)
    node = nodes.owner.server.node
    assert node.facts.address is not None
    async with Lossy(node.facts.address) as network:
        node.facts = replace(node.facts, address=network.url)
        yield network


def polling(api: Api, kind: str = "workflow", **more: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(api.poll(kind, timeout_seconds=20, **more))


# -- a task that waits at another node


async def test_a_poll_gets_a_task_of_another_node(postgresql_url: str) -> None:
    async with two(postgresql_url) as nodes:
        poll = polling(nodes.front)
        await parked(nodes.front)
        await nodes.owner.start("o-1")
        task = await poll
        assert task["workflow_id"] == "o-1"
        assert (await nodes.front.complete(task, COMPLETE)).status_code == 200
        assert (nodes.stolen, nodes.fetching.counts) == (0, {"fetched": 1})


async def test_a_poll_that_comes_later_finds_the_tasks_that_wait_elsewhere(postgresql_url: str) -> None:
    async with two(postgresql_url) as nodes:
        for number in range(5):
            await nodes.owner.start(f"o-{number}")
        await until(lambda: nodes.told > 0)
        tasks = [await nodes.front.poll(timeout_seconds=20) for _ in range(5)]
        assert sorted(task["workflow_id"] for task in tasks) == [f"o-{number}" for number in range(5)]
        assert (nodes.stolen, nodes.fetching.counts) == (0, {"fetched": 5})


async def test_many_tasks_and_many_polls_meet_once_each(postgresql_url: str) -> None:
    async with three(postgresql_url) as nodes:
        assert nodes.third is not None
        polls = [polling(api) for api in (nodes.front, nodes.third) for _ in range(5)]
        await parked(nodes.front, 5)
        await parked(nodes.third, 5)
        await asyncio.gather(*(nodes.owner.start(f"o-{number}") for number in range(10)))
        tasks = await asyncio.gather(*polls)
        assert sorted(task["workflow_id"] for task in tasks) == [f"o-{number}" for number in range(10)]
        assert nodes.stolen == 0


async def test_only_the_node_that_has_polls_is_told(postgresql_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_news, "SPREAD", 60 * SECOND)  # however long a slow machine takes to fetch a task
    async with three(postgresql_url) as nodes:
        for number in range(4):
            poll = polling(nodes.front)
            await parked(nodes.front)
            await nodes.owner.start(f"o-{number}")
            assert (await poll)["workflow_id"] == f"o-{number}"
        assert nodes.told <= 5, "at first both, then one"


async def test_a_queue_that_may_lease_no_more_is_not_told_of(postgresql_url: str) -> None:
    limits: dict[str, Any] = {"activity_task_max_active_leases_per_queue": 1}
    async with (
        serving(store=postgresql_url, still=False, **limits) as owner,
        serving(store=postgresql_url, still=False, weight=0) as front,
    ):
        await known(owner, front)
        await owner.register()
        for number in range(2):
            await owner.start(f"o-{number}")
            await owner.complete(await owner.poll(), CHARGE)
        first = await owner.poll("activity")
        nodes = Nodes(owner, front)
        poll = polling(front, "activity")
        await parked(front)
        empty = nodes.fetching.counts["empty"]
        assert (await owner.activity("complete", first, result=blob(1))).status_code == 200
        assert (await poll)["activity_attempt_id"] != first["activity_attempt_id"]
        assert nodes.fetching.counts["empty"] - empty <= 1


# -- replies that are lost, and callers that are gone


async def test_a_fetch_whose_reply_is_lost_is_found_by_its_poll(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(postgresql_url) as nodes, through_a_bad_network(nodes, monkeypatch) as network:
        for number, more in enumerate(({"poll_request_id": "p-1"}, {})):
            poll = polling(nodes.front, **more)
            await parked(nodes.front)
            network.lose(b'"o-')
            await nodes.owner.start(f"o-{number}")
            task = await poll
            assert (task["workflow_id"], task["workflow_task_attempt"]) == (f"o-{number}", 1)
            assert (nodes.fetching.counts["lost"], network.lost, nodes.stolen) == (number + 1, number + 1, 0)


async def test_a_poll_is_held_back_while_a_task_is_fetched_for_it(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(postgresql_url) as nodes, through_a_bad_network(nodes, monkeypatch) as network:
        polls = nodes.front.server.engine.matching.polls
        poll = polling(nodes.front)
        await parked(nodes.front)
        network.silence(FETCH)
        await nodes.owner.start("o-1")
        await until(lambda: network.lost)
        assert (polls.by_queue, len(polls.all())) == ({}, 1), "it is held back, and not forgotten"
        await nodes.owner.start("o-2")  # whose news find no poll
        assert (await poll)["workflow_id"] == "o-1"
        assert nodes.fetching.counts["fetched"] == 1
        assert (await nodes.front.poll(timeout_seconds=20))["workflow_id"] == "o-2"


async def test_a_task_that_is_fetched_for_a_caller_that_has_hung_up_is_released(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(postgresql_url) as nodes, through_a_bad_network(nodes, monkeypatch) as network:
        poll = polling(nodes.front)
        await parked(nodes.front)
        network.silence(FETCH)
        await nodes.owner.start("o-1")
        await until(lambda: network.lost)
        poll.cancel()
        await parked(nodes.front, 0)
        task = await nodes.owner.poll(timeout_seconds=20)
        assert (task["workflow_id"], nodes.fetching.counts["released"]) == ("o-1", 1)


async def test_a_poll_that_is_repeated_while_a_task_is_fetched_for_it_gets_that(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(postgresql_url) as nodes, through_a_bad_network(nodes, monkeypatch) as network:
        first = polling(nodes.front, poll_request_id="p")
        await parked(nodes.front)
        network.silence(FETCH)
        await nodes.owner.start("o-1")
        await until(lambda: network.lost)
        again = polling(nodes.front, poll_request_id="p")
        task = await again
        assert (task["workflow_id"], task["workflow_task_attempt"]) == ("o-1", 1)
        assert (await first or task)["task_id"] == task["task_id"], "they are one poll"


async def test_a_repeated_poll_gets_its_task_at_any_node(postgresql_url: str) -> None:
    async with two(postgresql_url) as nodes:
        await nodes.owner.start("o-1")
        task = await nodes.owner.poll(poll_request_id="p")
        again = await nodes.front.poll(poll_request_id="p")
        assert [again[name] for name in ("task_id", "workflow_task_attempt")] == [task["task_id"], 1]
        assert await nodes.front.poll(poll_request_id="q") is None
        assert (await nodes.front.complete(again, CHARGE)).status_code == 200
        charge = await nodes.owner.poll("activity", poll_request_id="a")
        other = await nodes.front.poll("activity", poll_request_id="a")
        assert other["activity_attempt_id"] == charge["activity_attempt_id"]
        assert await nodes.front.poll(poll_request_id="a") is None, "not of another kind"


async def test_a_poll_that_has_waited_in_vain_looks_for_what_its_twin_has_got(postgresql_url: str) -> None:
    """The worker's connection to one node is lost, and that node does not know it."""
    async with two(postgresql_url) as nodes:
        twin = polling(nodes.owner, poll_request_id="p")
        await parked(nodes.owner)
        poll = asyncio.create_task(nodes.front.poll(timeout_seconds=1, poll_request_id="p"))
        await parked(nodes.front)
        await nodes.owner.start("o-1")
        assert (await poll)["task_id"] == (await twin)["task_id"]


async def test_a_poll_soon_finds_what_its_twin_has_got(postgresql_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply to the first is lost, while its lease is written."""
    monkeypatch.setattr(fetching, "TWIN", 500_000)
    async with two(postgresql_url) as nodes:
        twin = polling(nodes.owner, poll_request_id="p")
        await parked(nodes.owner)
        again = polling(nodes.front, poll_request_id="p")
        await parked(nodes.front)
        await nodes.owner.start("o-1")
        assert (await asyncio.wait_for(again, 5))["task_id"] == (await twin)["task_id"]
        await nodes.owner.start("o-2")
        other = polling(nodes.front, poll_request_id="q")
        assert (await other)["workflow_id"] == "o-2"


# -- what a worker says of its task


async def test_reports_reach_the_owner_through_any_node(postgresql_url: str) -> None:
    async with three(postgresql_url) as nodes:
        front, third = nodes.front, nodes.third
        assert third is not None
        poll = polling(front)
        await parked(front)
        await third.start("o-1")
        task = await poll
        lease = {"lease_owner": ME, "workflow_task_attempt": task["workflow_task_attempt"]}
        path = f"workflow-tasks/{task['task_id']}"
        assert (await third.worker(f"{path}/heartbeat", lease)).json()["renewed"] is True
        assert (await third.worker(f"{path}/history", lease)).json()["history_events"]
        assert (await third.complete(task, CHARGE)).status_code == 200
        assert (await front.complete(task, CHARGE)).json()["reason"] == "already_recorded", "as when it is repeated"
        charge = await polling(front, "activity")
        assert (await third.activity("heartbeat", charge, details={"at": 1})).json()["can_continue"] is True
        assert (await third.activity("complete", charge, result=blob(1))).status_code == 200
        broken = await polling(front)
        assert (await third.fail(broken, message="no")).status_code == 200
        assert nodes.stolen == 0


async def test_a_task_is_claimed_by_its_id_through_any_node(postgresql_url: str) -> None:
    async with two(postgresql_url) as nodes:
        await nodes.owner.start("o-1")
        await nodes.owner.complete(await nodes.owner.poll(), CHARGE)
        (ready,) = await nodes.owner.server.store.ready(9)
        claimed = await nodes.front.worker(f"activity-tasks/{ready.id}/claim", {"worker_id": ME})
        assert claimed.status_code == 200, claimed.text
        ended = await nodes.front.activity("complete", claimed.json()["task"], result=blob(1))
        assert ended.json()["outcome"] == "completed"


# -- registries


async def test_a_worker_that_has_just_registered_is_known_to_every_node(postgresql_url: str) -> None:
    async with two(postgresql_url) as nodes:
        await nodes.owner.register("new")
        assert await nodes.front.poll(worker_id="new") is None
        await nodes.front.register("other")
        beat = await nodes.owner.worker("heartbeat", {"worker_id": "other"})
        assert beat.status_code == 200
        unknown = await nodes.owner.worker("heartbeat", {"worker_id": "nobody"})
        assert (unknown.status_code, unknown.json()["reason"]) == (404, "worker_not_registered")


async def test_registries_are_read_again_only_if_an_entry_has_changed(postgresql_url: str) -> None:
    async with two(postgresql_url) as nodes:
        registries, store = nodes.front.server.registries, nodes.front.server.store
        await registries.refresh()
        read: list[str] = []
        kept = store.kept

        def counted(kind: str) -> Any:
            read.append(kind)
            return kept(kind)

        store.kept = counted  # type: ignore[method-assign]
        await nodes.owner.start("o-1")
        await registries.refresh()
        assert read == [], "a commit is no change of a registry"
        await nodes.owner.register("new")
        await registries.refresh()
        assert "worker" in read


async def test_a_worker_that_leaves_by_any_node_releases_what_it_holds(postgresql_url: str) -> None:
    async with two(postgresql_url) as nodes:
        await nodes.owner.register("other")
        await nodes.owner.start("o-1")
        assert await nodes.owner.poll(worker_id="other") is not None
        gone = await nodes.front.worker("registrations/other", method="DELETE")
        assert gone.json()["recovered_workflow_task_count"] == 1
        assert (await nodes.owner.poll(timeout_seconds=20))["workflow_id"] == "o-1"


async def test_a_definition_that_is_registered_at_another_node_is_tried(postgresql_url: str) -> None:
    async with two(postgresql_url) as nodes:
        await nodes.owner.register("w-1", workflow_definition_fingerprints={"order": "old"})
        await nodes.owner.start("o-1")
        task = await nodes.owner.poll(worker_id="w-1")
        failed = await nodes.front.fail(task, message="history differs", type="NonDeterministicReplayError")
        assert failed.status_code == 200
        assert await nodes.owner.poll(worker_id="w-1") is None, "it is blocked"
        await nodes.front.register("w-2", workflow_definition_fingerprints={"order": "new"})
        await nodes.owner.server.registries.refresh()
        assert (await nodes.owner.poll(worker_id="w-2", timeout_seconds=20))["workflow_id"] == "o-1"


async def test_a_build_that_drains_drains_at_every_node(postgresql_url: str) -> None:
    async with two(postgresql_url) as nodes:
        await nodes.owner.register("w-1", build_id="b1")
        drained = await nodes.front.control("POST", "/task-queues/q/build-ids/drain", {"build_id": "b1"})
        assert drained.status_code == 200, drained.text
        await nodes.owner.server.registries.refresh()
        body = {"worker_id": "w-1", "task_queue": "q"}
        refused = await nodes.owner.worker("workflow-tasks/poll", body)
        assert refused.json()["reason"] == "worker_draining"


async def test_a_worker_that_polls_at_one_node_is_alive_at_all(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "EVERY", 0)
    async with two(postgresql_url) as nodes:
        await nodes.front.server.registries.refresh()
        worker = nodes.front.server.workers.get("default", ME)
        assert worker is not None
        before = nodes.front.server.workers.last_heard(worker)
        await nodes.owner.poll()
        async with asyncio.timeout(PATIENCE):  # it may be on its way to disk
            while nodes.front.server.workers.last_heard(worker) <= before:
                await nodes.front.server.registries.look()


async def test_a_worker_that_comes_back_at_another_node_is_not_forgotten(postgresql_url: str) -> None:
    async with two(postgresql_url) as nodes:
        here = nodes.owner.server.workers
        await nodes.owner.register("w")
        nodes.front.server.workers.kept.on_write = tell_nobody
        here._forgotten_after = here.stale_after_seconds = 0
        here._began = -(1 << 60)
        await here.heartbeats.flush()
        here.heartbeats._heard.clear()
        await nodes.front.register("w", build_id="b2")
        await here.forget()
        found = here.get("default", "w")
        assert found is not None
        assert found.build_id == "b2"


# -- sessions


async def create(api: Api, worker_id: str) -> httpx.Response:
    return await api.worker("sessions", {"worker_id": worker_id, "session_id": "gpu"})


async def test_a_session_that_two_nodes_create_at_once_has_one_worker(postgresql_url: str) -> None:
    async with two(postgresql_url) as nodes:
        await nodes.owner.register("other")
        for api in (nodes.owner, nodes.front):
            await api.server.registries.refresh()
        made = await asyncio.gather(create(nodes.owner, ME), create(nodes.front, "other"))
        assert sorted(answer.status_code for answer in made) == [201, 409]
        (refused,) = (answer.json() for answer in made if answer.status_code == 409)
        assert refused["reason"] == "session_owned_by_another_worker"
        winner = ME if made[0].status_code == 201 else "other"
        for api in (nodes.owner, nodes.front):
            renewed = await api.worker("sessions/gpu/heartbeat", {"worker_id": winner})
            assert renewed.json()["outcome"] == "heartbeat_recorded", renewed.text
        closed = await nodes.front.worker("sessions/gpu", {"worker_id": winner}, method="DELETE")
        assert closed.json()["outcome"] == "closed"
        again = await nodes.owner.worker("sessions/gpu", {"worker_id": winner}, method="DELETE")
        assert again.json()["outcome"] in ("closed", "already_closed")


async def test_activities_of_a_session_that_two_nodes_match_at_once_go_to_one_worker(postgresql_url: str) -> None:
    async with (
        serving(store=postgresql_url, still=False) as one,
        serving(store=postgresql_url, still=False) as other,
    ):
        await known(one, other)
        shards = [api.server.node.shards for api in (one, other)]
        while sum(other.server.engine.owned) < 100:
            for each in shards:
                await each.look()
        workers = {one: "w-1", other: "w-2"}
        for worker_id in workers.values():
            await one.register(worker_id, capabilities=["worker_sessions"])
        for api in workers:
            await api.server.registries.refresh()
        step = CHARGE | {"worker_session": {"session_id": "gpu", "max_concurrent_activities": 2}}
        for api, worker_id in workers.items():
            started = (await api.control("POST", "/workflows", {"workflow_type": "order", "task_queue": "q"})).json()
            assert (await one.server.store.find("default", started["workflow_id"])) is not None
            await api.complete(await api.poll(worker_id=worker_id), step)
        polls = [
            asyncio.create_task(api.poll("activity", worker_id=worker_id, timeout_seconds=1))
            for api, worker_id in workers.items()
        ]
        got = await asyncio.gather(*polls)
        (holder,) = {task["lease_owner"] for task in got if task is not None}
        (record,) = [await api.control("GET", "/worker-sessions/gpu") for api in (one,)]
        assert record.json()["lease_owner"] == holder
        rest = await asyncio.gather(
            *(api.poll("activity", worker_id=holder, timeout_seconds=3) for api in workers if None in got)
        )
        assert sum(task is not None for task in (*got, *rest)) == 2, "the other one goes to it, too"


async def test_what_is_remembered_of_other_nodes_is_what_counts(postgresql_url: str) -> None:
    """Not queues without polls, nor nodes that have gone."""
    async with serving(store=postgresql_url, still=False) as owner:
        news = owner.server.node.news
        assert news is not None
        async with serving(store=postgresql_url, still=False, weight=0) as front:
            await known(owner, front)
            for number in range(10):
                await owner.start(f"o-{number}", task_queue=f"queue-{number}")
            id = front.server.node_id() or 0
            await until(lambda: news.counts["told"] and not news._listeners[id].untold)
            await until(lambda: not news._listeners[id].is_called)
            assert news._listeners[id].polls == {}
        await until(lambda: not news._listeners)


async def test_who_has_lost_the_caller_of_a_poll_takes_nothing_from_the_same_poll_at_another_node(
    postgresql_url: str,
) -> None:
    """Both may find out at the same time: the caller of the first is gone, and the second has read its lease."""
    async with two(postgresql_url) as nodes:
        await nodes.owner.register()
        await nodes.owner.start("o-1")
        await nodes.owner.complete(await nodes.owner.poll(), CHARGE)
        await nodes.owner.poll("activity", poll_request_id="p-1")
        (given,) = nodes.owner.server.engine.leases
        repeated = await nodes.front.poll("activity", poll_request_id="p-1")
        release = Release(task_id=given.id, owner=ME, attempt=given.attempt, begun=False, until=given.until)
        nodes.owner.server.engine.submit(given.workflow, release)
        await nodes.owner.server.engine.commits.settle()
        assert await nodes.owner.poll("activity", timeout_seconds=1) is None
        assert (await nodes.front.activity("complete", repeated, result=blob(1))).status_code == 200
