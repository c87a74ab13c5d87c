"""Requests that reach a node which does not own their instance: it hands them to the owner, or does them itself."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import httpx
import pytest
from msgspec import structs

from backstay.engine.cluster.peers import Peers
from backstay.kernel.features.child.messages import SignalFromParent, StartFromParent
from backstay.kernel.features.start import Parent
from backstay.kernel.features.stream import StreamItem
from backstay.kernel.message import Refused
from backstay.kernel.send import Send
from backstay.kernel.values import PARTITIONS, Routing
from backstay.link import nodes as link
from backstay.protocol import commands as tell
from backstay.protocol import requests as ask
from backstay.protocol import streams
from backstay.protocol.native import node_proofs, nodes
from backstay.protocol.native.node_proofs import NodeProof
from backstay.protocol.native.nodes import Owner
from backstay.server.cluster.links import advertised
from backstay.server.http.protocol import HttpProtocol, KnownHead

from ..remote.lossy import Lossy
from .kit import Api, blob, serving, until

COMPLETE = {"type": "complete_workflow", "result": blob(7)}
NOWHERE = "http://127.0.0.1:9"  # nothing listens at the port of `discard`


class Two(NamedTuple):
    """Two servers of one database. `there` owns every instance, and `front` none."""

    front: Api
    there: Api

    @property
    def peers(self) -> Peers:
        return peers_of(self.front)

    @property
    def counts(self) -> Counter[str]:
        return self.peers.counts


def peers_of(api: Api) -> Peers:
    peers = api.server.node.peers
    assert peers is not None
    return peers


def url_of(api: Api) -> str:
    return str(api.http.base_url).rstrip("/")


def owned_by(api: Api, *, term: int = 1, address: str | None = None) -> Owner:
    return Owner(api.server.node_id() or 1, address or url_of(api), term)


@asynccontextmanager
async def two(store: str, **settings: Any) -> AsyncIterator[Two]:
    async with (
        serving(store=store, still=False, **settings) as there,
        serving(store=store, still=False, weight=0, **settings) as front,
    ):
        owner = owned_by(there)
        peers_of(front).owner_of = lambda partition: owner
        peers_of(there).owner_of = lambda partition: None
        await there.register()
        yield Two(front, there)


async def proof_of(both: Two, path: str, body: bytes) -> dict[str, str]:
    """The headers of a request from `front` to `there`."""
    to = both.there.server.node_id()
    assert to is not None
    proof = await both.front.server.node_proofs.make(to, "POST", path, body)
    return {node_proofs.HEADER: proof, nodes.TO_HEADER: str(to), nodes.HEADER: str(nodes.SPEAKS[1])}


async def as_node(both: Two, verb: str, body: Any, **headers: str) -> httpx.Response:
    """The answer of `there` to a request that `front` has made and proven."""
    path, sent = nodes.PATH + verb, nodes.encode(body)
    await until(lambda: both.there.server.node_proofs.knows(both.front.server.node_id() or 0))
    proven = await proof_of(both, path, sent) | {name.replace("_", "-"): value for name, value in headers.items()}
    return await both.there.http.post(path, content=sent, headers=proven)


def keep_links(api: Api) -> None:
    """Also those to nodes that are not in the database: looks give them up, and what they have counted."""
    api.server.node.shards.on_look = lambda living: None


async def run_one(api: Api) -> None:
    task = await api.poll()
    assert task is not None
    assert (await api.complete(task, COMPLETE)).status_code == 200


def started(workflow_id: str = "o-1") -> ask.StartWorkflow:
    return ask.StartWorkflow(workflow_type="order", workflow_id=workflow_id, routing=Routing(queue="q"))


async def test_a_request_is_carried_out_by_the_owner_of_its_instance(postgresql_url: str) -> None:
    async with two(postgresql_url) as both:
        front, there = both.front, both.there
        await front.start("o-1")
        assert there.server.engine.cache.named("default", "o-1") is not None
        assert front.server.engine.cache.named("default", "o-1") is None
        signalled = await front.control("POST", "/workflows/o-1/signal/paid", {"input": [1]})
        assert signalled.status_code == 202, signalled.text
        again = await front.control("POST", "/workflows", {"workflow_type": "order", "workflow_id": "o-1"})
        assert (again.status_code, again.json()["reason"]) == (409, "instance_already_started")
        missing = await front.control("POST", "/workflows/nobody/cancel", {})
        assert (missing.status_code, missing.json()["reason"]) == (404, "instance_not_found")
        assert both.counts == {"forwarded": 4}
        assert (await front.types("o-1")).count("SignalReceived") == 1
        assert both.counts == {"forwarded": 4}, "reads go to the database"


async def test_who_asked_is_recorded_as_the_node_that_was_asked_knows_it(postgresql_url: str) -> None:
    async with two(postgresql_url) as both:
        await both.front.start("o-1")
        await both.front.control("POST", "/workflows/o-1/cancel", {"reason": "over"})
        store = both.there.server.engine.store
        key = await store.find("default", "o-1")
        assert key is not None
        start, cancel = await store.commands(key)
        assert None not in (start.request_id, cancel.request_id), "they have one before they leave"
        assert cancel.source == "http"
        assert cancel.context["request"]["route"] == "/api/workflows/o-1/cancel", "not that of the owner"
        assert cancel.context["request"]["token_id"] == "setting:token"


async def test_who_waits_at_another_node_is_told_by_the_owner(postgresql_url: str) -> None:
    async with two(postgresql_url) as both:
        call, there = both.front.server.api.call, both.there.server
        ran = asyncio.ensure_future(call(ask.RunWorkflow(start=started())))
        await until(lambda: there.engine.cache.named("default", "o-1"))
        await until(lambda: list(there.engine.waiters))
        waited = asyncio.ensure_future(call(ask.AwaitResult(workflow_id="o-1")))
        run_id = (await both.front.describe())["run_id"]
        page = f"/workflows/o-1/runs/{run_id}/history?wait_new_event=1&from=3"
        events = asyncio.ensure_future(both.front.control("GET", page))
        await until(lambda: len(list(there.engine.waiters)) == 3)
        await run_one(both.there)
        assert (await ran).status == (await waited).status == "completed"
        assert (await events).json()["events"][0]["event_type"] == "WorkflowCompleted"
        assert both.counts == {"forwarded": 3}


async def test_an_update_and_a_reader_wait_at_the_owner(postgresql_url: str) -> None:
    async with two(postgresql_url) as both:
        call, there = both.front.server.api.call, both.there
        await both.front.start("o-1")
        read = asyncio.ensure_future(call(streams.ReadStream(workflow_id="o-1", stream_name="out", wait_seconds=30)))
        await until(lambda: list(there.server.engine.waiters))
        item = StreamItem(payload=b"x", idempotency_key="a")
        appended = await call(streams.AppendStream(workflow_id="o-1", stream_name="out", items=[item]))
        assert (appended.offsets, [one.payload for one in (await read).items]) == ([0], [b"x"])
        update = asyncio.ensure_future(call(tell.UpdateWorkflow(workflow_id="o-1", update_name="add")))
        task = await there.poll(timeout_seconds=30)
        if task["workflow_update_id"] is None:
            task = await there.poll(timeout_seconds=30)
        await there.complete(task, {"type": "complete_update", "update_id": task["workflow_update_id"]})
        assert (await update).update_status == "completed"
        assert both.counts == {"forwarded": 4}


async def test_a_worker_reports_to_any_node(postgresql_url: str) -> None:
    async with two(postgresql_url) as both:
        front, there = both.front, both.there
        await there.start("o-1")
        task = await there.poll()
        leased = {"lease_owner": task["lease_owner"], "workflow_task_attempt": task["workflow_task_attempt"]}
        path = f"workflow-tasks/{task['task_id']}"
        assert (await front.worker(f"{path}/heartbeat", leased)).json()["renewed"] is True
        assert (await front.worker(f"{path}/history", leased)).json()["history_events"]
        schedule = {"type": "schedule_activity", "activity_type": "charge", "arguments": blob([1])}
        assert (await front.complete(task, schedule)).status_code == 200
        attempt = await there.poll("activity")
        assert (await front.activity("heartbeat", attempt)).json()["can_continue"] is True
        assert (await front.activity("complete", attempt, result=blob(1))).json()["outcome"] == "completed"
        assert (await front.activity("complete", attempt, result=blob(1))).json()["reason"] == "already_recorded"
        task = await there.poll()
        failed = await front.fail(task, message="it does not fit")
        assert failed.json()["outcome"] == "failed"
        assert both.counts == {"forwarded": 7}


async def test_a_task_is_claimed_through_any_node(postgresql_url: str) -> None:
    async with two(postgresql_url) as both:
        front, there = both.front, both.there
        await there.start("o-1")
        await until(lambda: front.server.workers.get("default", "worker-1"))
        (task,) = (await front.server.api.call(ask.DescribeWorkflow(workflow_id="o-1"))).tasks
        claimed = await front.worker(f"workflow-tasks/{task.task.id}/claim", {"worker_id": "worker-1"})
        assert claimed.status_code == 200, claimed.text
        assert both.counts == {"forwarded": 1}
        assert (await there.complete(claimed.json()["task"], COMPLETE)).status_code == 200


async def test_a_schedule_without_an_id_is_made_where_it_belongs(postgresql_url: str) -> None:
    async with two(postgresql_url) as both:
        body = {"spec": {"cron_expressions": ["0 0 1 1 *"]}, "action": {"workflow_type": "order", "task_queue": "q"}}
        made = await both.front.control("POST", "/schedules", body)
        assert made.status_code == 201, made.text
        id = made.json()["schedule_id"]
        assert (await both.front.control("POST", f"/schedules/{id}/pause", {})).status_code == 200
        assert both.counts == {"forwarded": 2}


async def test_two_nodes_that_share_the_instances_serve_each_others(postgresql_url: str) -> None:
    async with serving(store=postgresql_url, still=False) as one, serving(store=postgresql_url, still=False) as other:
        await until(lambda: all(0 < sum(api.server.engine.owned) < 256 for api in (one, other)))
        await until(lambda: sum(one.server.engine.owned) + sum(other.server.engine.owned) == 256)
        await until(lambda: {owner.address for owner in owners(one)} == {url_of(other)})
        await until(lambda: {owner.address for owner in owners(other)} == {url_of(one)})
        waiting = [
            asyncio.ensure_future(api.server.api.call(ask.RunWorkflow(start=started(f"o-{api is one}-{n}"))))
            for n in range(20)
            for api in (one, other)
        ]
        for api in (one, other):
            await api.register()

        async def work(api: Api) -> None:
            while not all(wait.done() for wait in waiting):
                task = await api.poll(timeout_seconds=1)
                if task is not None:
                    await api.complete(task, COMPLETE)

        await asyncio.gather(work(one), work(other))
        assert {(await wait).status for wait in waiting} == {"completed"}
        counts = peers_of(one).counts + peers_of(other).counts
        assert counts["forwarded"] >= 10
        assert counts["here"] == counts["misdirected"] == counts["failed"] == 0


def owners(api: Api) -> set[Owner]:
    """The other nodes that a node would call."""
    found = [peers_of(api).owner_of(partition) for partition in range(PARTITIONS)]
    return {owner._replace(term=0) for owner in found if owner is not None}


# -- losses


async def test_a_request_whose_reply_is_lost_is_carried_out_once(postgresql_url: str) -> None:
    async with two(postgresql_url) as both, Lossy(url_of(both.there)) as net:
        owner = owned_by(both.there, address=net.url)
        both.peers.owner_of = lambda partition: owner
        net.lose(b"started_new")
        first = await both.front.start("o-1")
        assert (net.lost, both.counts) == (1, {"failed": 1, "forwarded": 1})
        net.lose(b"accepted")
        await both.front.control("POST", "/workflows/o-1/signal/paid", {"input": [1]})
        net.lose(b"accepted")
        with_start = {"workflow_type": "order", "task_queue": "q", "signal_input": [2]}
        again = await both.front.control("POST", "/workflows/o-1/signal-with-start/paid", with_start)
        assert (net.lost, again.status_code) == (3, 202), again.text
        assert (await both.front.describe())["run_id"] == first["run_id"]
        assert (await both.front.types("o-1")).count("SignalReceived") == 2


async def test_a_request_whose_owner_falls_silent_is_answered_by_its_record(postgresql_url: str) -> None:
    async with two(postgresql_url) as both, Lossy(url_of(both.there)) as net:
        owner = owned_by(both.there, address=net.url)
        both.peers.owner_of = lambda partition: owner
        await both.front.start("o-1")
        net.silence(b"paid")
        told = asyncio.ensure_future(both.front.control("POST", "/workflows/o-1/signal/paid", {"input": [1]}))
        await until(lambda: net.lost)
        net.hole = True
        both.peers.owner_of = lambda partition: None  # it is dead, and nobody has its instances yet
        both.front.server.links.keep(())
        assert (await told).status_code == 202
        assert both.counts["here"] == 1
        assert (await both.front.types("o-1")).count("SignalReceived") == 1


async def test_items_without_keys_are_not_sent_twice(postgresql_url: str) -> None:
    async with two(postgresql_url) as both, Lossy(url_of(both.there)) as net:
        owner = owned_by(both.there, address=net.url)
        both.peers.owner_of = lambda partition: owner
        await both.front.start("o-1")
        net.lose(b"offsets")
        run_id = (await both.front.describe())["run_id"]
        path = f"/workflows/o-1/runs/{run_id}/streams/out/items"
        appended = await both.front.control("POST", path, {"items": [{"payload": blob(1)}]})
        assert (appended.status_code, appended.json()["reason"]) == (503, "storage_unavailable")
        assert len((await both.there.control("GET", path)).json()["items"]) == 1


async def test_a_wait_outlives_the_link_that_it_began_on(postgresql_url: str) -> None:
    async with two(postgresql_url) as both, Lossy(url_of(both.there)) as net:
        owner = owned_by(both.there, address=net.url)
        both.peers.owner_of = lambda partition: owner
        await both.front.start("o-1")
        waited = asyncio.ensure_future(both.front.server.api.call(ask.AwaitResult(workflow_id="o-1")))
        await until(lambda: list(both.there.server.engine.waiters))
        net.cut()
        await until(lambda: both.counts["failed"] == 1)
        await run_one(both.there)
        assert (await waited).status == "completed"


async def test_a_node_that_stops_ends_the_waits_that_it_handed_on(postgresql_url: str) -> None:
    async with two(postgresql_url) as both:
        await both.front.start("o-1")
        run_id = (await both.front.describe())["run_id"]
        path = f"/workflows/o-1/runs/{run_id}"
        reading = asyncio.ensure_future(both.front.control("GET", f"{path}/streams/out/items?wait_seconds=30"))
        events = asyncio.ensure_future(both.front.control("GET", f"{path}/history?wait_new_event=1&from=3"))
        await until(lambda: len(list(both.there.server.engine.waiters)) >= 2)
        both.front.server.drain()
        for ended in (await reading, await events):
            assert ended.status_code in (200, 503)


# -- a node that is not the owner


async def test_a_node_that_does_not_own_an_instance_names_the_owner(postgresql_url: str) -> None:
    async with two(postgresql_url) as both, serving(store=postgresql_url, still=False, weight=0) as former:
        here, told = owned_by(former), owned_by(both.there, term=2)
        both.peers.owner_of = lambda partition: here
        peers_of(former).owner_of = lambda partition: told
        await both.front.start("o-1")
        assert both.counts == {"misdirected": 1, "forwarded": 1}
        await both.front.control("POST", "/workflows/o-1/signal/paid", {})
        assert both.counts == {"misdirected": 1, "forwarded": 2}, "what it was told has a higher term"
        newer = owned_by(former, term=3)
        both.peers.owner_of = lambda partition: newer
        peers_of(former).owner_of = lambda partition: None
        await both.front.control("POST", "/workflows/o-1/signal/paid", {})
        assert both.counts == {"misdirected": 1, "forwarded": 3}
        assert (await both.front.types("o-1")).count("SignalReceived") == 2


async def test_nodes_that_name_each_other_do_not_keep_a_request(postgresql_url: str) -> None:
    async with two(postgresql_url) as both, serving(store=postgresql_url, still=False, weight=0) as other:
        first, second, third = owned_by(other), owned_by(both.there, term=2), owned_by(other, term=3)
        both.peers.owner_of = lambda partition: first
        peers_of(other).owner_of = lambda partition: second
        peers_of(both.there).owner_of = lambda partition: third
        await both.front.start("o-1")
        assert both.counts == {"misdirected": 2, "here": 1}
        peers_of(other).owner_of = lambda partition: first  # it does not know yet that it is the owner
        both.counts.clear()
        await both.front.start("o-2")
        assert both.counts == {"misdirected": 1, "here": 1}


async def test_another_node_at_the_address_of_one_is_not_taken_for_it(
    postgresql_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with two(postgresql_url) as both:
        both.there.server.node_id = lambda: 17
        keep_links(both.front)
        both.peers.owner_of = lambda partition: Owner(16, url_of(both.there), 1)
        for id in ("o-1", "o-2", "o-3"):
            await both.front.start(id)
        assert both.counts == {"failed": 3, "here": 3}
        assert "this is node 17, not 16" in caplog.text


# -- links that lead nowhere


async def test_an_address_out_of_reach_is_warned_of_and_not_used(
    postgresql_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with two(postgresql_url) as both:
        keep_links(both.front)
        both.peers.owner_of = lambda partition: Owner(9, NOWHERE, 1)
        with caplog.at_level(logging.WARNING, "backstay.nodes"):
            for id in ("o-1", "o-2", "o-3", "o-4"):
                await both.front.start(id)
        assert both.counts == {"failed": 4, "here": 4}
        warnings = [record.message for record in caplog.records if record.name == "backstay.nodes"]
        assert len(warnings) == 1
        assert f"node 9 at {NOWHERE} cannot be used: nothing listens there" in warnings[0]


async def test_a_link_that_rested_is_used_again(postgresql_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "REST", 0.0)
    async with two(postgresql_url) as both, Lossy(url_of(both.there)) as net:
        owner = owned_by(both.there, address=net.url)
        both.peers.owner_of = lambda partition: owner
        for _ in range(3):
            net.lose(b"HTTP/1.1")
        await both.front.start("o-1")
        await both.front.start("o-2")
        assert both.counts == {"failed": 4, "here": 2}, "the second try for o-2 failed because the link rests"
        number = 0
        while not both.counts["forwarded"]:
            number += 1
            await both.front.start(f"again-{number}")


async def test_requests_that_a_node_does_not_take_do_not_stop_the_others(
    postgresql_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They are too large for it, or of a later release."""
    store = postgresql_url
    async with (
        serving(store=store, still=False, max_body_bytes=5000) as there,
        serving(store=store, still=False, weight=0) as front,
    ):
        owner = owned_by(there)
        peers = peers_of(front)
        peers.owner_of = lambda partition: owner
        peers_of(there).owner_of = lambda partition: None
        for number in range(2 * link.FAILURES):
            await front.start(f"large-{number}", input=["x" * 5000])
        assert peers.counts == {"failed": 6, "here": 6}
        verb = nodes.OF[ask.AwaitResult]
        nodes.OF[ask.AwaitResult] = verb._replace(name="unheard-of")
        try:
            for _ in range(2 * link.FAILURES):
                with pytest.raises(nodes.LinkFailed):
                    await front.server.links.call(owner, ask.AwaitResult(workflow_id="o-1"))
        finally:
            nodes.OF[ask.AwaitResult] = verb
        await front.start("o-1")
        assert peers.counts["forwarded"] == 1, "the link is not at rest"
        assert "cannot be used" not in caplog.text


async def test_a_fetch_does_not_wait(postgresql_url: str) -> None:
    async with two(postgresql_url) as both:
        for seconds in (30, 1e308):
            body = {"worker_id": "w", "queue": "q", "wait_seconds": seconds}
            fetched = await as_node(both, "fetch-workflow-task", body)
            assert (fetched.status_code, fetched.json()) == (200, None)


# -- the secret


async def test_who_does_not_know_the_secret_is_no_node(postgresql_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with two(postgresql_url) as both:
        server = both.there.server
        secret = await server.node_secrets.ours()
        assert secret == await both.front.server.node_secrets.ours(), "one database, one secret"
        body = {"workflow_id": "o-1", "signal_name": "paid"}
        right = await as_node(both, "signal-workflow", body)
        assert (right.status_code, right.json()["reason"]) == (409, "workflow_not_found")
        for path in (f"{nodes.PATH}signal-workflow", nodes.MANY):
            assert (await both.there.http.post(path, json=body)).status_code == 401
        for wrong in (secret, "", "1.2.3.4.5", "1.2.3.4." + "a" * 64 + "." + "b" * 64, "x" * 9000):
            refused = await as_node(both, "signal-workflow", body, X_Backstay_Proof=wrong)
            assert (refused.status_code, refused.json()["reason"]) == (401, "not_a_node"), wrong
        refused = await as_node(both, "signal-workflow", body, X_Backstay_Proof="", Authorization="Bearer secret")
        assert (refused.status_code, refused.json()["reason"]) == (401, "not_a_node")
        old = await as_node(both, "signal-workflow", body, X_Backstay_Link="1")
        assert (old.status_code, old.json()["reason"]) == (400, "unsupported_link_version")
        assert secret not in caplog.text


async def test_a_proof_is_for_one_request_to_one_node(postgresql_url: str) -> None:
    """Method, path, body, receiver, time and caller are all in it: nothing can be changed, and nothing is done twice."""
    async with two(postgresql_url) as both:
        await both.front.start("o-1")
        there, front = both.there.server, both.front.server
        secret, to, me = await there.node_secrets.ours(), str(there.node_id()), front.node_id() or 0
        path, other = f"{nodes.PATH}signal-workflow", f"{nodes.PATH}terminate-workflow"
        body = nodes.encode({"workflow_id": "o-1", "signal_name": "paid", "request_id": "r-1"})
        now, digest = there.engine.world.now(), node_proofs.digest_of(body)

        async def sent(
            proof: NodeProof,
            *,
            to: str = to,
            by: str = secret,
            method: str = "POST",
            at: str = path,
            content: bytes = body,
        ) -> tuple[int, str | None]:
            text = node_proofs.written(proof, by, to, method, path)
            headers = {node_proofs.HEADER: text, nodes.TO_HEADER: to, nodes.HEADER: "2"}
            answer = await both.there.http.post(at, content=content, headers=headers)
            return answer.status_code, answer.json().get("reason")

        right = NodeProof(me, 2**61, 1, now, digest)
        assert await sent(right, method="GET") == (401, "not_a_node")
        assert await sent(right, at=other) == (401, "not_a_node")
        assert await sent(right, at=f"{path}?x=1") == (401, "not_a_node")
        assert await sent(right, by="another secret") == (401, "not_a_node")
        assert await sent(right._replace(at=now - node_proofs.WINDOW - 10**6)) == (401, "proof_expired")
        assert await sent(right._replace(at=now + node_proofs.WINDOW + 10**7)) == (401, "proof_expired")
        assert await sent(right, to="7") == (421, "other_node"), "a proof is for one node"
        assert await sent(right._replace(caller=7)) == (401, "unknown_node"), "and of one that lives"
        assert (await both.front.types("o-1")).count("SignalReceived") == 0
        assert await sent(right) == (200, None)
        assert await sent(right) == (401, "proof_used")
        assert await sent(right._replace(number=2), content=body + b" ") == (401, "not_a_node")
        assert await sent(right._replace(number=2)) == (401, "proof_used"), "it was used up"
        assert await sent(right._replace(series=2**61 - 1, number=9)) == (401, "proof_used"), "of an earlier series"
        assert (await both.front.types("o-1")).count("SignalReceived") == 1


async def test_headers_that_were_seen_between_nodes_open_nothing(
    postgresql_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A stranger who sees everything that nodes send sends it again, as it was and with other bodies."""
    async with two(postgresql_url) as both, Seen(url_of(both.there)) as net:
        owner = owned_by(both.there, address=net.url)
        both.peers.owner_of = lambda partition: owner
        await both.front.start("o-1")
        for number in range(3):
            await both.front.control("POST", "/workflows/o-1/signal/paid", {"input": [number]})
        assert both.counts == {"forwarded": 4}
        assert len(net.requests) == 4
        for request in net.requests:
            head, _, body = request.partition(b"\r\n\r\n")
            for path in (b"signal-workflow", b"terminate-workflow"):
                changed = re.sub(rb"/call/[a-z-]+", b"/call/" + path, head) + b"\r\n\r\n" + body
                assert b" 401 " in await net.said_to(changed)
            assert b" 401 " in await net.said_to(request)
        assert (await both.front.describe())["status"] != "terminated"
        assert (await both.front.types("o-1")).count("SignalReceived") == 3
        assert "was received before" in caplog.text
        await both.front.control("POST", "/workflows/o-1/signal/paid", {"input": [4]})
        assert (await both.front.types("o-1")).count("SignalReceived") == 4, "the nodes go on"


async def test_the_head_of_a_call_between_nodes_is_parsed_once(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its proof is another one each time, and is checked each time."""
    known: list[bytes | None] = []
    receive = HttpProtocol._receive_known

    def receive_known(self: HttpProtocol, head: KnownHead, body: bytes, proof: bytes | None) -> None:
        known.append(proof)
        receive(self, head, body, proof)

    monkeypatch.setattr(HttpProtocol, "_receive_known", receive_known)
    async with two(postgresql_url) as both:
        await both.front.start("o-1")
        for number in range(4):
            await both.front.control("POST", "/workflows/o-1/signal/paid", {"input": [number]})
        assert (len(known), len(set(known)), None in known) == (3, 3, False)
        assert both.counts == {"forwarded": 5}


class Seen:
    """A wire between two nodes, which keeps the requests that go through it."""

    def __init__(self, url: str) -> None:
        self._there = httpx.URL(url)
        self.requests: list[bytes] = []

    async def __aenter__(self) -> Seen:
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            reads, writes = await asyncio.open_connection(self._there.host, self._there.port)
            while data := await reader.read(1 << 20):
                if b"/call/" in data:
                    self.requests.append(data)
                writes.write(data)
                writer.write(await reads.read(1 << 20))
            writes.close()
        writer.close()

    async def said_to(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(self._there.host, self._there.port)
        writer.write(request)
        said = await reader.read(1 << 20)
        writer.close()
        return said


async def test_a_node_that_has_just_begun_is_looked_for(postgresql_url: str) -> None:
    async with two(postgresql_url) as both:
        shards = both.there.server.node.shards
        me = both.front.server.node_id() or 0
        await until(lambda: me in shards.nodes)
        shards.stop()  # it does not look by itself
        del shards.nodes[me]
        await both.front.start("o-1")
        assert both.counts == {"forwarded": 1}
        assert me in shards.nodes


async def test_a_node_of_an_earlier_release_is_told_so_and_named(
    postgresql_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with two(postgresql_url) as both:
        headers = {
            nodes.OLD_SECRET_HEADER: "a" * 64,
            nodes.HEADER: "1",
            nodes.TO_HEADER: str(both.there.server.node_id()),
        }
        for _ in range(2):
            refused = await both.there.http.post(f"{nodes.PATH}signal-workflow", json={}, headers=headers)
            assert (refused.status_code, refused.json()["reason"]) == (401, "not_a_node")
            assert "same release" in refused.json()["message"]
        assert len([one for one in caplog.messages if "the node at 127.0.0.1 runs an earlier release" in one]) == 1
        front = both.front.server
        front.node.facts = structs.replace(front.node.facts, speaks=(1, 1), version="0.9", name="old-box:1")
        await until(lambda: "old-box:1" in caplog.text)
        assert "run the same release" in caplog.text.lower()


async def test_a_node_with_a_wrong_secret_does_without_links(postgresql_url: str) -> None:
    async with two(postgresql_url) as both:
        secrets: Any = both.front.server.node_secrets
        secrets._known = ["wrong"]
        await both.front.start("o-1")
        assert both.counts == {"failed": 1, "here": 1}
        await both.front.start("o-2")
        assert both.counts == {"failed": 1, "here": 1, "forwarded": 1}, "it has looked at the database"


# -- sends


async def test_a_send_is_delivered_to_the_owner_of_its_receiver_once(postgresql_url: str) -> None:
    async with two(postgresql_url) as both:
        ids = both.front.server.engine.world.ids
        run_id = ids.run_id(5)
        parent = Parent(
            namespace="default",
            workflow_instance_id="p-1",
            workflow_run_id=run_id,
            sequence=1,
            child_call_id="c",
        )
        start = StartFromParent(workflow_type="order", run_id=ids.run_id(7), parent=parent, routing=Routing(queue="q"))
        signal = SignalFromParent(signal_name="paid", request_id="r-1", parent_run_id=run_id, child_call_id="c")
        for message in (start, start, signal, signal):
            send = Send(ids.key(5), ids.key(5), "default", "o-1", message)
            assert await both.peers.deliver(send) is True
        types = await both.front.types("o-1")
        assert (types.count("WorkflowStarted"), types.count("SignalReceived")) == (1, 1)
        send = Send(ids.key(5), ids.key(5), "default", "nobody", signal)
        with pytest.raises(Refused) as refused:
            await both.peers.deliver(send)
        assert refused.value.reason == "workflow_not_found"
        both.peers.owner_of = lambda partition: None
        assert await both.peers.deliver(send) is False
        both.peers.owner_of = lambda partition: Owner(9, NOWHERE, 1)
        assert await both.peers.deliver(send) is False


# -- the address


@pytest.mark.parametrize(
    ("advertise", "listening", "address"),
    [
        (None, ["http://127.0.0.1:8080"], "http://127.0.0.1:8080"),
        (None, ["http://0.0.0.0:8080", "http://[::]:8080"], None),
        ("http://10.0.0.7:80", ["http://0.0.0.0:8080"], "http://10.0.0.7:80"),
        (None, ["https://[2001:db8::1]:8080"], "https://[2001:db8::1]:8080"),
    ],
)
def test_the_address_of_a_node_is_the_one_it_listens_on_unless_another_is_set(
    advertise: str | None, listening: list[str], address: str | None
) -> None:
    assert advertised(advertise, listening) == address
