"""Which node a request goes to, and what becomes of it when that node is not there or is not the owner."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

from backstay.engine.cluster import peers as module
from backstay.engine.cluster.peers import Peers, partition_of_request, repeatable, repeated
from backstay.engine.core.world import AsyncioWorld
from backstay.kernel.features.stream import StreamItem
from backstay.kernel.values import partition_in, partition_of
from backstay.protocol import commands as tell
from backstay.protocol import requests as ask
from backstay.protocol import schedules, streams
from backstay.protocol.native import nodes
from backstay.protocol.native.nodes import LinkFailed, Misdirected, Owner
from backstay.store.errors import Unavailable

from ..sdk.kit import memory

B = Owner(2, "http://b", 5)
C = Owner(3, "http://c", 6)
SIGNAL = tell.SignalWorkflow(workflow_id="o-1", signal_name="paid")
ANYWHERE = {
    *(ask.DescribeWorkflow, ask.ListWorkflows, ask.GetHistory, ask.ExplainWorkflow, ask.ExportHistory, tell.PlanFork),
    *(schedules.DescribeSchedule, schedules.ListSchedules, schedules.GetScheduleHistory),
    *(ask.GetClaimStatus, ask.GetActivityStatus),
}
"""Requests that every node answers from the database."""

AT_HOME = {ask.PollWorkflowTask, ask.PollActivityTask, ask.ExecuteWorkflowTask, ask.ReportTask}
"""Requests of workers that are about the tasks of the node that they reached."""


TO_ONE_NODE = {
    *(nodes.AskWorker, nodes.TellWaiting, nodes.FetchWorkflowTask, nodes.FetchActivityTask),
    *(nodes.ReadRegistry, nodes.ReadRates, nodes.SweepShards, nodes.SpareWorker),
}
"""Not for the owner of an instance, but for the node that they are sent to."""


class Net:
    """Links that answer as a test says, one answer a call."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[int, Any]] = []

    async def call(self, owner: Owner, request: Any) -> Any:
        self.asked.append((owner.id, request))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def keep(self, living: object) -> None:
        """No link is ever given up."""


class At:
    """A node with such links. `call` returns what other nodes have answered, or the request that is carried out here."""

    def __init__(self, *answers: Any, owner: Owner | None = B, owns: Callable[[], bool] = lambda: True) -> None:
        self.net = Net(*answers)
        self.world = AsyncioWorld(asyncio.get_running_loop())
        self.peers = Peers(self.world, self.net, lambda partition: owner, owns_any=owns, origin={"at": "home"})

    async def call(self, request: Any) -> Any:
        async def here(request: Any) -> Any:
            return "here", request

        return await self.peers.call(request, here)


async def test_every_request_is_about_a_partition_or_answered_here() -> None:
    async with memory() as app:
        api = app._engine_room.api
        assert api is not None
        known: set[type[Any]] = set(api._table)
    routed = set(module._PARTITION)
    assert routed == set(nodes.OF) - TO_ONE_NODE, "what is handed on can cross the wire"
    lists = {kind for kind in known if kind.__module__.endswith("run_lists")}
    assert known - routed - lists - TO_ONE_NODE == ANYWHERE | AT_HOME


def test_the_partition_of_a_request_is_that_of_its_instance() -> None:
    run_id = "01J0000000000000000000000Z"
    named = partition_of("default", "o-1")
    start = ask.StartWorkflow(workflow_type="order", workflow_id="o-1")
    for request in (
        start,
        ask.RunWorkflow(start=start),
        tell.SignalWithStart(start=start, signal_name="paid"),
        ask.AwaitResult(workflow_id="o-1"),
        SIGNAL,
        streams.ReadStream(workflow_id="o-1", stream_name="out"),
    ):
        assert partition_of_request(request) == named
    assert partition_of_request(ask.StartWorkflow(workflow_type="order")) is None
    paused = schedules.PauseSchedule(schedule_id="nightly")
    assert partition_of_request(paused) == partition_of("default/schedules", "nightly")
    beat = ask.HeartbeatTask(task_id=f"{run_id}-w3", lease_owner="w", workflow_task_attempt=1)
    done = ask.CompleteActivityTask(activity_attempt_id=f"{run_id}-3-1", lease_owner=None)
    assert partition_of_request(beat) == partition_of_request(done) == partition_in(run_id)
    assert partition_of_request(tell.GetUpdate(workflow_id="o-1", update_id="u")) is None, "it waits for nothing"


def test_a_change_has_a_request_id_before_it_leaves() -> None:
    ids = iter("abcdef")
    sent = repeatable(SIGNAL, lambda: next(ids), {"at": "home"})
    assert (sent.request_id, sent.fresh, sent.context) == ("a", True, {"at": "home"})
    assert repeatable(sent, lambda: next(ids), {}) == sent
    assert repeated(sent).fresh is False
    both = tell.SignalWithStart(start=ask.StartWorkflow(workflow_type="order", workflow_id="o-1"), signal_name="paid")
    sent = repeatable(both, lambda: next(ids), {})
    assert {sent.request_id, sent.start.request_id} == {"b", "c"}
    assert (repeated(sent).fresh, repeated(sent).start.fresh) == (False, False)
    assert repeatable(schedules.DeleteSchedule(schedule_id="s"), lambda: next(ids), {}).request_id == "d"
    wait = ask.AwaitResult(workflow_id="o-1")
    assert repeated(repeatable(wait, lambda: next(ids), {})) == wait


async def test_a_lost_reply_is_asked_for_again_and_then_the_request_is_carried_out_here() -> None:
    at = At(LinkFailed("cut", sent=True), "done")
    assert await at.call(SIGNAL) == "done"
    first, second = (request for _, request in at.net.asked)
    assert (first.fresh, second.fresh) == (True, False)
    assert first.request_id == second.request_id

    at = At(LinkFailed("cut", sent=True), LinkFailed("cut", sent=True))
    where, request = await at.call(SIGNAL)
    assert (where, request.fresh, len(at.net.asked)) == ("here", False, 2)
    assert request.request_id == at.net.asked[0][1].request_id

    at = At(LinkFailed("nothing listens there", sent=False))
    where, request = await at.call(SIGNAL)
    assert (where, request.fresh, len(at.net.asked)) == ("here", True, 1)


async def test_items_of_a_stream_without_keys_are_sent_once() -> None:
    append = streams.AppendStream(workflow_id="o-1", stream_name="out", items=[StreamItem(payload=b"x")])
    with pytest.raises(Unavailable):
        await At(LinkFailed("cut", sent=True)).call(append)
    assert (await At(LinkFailed("cut", sent=False)).call(append))[0] == "here"


async def test_only_a_higher_term_replaces_what_is_known_of_an_owner() -> None:
    at = At(Misdirected(C), "done", "again")
    assert await at.call(SIGNAL) == "done"
    assert await at.call(SIGNAL) == "again"
    assert [node for node, _ in at.net.asked] == [2, 3, 3]
    at.peers.owner_of = lambda partition: Owner(4, "http://d", 7)
    assert at.peers.owner(partition_of("default", "o-1")) == Owner(4, "http://d", 7)

    for said in (None, Owner(3, "http://c", 5), Owner(3, "http://c", 4)):
        at = At(Misdirected(said))
        assert (await at.call(SIGNAL))[0] == "here"


async def test_at_most_two_nodes_are_asked() -> None:
    at = At(Misdirected(C), Misdirected(Owner(4, "http://d", 7)), "never")
    assert (await at.call(SIGNAL))[0] == "here"
    assert [node for node, _ in at.net.asked] == [2, 3]


async def test_an_owner_without_an_address_is_not_called() -> None:
    at = At(owner=Owner(2, None, 5))
    assert (await at.call(SIGNAL)) == ("here", SIGNAL)
    at = At(Misdirected(Owner(3, None, 6)))
    assert (await at.call(SIGNAL))[0] == "here"


async def test_a_wait_goes_on_at_the_owner_until_its_time_is_over() -> None:
    not_yet = ask.Result(workflow_id="o-1", run_id="", status=None)
    ended = ask.Result(workflow_id="o-1", run_id="r", status="completed")
    start = ask.StartWorkflow(workflow_type="order", workflow_id="o-1")
    at = At(not_yet, not_yet, ended)
    assert await at.call(ask.RunWorkflow(start=start)) == ended
    assert [type(request) for _, request in at.net.asked] == [ask.RunWorkflow, ask.AwaitResult, ask.AwaitResult]

    at = At(not_yet, ended)
    assert await at.call(ask.AwaitResult(workflow_id="o-1", wait_seconds=60)) == ended
    assert 0 < at.net.asked[1][1].wait_seconds < 60
    at = At(not_yet)
    assert await at.call(ask.AwaitResult(workflow_id="o-1", wait_seconds=0)) == not_yet

    stands = tell.UpdateStatus(
        workflow_id="o-1", run_id="r", update_id="u", update_name="add", update_status="accepted", wait_timed_out=True
    )
    done = tell.UpdateStatus(workflow_id="o-1", run_id="r", update_id="u", update_name="add", update_status="completed")
    at = At(stands, done)
    update = tell.UpdateWorkflow(workflow_id="o-1", update_name="add", wait_seconds=None)
    assert (await at.call(update)).update_status == "completed"


async def test_a_wait_whose_owner_is_gone_goes_on_here() -> None:
    at = At(LinkFailed("cut", sent=True), LinkFailed("nothing listens there", sent=False))
    assert await at.call(ask.AwaitResult(workflow_id="o-1")) == ("here", ask.AwaitResult(workflow_id="o-1"))


async def test_a_wait_that_is_given_up_before_it_has_begun_calls_no_node() -> None:
    at = At()
    waiting = asyncio.ensure_future(at.call(ask.AwaitResult(workflow_id="o-1")))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    gc.collect()  # warns of a call that nobody has awaited
    assert not at.net.asked


async def test_a_start_without_an_id_begins_at_home_or_where_its_new_id_belongs() -> None:
    start = ask.StartWorkflow(workflow_type="order")
    assert await At().call(start) == ("here", start)
    at = At("started", owns=lambda: False)
    assert await at.call(start) == "started"
    assert at.net.asked[0][1].workflow_id
