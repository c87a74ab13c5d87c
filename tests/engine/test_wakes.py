"""Wakes that this engine did not set itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast import AsyncHoldfast, WorkflowTimedOut, sleep, workflow


@workflow
def waits() -> None:
    sleep("1h")


def test_the_timeout_of_a_run_that_another_process_started_is_kept(tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "wakes.db"
        async with AsyncHoldfast(path, [waits]) as holder, AsyncHoldfast(path, [waits]) as guest:
            assert (holder.engine.holder, guest.engine.holder) == (True, False)
            handle = await guest.options(run_timeout="300ms").start(waits, "w")
            with pytest.raises(WorkflowTimedOut):
                await handle.result(timeout=10)

    asyncio.run(story())
