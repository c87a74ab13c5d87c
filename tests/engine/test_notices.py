"""What another process commits to an instance is picked up by its owner at once, whatever the owner is doing."""

from __future__ import annotations

import asyncio

from backstay import wait, workflow
from tests.sdk.kit import eventually
from tests.sim.disk import Disk
from tests.sim.virtual import run

from .two_processes import OnDisk, SlowAnswers, of, shared


@workflow
def twice() -> list[str]:
    return [wait("go"), wait("go")]


def test_a_commit_on_top_of_one_whose_answer_is_late_is_picked_up_too() -> None:
    """The notice comes when the owner cannot tell yet whether its own commit was before the other or after it."""

    async def story(_: object) -> float:
        disk, answers = Disk(), SlowAnswers()
        now = asyncio.get_running_loop().time
        async with OnDisk(disk, 1, [twice], answers) as owner, OnDisk(disk, 2, []) as guest:
            await shared(owner, guest)
            name = of(owner, 1)
            handle = await owner.start(twice, name)
            await asyncio.sleep(7)  # virtual seconds: a sweep is just over
            answers.late = 0.5
            first = asyncio.ensure_future(handle.signal("go", "one"))
            await eventually(lambda: any(entry.inflight for entry in owner.engine.cache), "the first is on its way")
            await guest.handle(twice, name).signal("go", "two")
            await first
            answers.late = 0
            began = now()
            assert await handle.result() == ["one", "two"]
            return now() - began

    assert run(1, story) < 0.3
