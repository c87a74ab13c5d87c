"""The published client and worker, unmodified, against our server."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest
from durable_workflow import Client, Worker
from durable_workflow.errors import (
    QueryFailed,
    ServerError,
    SignalFailed,
    UpdateFailed,
    UpdateRejected,
    WorkflowAlreadyStarted,
    WorkflowCancelled,
    WorkflowFailed,
    WorkflowNotFound,
    WorkflowTerminated,
)
from durable_workflow.history_bundle_verify import verify_bundle
from durable_workflow.worker_session import WorkerSessionOptions

from . import flows
from .conftest import TOKEN, Running

numbers = itertools.count()


class Place(Protocol):
    """Where a server is reached."""

    url: str


class Desk:
    """A client and a worker of the published package."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def start(self, type: str, *arguments: Any, **options: Any) -> Any:
        id = options.pop("id", None) or f"{type}-{next(numbers)}"
        return await self.client.start_workflow(
            workflow_type=type, workflow_id=id, task_queue="q", input=list(arguments), **options
        )

    async def result(self, workflow_id: str) -> Any:
        return await self.client.get_workflow_handle(workflow_id).result(poll_interval=0.02, timeout=50)

    async def run(self, type: str, *arguments: Any) -> Any:
        return await self.result((await self.start(type, *arguments)).workflow_id)

    async def asked(self, workflow_id: str, query: str, wanted: Any) -> Any:
        """A query's answer, once it is what it should become."""
        while (found := (await self.client.query_workflow(workflow_id, query))["result"]) != wanted:
            pass
        return found

    async def history(self, workflow_id: str) -> list[dict[str, Any]]:
        described = await self.client.describe_workflow(workflow_id)
        page = await self.client.get_history(workflow_id, described.run_id or "")
        return page["events"]


@asynccontextmanager
async def working(server: Place, workflows: Any = flows.WORKFLOWS, **options: Any) -> AsyncIterator[Desk]:
    async with Client(server.url, token=TOKEN) as client:
        worker = Worker(client, task_queue="q", workflows=workflows, activities=flows.ACTIVITIES, **options)
        running = asyncio.create_task(worker.run())
        try:
            while not (await client.list_workers(status="active")).workers:
                assert not running.done(), running.result()
            yield Desk(client)
        finally:
            await worker.stop()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@pytest.mark.contract("TOPO-02")
async def test_workflows_of_the_published_sdk_run_on_the_server(server: Running) -> None:
    async with working(server) as desk:
        assert await desk.run("greeter", "ada") == {"greeting": "hello, ada", "length": 10}
        await desk.run("sleeper")
        assert await desk.run("persistent", "one", 2) == 3
        assert await desk.run("catcher") == "caught: cannot be repaired"
        assert await desk.run("collector") == [6, 2, True, 42, 48]
        assert await desk.run("counter", 1) == 3
        assert await desk.run("parallel", 5) == [1, 2, 3, 4, 5]
        with pytest.raises(WorkflowFailed, match="fell over"):
            await desk.run("faller")


async def test_the_published_client_reads_the_description_of_a_run(server: Running) -> None:
    async with working(server) as desk:
        handle = await desk.start("collector", id="c-1", memo={"who": "ada"}, search_attributes={"size": 3})
        await desk.result("c-1")
        described = await desk.client.describe_workflow("c-1")
        assert (described.status, described.run_id or "") == ("completed", handle.run_id)
        assert described.output == [6, 2, True, 42, 48]
        assert described.memo == {"who": "ada", "note": "seen", "n": 1}
        assert described.search_attributes == {"size": 3, "customer": "ada"}
        listed = await desk.client.list_workflows(workflow_type="collector", status="completed")
        assert [found.workflow_id for found in listed.executions] == ["c-1"]
        runs = await desk.client.list_workflow_runs("c-1")
        assert runs.run_count == 1
        with pytest.raises(WorkflowAlreadyStarted):
            await desk.start("collector", id="c-1")
        with pytest.raises(WorkflowNotFound):
            await desk.client.describe_workflow("nobody")


@pytest.mark.contract("LEASE-15")
async def test_a_worker_that_leaves_in_the_middle_is_followed_by_another(server: Running) -> None:
    async with working(server) as desk:
        handle = await desk.start("sleeper")
        while "TimerScheduled" not in [event["event_type"] for event in await desk.history(handle.workflow_id)]:
            await asyncio.sleep(0)
    async with working(server) as desk:
        await desk.result(handle.workflow_id)
        types = [event["event_type"] for event in await desk.history(handle.workflow_id)]
        assert types == ["StartAccepted", "WorkflowStarted", "TimerScheduled", "TimerFired", "WorkflowCompleted"]


@pytest.mark.contract("MATCH-01", "MATCH-05")
async def test_a_server_killed_in_the_middle_loses_nothing_and_its_worker_goes_on(server: Running) -> None:
    async with working(server) as desk:
        handles = [await desk.start("sleeper") for _ in range(5)]
        server.kill()
        server.restart()
        for handle in handles:
            await desk.result(handle.workflow_id)
        again = await desk.run("greeter", "again")
        assert again["greeting"] == "hello, again"


@pytest.mark.contract("QRY-01", "QRY-02", "QRY-08", "QRY-09", "CMD-12", "CMD-20")
@pytest.mark.needs_links("a question is asked at the node that was reached, and its answer goes back there")
async def test_talking_to_a_run_with_signals_queries_and_updates(server: Running) -> None:
    async with working(server) as desk:
        client = desk.client
        await desk.start("basket", id="b-1")
        await client.signal_workflow("b-1", "add", args=["book"])
        await client.signal_workflow("b-1", "add", args=["pen"])
        assert await desk.asked("b-1", "items", ["book", "pen"]) == ["book", "pen"]
        before = len(await desk.history("b-1"))
        assert (await client.query_workflow("b-1", "items"))["result"] == ["book", "pen"]
        assert len(await desk.history("b-1")) == before, "a query writes nothing"
        with pytest.raises(QueryFailed):
            await client.query_workflow("b-1", "unknown")
        with pytest.raises(QueryFailed, match="cannot say"):
            await client.query_workflow("b-1", "broken")
        removed = await client.update_workflow("b-1", "remove", args=["pen"], wait_for="completed")
        assert removed["result"] == 1
        with pytest.raises(UpdateFailed, match=r"list\.remove"):
            await client.update_workflow("b-1", "remove", args=["nothing"], wait_for="completed")
        renamed = await client.update_workflow("b-1", "rename", args=["book", "novel"], wait_for="completed")
        assert renamed["result"] == ["novel"]
        with pytest.raises(UpdateRejected, match="there is no book"):
            await client.update_workflow("b-1", "rename", args=["book", "x"], wait_for="completed")
        with pytest.raises(SignalFailed):
            await client.signal_workflow("b-1", "unknown", args=[])
        await client.signal_workflow("b-1", "pay")
        assert await desk.result("b-1") == [True, 1, "novel"]
        assert (await client.query_workflow("b-1", "items"))["result"] == ["novel"], "of a closed run, too"
        with pytest.raises(SignalFailed):
            await client.signal_workflow("b-1", "pay")
        assert await desk.run("impatient") is False


async def test_cancel_terminate_and_what_the_client_sees(server: Running) -> None:
    async with working(server) as desk:
        await desk.start("basket", id="c")
        await desk.start("basket", id="t")
        await desk.client.cancel_workflow("c", reason="enough")
        await desk.client.terminate_workflow("t", reason="now")
        with pytest.raises(WorkflowCancelled):
            await desk.result("c")
        with pytest.raises(WorkflowTerminated):
            await desk.result("t")
        assert (await desk.client.describe_workflow("c")).status == "cancelled"
        assert (await desk.client.describe_workflow("t")).status == "terminated"
        assert (await desk.client.repair_workflow((await desk.start("basket")).workflow_id)).outcome
        assert (await desk.client.archive_workflow("c")).outcome == "archived"


async def test_a_query_that_no_worker_can_answer(server: Running) -> None:
    async with Client(server.url, token=TOKEN) as client:
        await client.start_workflow(workflow_type="basket", workflow_id="alone", task_queue="q", input=[])
        with pytest.raises(QueryFailed, match="no worker"):
            await client.query_workflow("alone", "items")


@pytest.mark.contract("CMD-07")
async def test_children_and_groups(server: Running) -> None:
    async with working(server) as desk:
        assert await desk.run("parent", "ada") == ["hello, ada", True, "hello, ada-1", 3, "hello, nested"]
        assert await desk.run("half-broken") == "caught: cannot be repaired"
        assert await desk.run("parallel", 60) == list(range(1, 61))


async def test_exported_histories_satisfy_the_published_verifier(server: Running) -> None:
    async with working(server) as desk:
        await desk.start("basket", id="exported")
        await desk.client.signal_workflow("exported", "add", args=["b\u00fcch"])
        await desk.client.signal_workflow("exported", "pay")
        await desk.result("exported")
        failed = await desk.start("catcher")
        await desk.result(failed.workflow_id)
        parent = await desk.start("parent", "ada")
        await desk.result(parent.workflow_id)
        for id in ("exported", failed.workflow_id, parent.workflow_id):
            described = await desk.client.describe_workflow(id)
            report = verify_bundle(await desk.client.export_history(id, described.run_id or ""))
            assert (report["status"], report["findings"]) == ("ok", []), report


@pytest.mark.needs_links("which member is the first depends on how soon a task is taken")
async def test_selections_are_decided_once_by_the_first_member_that_ends(server: Running) -> None:
    async with working(server) as desk:
        chosen = await desk.start("chooser")
        assert await desk.result(chosen.workflow_id) == [
            "fast", "activity", 3, "never", 0, "cannot be repaired", "child", "hello, ada",
        ]  # fmt: skip
        resolved = [e for e in await desk.history(chosen.workflow_id) if e["event_type"] == "SelectionResolved"]
        assert [event["payload"]["member_key"] for event in resolved] == ["fast", 0, "child"]
        heard = await desk.start("listener", 60)
        await desk.client.signal_workflow(heard.workflow_id, "say", args=["hello"])
        assert await desk.result(heard.workflow_id) == ["heard", True, "hello", "more", False]
        assert await desk.run("listener", 0) == ["silence", None, "more", False]


@pytest.mark.contract("PROTO-09")
async def test_the_steps_of_a_session_run_on_one_worker(server: Running) -> None:
    async with working(server, worker_id="one") as desk, working(server, worker_id="two"):
        for id in ("disk-1", "disk-2"):
            bound = await desk.start("bound", id)
            assert await desk.result(bound.workflow_id) == [1, 2, 3, 4]
            begun = [
                e["payload"] for e in await desk.history(bound.workflow_id) if e["event_type"] == "ActivityStarted"
            ]
            # The last attempt of each step: one of a worker that lost the session to the other was never sent to it.
            ran = {started["sequence"]: started["task"]["lease_owner"] for started in begun}
            assert (len(ran), len(set(ran.values()))) == (4, 1)
        options = WorkerSessionOptions(session_id="by-hand", lease_seconds=5)
        made = await desk.client.create_worker_session("one", options)
        assert (made["outcome"], made["session"]["lease_owner"]) == ("created", "one")
        renewed = await desk.client.renew_worker_session("one", "by-hand", 60)
        assert renewed["session"]["status"] == "active"
        with pytest.raises(ServerError, match="held by worker 'one'"):
            await desk.client.create_worker_session("two", options)
        closed = await desk.client.close_worker_session("one", "by-hand")
        assert closed["session"]["status"] == "closed"


async def test_when_the_worker_of_a_session_stops_another_goes_on_in_a_new_one(server: Running) -> None:
    async with working(server, worker_id="one") as desk:
        assert await desk.run("bound", "first") == [1, 2, 3, 4]
    async with working(server, worker_id="two") as desk:
        shown = await desk.client._request("GET", "/worker-sessions/first")
        assert (shown["status"], shown["close_reason"]) == ("closed", "worker_shutdown"), "a planned stop closes it"
        assert await desk.run("bound", "second") == [1, 2, 3, 4]


@pytest.mark.contract("TOPO-01")
async def test_a_worker_that_is_started_again_goes_on_in_the_middle(server: Running) -> None:
    async with working(server) as desk:
        await desk.client.create_search_attribute("stage", "keyword")
        ids = [(await desk.start("patient", number)).workflow_id for number in range(3)]
        while True:
            found = await desk.client.list_workflows(query="stage = 'waiting'")
            if len(found.executions) == 3:
                break
    async with working(server, worker_id="another") as desk:
        for id in ids:
            await desk.client.signal_workflow(id, "go")
        assert [await desk.result(id) for id in ids] == [[1, 1, 11], [2, 1, 12], [3, 1, 13]]
        for id in ids:
            events = await desk.history(id)
            assert [e["event_type"] for e in events].count("ActivityScheduled") == 2, "one ordinary, one local"
            described = await desk.client.describe_workflow(id)
            report = verify_bundle(await desk.client.export_history(id, described.run_id or ""))
            assert (report["status"], report["findings"]) == ("ok", []), report
            assert ((described.memo or {})["first"], (described.search_attributes or {})["stage"]) == (
                ids.index(id) + 1,
                "waiting",
            )


@pytest.mark.contract("QRY-14")
@pytest.mark.needs_links("a question is asked at the node that was reached, and its answer goes back there")
async def test_a_query_is_asked_by_its_public_name(server: Running) -> None:
    async with working(server) as desk:
        basket = await desk.start("basket")
        assert (await desk.client.query_workflow(basket.workflow_id, "items"))["result"] == []
        with pytest.raises(QueryFailed, match="look"):
            await desk.client.query_workflow(basket.workflow_id, "look")


@pytest.mark.needs_links("a poll that does not wait finds what the node that it reached has")
@pytest.mark.parametrize("kind", ["workflow", "activity"])
async def test_a_poll_whose_connection_drops_after_its_task_was_leased_costs_no_work(
    server: Running, kind: str
) -> None:
    """The lease is on disk, the answer is lost: the same poll again, or another one, gets the task at once."""
    async with Client(server.url, token=TOKEN) as client:
        registration = {"worker_id": "cut", "task_queue": "q", "supported_activity_types": ["greet"]}
        await client._request("POST", "/worker/register", worker=True, json=registration)
        started = await client.start_workflow(
            workflow_type="greeter", workflow_id="cut-1", task_queue="q", input=["ada"]
        )
        if kind == "activity":
            poll = {"worker_id": "cut", "task_queue": "q"}
            task = (await client._request("POST", "/worker/workflow-tasks/poll", worker=True, json=poll))["task"]
            done = {
                "lease_owner": "cut",
                "workflow_task_attempt": task["workflow_task_attempt"],
                "commands": [{"type": "schedule_activity", "activity_type": "greet", "arguments": task["arguments"]}],
            }
            complete = f"/worker/workflow-tasks/{task['task_id']}/complete"
            await client._request("POST", complete, worker=True, json=done)
        body = {"worker_id": "cut", "task_queue": "q", "timeout_seconds": 30, "poll_request_id": "poll-1"}
        await _hang_up_after_asking(server.url, f"/api/worker/{kind}-tasks/poll", body)
        async with asyncio.timeout(5):
            while True:
                again = await client._request("POST", f"/worker/{kind}-tasks/poll", worker=True, json=body)
                if again["task"] is not None:
                    break
        assert again["task"]["workflow_id"] == started.workflow_id


async def _hang_up_after_asking(url: str, path: str, body: dict[str, Any]) -> None:
    """Send a request, and close the connection without reading a byte of the answer."""
    host, _, port = url.removeprefix("http://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"X-Durable-Workflow-Protocol-Version: 1.20\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    writer.write(head.encode() + content)
    await writer.drain()
    writer.transport.abort()


@pytest.mark.contract("QRY-17")
@pytest.mark.needs_links("a question is asked at the node that was reached, and its answer goes back there")
async def test_a_query_of_a_run_whose_code_has_changed_is_refused_and_changes_nothing(server: Running) -> None:
    async with working(server) as desk:
        moody = await desk.start("moody")
        assert await desk.asked(moody.workflow_id, "mood", "calm") == "calm"
        before = await desk.history(moody.workflow_id)
    async with working(server, [flows.MoodyAgain], worker_id="changed") as desk:
        with pytest.raises(QueryFailed):
            await desk.client.query_workflow(moody.workflow_id, "mood")
        assert await desk.history(moody.workflow_id) == before
        assert (await desk.client.describe_workflow(moody.workflow_id)).status == "waiting"


async def test_a_patch_reaches_what_has_not_passed_it_and_can_be_settled(server: Running) -> None:
    async def waits(desk: Desk, id: str) -> None:
        while "ConditionWaitOpened" not in [event["event_type"] for event in await desk.history(id)]:
            pass

    async with working(server, [flows.Patchwork]) as desk:
        await desk.start("patchwork", id="old")
        await waits(desk, "old")
    async with working(server, [flows.Patched], worker_id="patched") as desk:
        await desk.start("patchwork", id="new")
        await desk.start("patchwork", id="later")
        await waits(desk, "new")
        await waits(desk, "later")
        for id in ("old", "new"):
            await desk.client.signal_workflow(id, "go")
        assert await desk.result("old") == [2, 22], "behind the first patch, before the second"
        assert await desk.result("new") == [101, 121]
    async with working(server, [flows.Settled], worker_id="settled") as desk:
        await desk.client.signal_workflow("later", "go")
        assert await desk.result("later") == [101, 121]


async def test_an_exported_file_satisfies_the_published_command(server: Running, tmp_path: Path) -> None:
    async with working(server) as desk:
        collected = await desk.start("collector")
        await desk.result(collected.workflow_id)
        described = await desk.client.describe_workflow(collected.workflow_id)
        bundle = await desk.client.export_history(collected.workflow_id, described.run_id or "")
    file = tmp_path / "bundle.json"
    verify = Path(sys.executable).parent / "durable-workflow-history-bundle-verify"
    for change, code in ((lambda: None, 0), (lambda: bundle["history_events"].pop(), 1)):
        change()
        file.write_text(json.dumps(bundle))
        done = await asyncio.to_thread(subprocess.run, [str(verify), str(file)], capture_output=True, text=True)
        assert (done.returncode == 0) == (code == 0), done.stdout + done.stderr


@pytest.mark.contract("SIG-01", "SIG-04")
async def test_a_run_that_was_started_before_its_worker_is_defined_by_it_and_malformed_signals_stop_nothing(
    server: Running,
) -> None:
    async with Client(server.url, token=TOKEN) as early:
        await early.start_workflow(workflow_type="basket", workflow_id="b-9", task_queue="q", input=[])
        await early.signal_workflow("b-9", "nonsense", args=[1])
        await early.signal_workflow("b-9", "add", args=[])
        await early.signal_workflow("b-9", "add", args=["book"])
    async with working(server) as desk:
        assert await desk.asked("b-9", "items", ["book"]) == ["book"]
        with pytest.raises(SignalFailed):
            await desk.client.signal_workflow("b-9", "unknown", args=[])
        await desk.client.signal_workflow("b-9", "pay")
        assert (await desk.result("b-9"))[0] is True
        told = [event["event_type"] for event in await desk.history("b-9")]
        assert told.count("SignalRejected") == 2
        assert told.count("WorkflowDefinitionAdopted") == 1
