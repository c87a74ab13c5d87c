"""Waits that code gave up: they are over for everybody, and nothing later is taken for their end."""

from __future__ import annotations

import asyncio

from backstay import AsyncBackstay, Cancelled, Signal, continue_as_new, race, sleep, update, wait, workflow

note = Signal[str]("note")


@workflow
class Box:
    def __init__(self) -> None:
        self.open = True
        self.count = 0

    @update
    def add(self, by: int) -> int:
        self.count += by
        return self.count

    @update
    def close(self) -> None:
        self.open = False

    def handle(self) -> int:
        won, _ = race(wait.step(note), sleep.step(0.01))
        wait(lambda: not self.open)
        return won


async def test_a_signal_after_a_lost_race_does_not_stand_in_the_way_of_updates() -> None:
    async with AsyncBackstay(":memory:", [Box]) as app:
        box = await app.start(Box, "box")
        while not any(entry.type == "SignalWaitCancelled" for entry in await box.history()):
            await asyncio.sleep(0)  # let the engine's loop turn
        await box.signal(note, "too late")
        assert await box.update(Box.add, 2) == 2
        described = await box.describe()
        assert described.wait_kind == "condition"
        assert {wait.kind: wait.status for wait in described.waits}["signal"] == "cancelled"
        await box.update(Box.close)
        assert await box.result() == 1


@workflow(handles_cancel="1h")
def stubborn(round: int) -> str:
    try:
        sleep("1h")
    except Cancelled:
        if round == 0:
            continue_as_new(stubborn, 1)
        return f"left in round {round}"
    return "slept"


async def test_a_run_that_continues_as_new_does_not_escape_a_cancel_request() -> None:
    async with AsyncBackstay(":memory:", [stubborn]) as app:
        run = await app.start(stubborn, "s", 0)
        assert await run.cancel("enough") == "cancel_requested"
        assert await run.result("5s") == "left in round 1"
