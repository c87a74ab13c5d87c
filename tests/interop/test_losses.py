"""The published worker behind a network that loses replies: the lease is on disk, the task never arrived.

Nobody waits for the lease to run out, which would take five minutes: the same call again gets the same task. Replies that carry
the next task are a matter of our own workers, and told in `tests/remote/test_losses.py`.
"""

from __future__ import annotations

import asyncio

import pytest
from durable_workflow import Client

from ..remote.lossy import Lossy
from ..sdk.kit import eventually
from . import flows
from .conftest import TOKEN, Running
from .test_published_sdk import Desk, working

TASKS = (b'"task_type":"workflow"', b'"task_type":"activity"')
ENDS = (b'"created_task_ids"', b'"recorded":true,"reason"', b'"run_status":"completed","reason"')
"""Answers to: a workflow task that scheduled an activity, that activity, the workflow task that ended the run."""


async def parked(desk: Desk, count: int) -> None:
    """Until so many polls wait for something."""
    while True:
        found = await desk.client._request("GET", "/system/operator-metrics")
        if found["operator_metrics"]["workers"]["parked_polls"] >= count:
            return


@pytest.mark.one_server("both polls have to wait at the server that is asked how many wait")
async def test_a_task_born_leased_to_a_poll_whose_connection_drops(server: Running) -> None:
    async with Lossy(server.url) as network, working(network) as desk:
        for lost, sign in enumerate(TASKS, 1):
            await parked(desk, 2)
            network.lose(sign)
            assert await desk.run("greeter", "ada") == {"greeting": "hello, ada", "length": 10}
            assert network.lost == lost


async def test_a_poll_that_takes_a_waiting_task_and_drops(server: Running) -> None:
    async with Client(server.url, token=TOKEN) as client, Lossy(server.url) as network:
        for number in range(3):
            await Desk(client).start("greeter", "ada", id=f"waiting-{number}")
        for sign in TASKS:
            network.lose(sign)
        async with working(network) as desk:
            results = await asyncio.gather(*(desk.result(f"waiting-{number}") for number in range(3)))
        assert [result["greeting"] for result in results] == ["hello, ada"] * 3
        assert network.lost == len(TASKS)


async def test_a_completion_whose_answer_is_lost_is_recorded_once(server: Running) -> None:
    flows.tries.clear()
    async with Lossy(server.url) as network, working(network) as desk:
        for number, sign in enumerate(ENDS, 1):
            network.lose(sign)
            started = await desk.start("persistent", f"lossy-{number}", 0)
            assert await desk.result(started.workflow_id) == 1
            await eventually(lambda n=number: network.lost == n, "the reply was lost")
            types = [event["event_type"] for event in await desk.history(started.workflow_id)]
            assert types.count("ActivityCompleted") == types.count("WorkflowCompleted") == 1
    assert set(flows.tries.values()) == {1}, "no activity ran twice"
