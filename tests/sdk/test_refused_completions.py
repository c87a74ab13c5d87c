"""Code whose completion the engine refuses: its task fails by the reason, where operators look, and is tried again in a while."""

from __future__ import annotations

from typing import Any

import pytest

from backstay import activity, workflow
from backstay.kernel.features.timer import StartTimer
from backstay.sdk.replay.workflow_greenlet import current_run

from .kit import eventually, memory


@activity(local=True)
def near() -> int:
    return 1


def ask_for_nothing() -> None:
    """What the SDK never asks for: it checks what authors give it. Another version of it may not."""
    live_run = current_run()
    assert live_run is not None
    live_run.emit(StartTimer(sequence=7, delay_seconds=-1))


@workflow(unchecked=True)
def mistaken() -> None:
    ask_for_nothing()


@workflow(unchecked=True)
def mistaken_later() -> None:
    near()  # its task is held under a lease of its own
    ask_for_nothing()


async def failed_task(app: Any, id: str) -> Any:
    async def look() -> Any:
        tasks = (await app.describe(id)).tasks
        return next((view.task for view in tasks if view.task.state == "failed"), None)

    return await eventually(look, "the task has failed")


@pytest.mark.parametrize("code", [mistaken, mistaken_later])
async def test_a_refused_completion_fails_its_task_and_says_why(code: Any) -> None:
    async with memory(code, near) as app:
        run = await app.start(code, "w")
        task = await failed_task(app, "w")
        assert "refused" in task.block.message
        assert (task.block.type, task.block.reason) == ("CompletionRefused", "invalid_commands")
        assert task.repair_count == 1
        assert task.repair_available_at is not None
        assert [entry.type for entry in await app.history("w")] == ["StartAccepted", "WorkflowStarted"]
        await run.terminate()
