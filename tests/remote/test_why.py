"""Why and retry-now through our own client and worker over HTTP, and the gaps of a fleet of our own workers."""

from __future__ import annotations

from typing import Any

import pytest

from backstay import RequestRefused, WorkflowNotFound, activity, workflow
from backstay.kernel.views.why import Why
from backstay.sdk.client.handle import AsyncHandle

from .kit import remote

tries: list[int] = []


@activity(retries=20, backoff="1h")
def carrier() -> str:
    tries.append(1)
    if len(tries) == 1:
        raise ConnectionError("no answer")
    return "shipped"


@activity
def customs() -> str:
    return "cleared"


@workflow
def shipping() -> str:
    return carrier()


@workflow
def export() -> str:
    return customs()


@workflow(queue="nowhere")
def stranded() -> None: ...


async def until(run: AsyncHandle[Any], verb: str) -> Why:
    while (why := await run.why()).verb != verb:
        pass
    return why


async def test_an_activity_that_backs_off_is_explained_and_tried_again() -> None:
    tries.clear()
    async with remote(shipping, carrier) as app:
        run = await app.start(shipping, "s")
        why = await until(run, "tries_again")
        assert "carrier has failed 1 of 21 times, last with “no answer”" in why.sentence
        assert why.action is not None
        assert await run.retry_now(why.action.target, "the carrier is back") == "retry_dispatched"
        assert await run.result() == "shipped"
        assert (await run.why()).verb == "completed"
        with pytest.raises(RequestRefused, match="not 99"):
            await run.why(event=99)


@pytest.mark.needs_links("a worker that another node has registered is known within a second")
async def test_our_own_workers_name_all_that_they_run() -> None:
    """A worker without an activity type is no taker of it, and one without workflows takes no workflow."""
    async with remote(export, shipping, carrier) as app:
        run = await app.start(export, "e")
        why = await until(run, "needs_worker")
        assert "1 worker serves queue 'default', none of them runs activity customs" in why.sentence
        assert (await run.describe()).liveness_state == "activity_task_waiting_for_compatible_worker"
    async with remote(carrier) as app:
        why = await until(await app.start(shipping, "s"), "needs_worker")
        assert "1 worker serves queue 'default', none of them runs workflow shipping" in why.sentence
        why = await until(await app.start(stranded, "n"), "needs_worker")
        assert "No live worker serves queue 'nowhere'" in why.sentence


async def test_an_unknown_workflow_has_no_explanation() -> None:
    async with remote(shipping, carrier) as app:
        with pytest.raises(WorkflowNotFound):
            await app.handle(shipping, "nobody").why()
