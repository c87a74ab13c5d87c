"""Activities as jobs of their own: `start_activity` and `execute_activity`, embedded and over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backstay import (
    AsyncClient,
    AsyncWorker,
    Backstay,
    WorkflowAlreadyStarted,
    WorkflowFailed,
    WorkflowStopped,
    activity,
    activity_info,
)

from ..server.kit import TOKEN, serving
from .kit import memory, names


class Declined(Exception):
    pass


@activity(type="pay", retries=2, backoff=0)
def pay(order: str, cents: int = 1) -> dict[str, Any]:
    if activity_info().number < 2:
        raise Declined("try again")
    return {"order": order, "cents": cents}


@activity(type="decline", fatal=[Declined], retries=5)
async def decline() -> None:
    raise Declined("no")


@activity(type="elsewhere", queue="nobody serves this")
def elsewhere() -> None: ...


@activity(type="local", local=True)
def local() -> None: ...


async def test_a_job_is_tried_again_and_its_result_is_typed() -> None:
    async with memory(pay) as app:
        assert await app.execute_activity(pay, "job-1", "o-1", cents=3) == {"order": "o-1", "cents": 3}
        handle = await app.start_activity(pay, None, "o-2")
        assert await handle.result() == {"order": "o-2", "cents": 1}
        assert names(await handle.history())[-2:] == ["ActivityCompleted", "WorkflowCompleted"]
        assert await app.handle(pay, "job-1").result() == {"order": "o-1", "cents": 3}
        assert {row.workflow_id for row in await app.list(type="backstay.activity")} == {"job-1", handle.id}
        with pytest.raises(WorkflowAlreadyStarted):
            await app.start_activity(pay, "job-1", "o-1")


async def test_the_failure_of_a_standalone_activity_is_the_cause_of_the_error() -> None:
    async with memory(decline, Declined) as app:
        with pytest.raises(WorkflowFailed) as failed:
            await app.execute_activity(decline, "job-1")
        assert isinstance(failed.value.__cause__, Declined)


async def test_a_job_can_be_given_up() -> None:
    async with memory(elsewhere) as app:
        handle = await app.options(business_key="b").start_activity(elsewhere, "job-1")
        found = await handle.describe()
        assert (found.wait_kind, found.run and found.run.business_key) == ("activity", "b")
        assert [task.task.routing.queue for task in found.tasks] == ["nobody serves this"]
        await handle.cancel("not needed")
        with pytest.raises(WorkflowStopped):
            await handle.result()


async def test_start_activity_refuses_a_local_activity_a_plain_function_and_an_id_that_is_no_text() -> None:
    async with memory(local) as app:
        with pytest.raises(TypeError, match="local"):
            await app.start_activity(local, None)
        with pytest.raises(TypeError, match="is not an activity"):
            await app.start_activity(len, None)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="the first argument is the workflow id"):
            await app.start_activity(pay, 42)  # type: ignore[arg-type]


def test_a_job_survives_the_process(tmp_path: Path) -> None:
    with Backstay(tmp_path / "jobs.db", client_only=True) as app:
        app.start_activity(pay, "job-1", "o-1")
    with Backstay(tmp_path / "jobs.db", [pay]) as app:
        assert app.handle(pay, "job-1").result() == {"order": "o-1", "cents": 1}
        assert app.execute_activity(pay, "job-2", "o-2") == {"order": "o-2", "cents": 1}


async def test_the_same_over_http() -> None:
    async with (
        serving(still=False) as api,
        AsyncClient(str(api.http.base_url), token=TOKEN) as client,
        AsyncWorker(str(api.http.base_url), [pay, decline, Declined], token=TOKEN),
    ):
        assert await client.execute_activity(pay, "job-1", "o-1", 3) == {"order": "o-1", "cents": 3}
        handle = await client.start_activity(decline, "job-2")
        with pytest.raises(WorkflowFailed, match="no"):
            await handle.result()
