"""Workflows in every state, and a copier that a test can stop anywhere."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from backstay import (
    AsyncBackstay,
    Signal,
    activity,
    activity_info,
    continue_as_new,
    emit,
    query,
    signal,
    sleep,
    wait,
    workflow,
)
from backstay.engine.core.local_kinds import is_local
from backstay.kernel.machine import Machine
from backstay.kernel.values import Micros
from backstay.store.copying.copier import Copier, CopyReport, open_end

from ..sdk.kit import StillWorld

go = Signal[int]("go")


class Gate:
    """Where activities wait until a test lets them through."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.opened = threading.Event()

    def __deepcopy__(self, memo: object) -> Gate:
        return self


gate = Gate()


@activity(type="flaky", retries=3, backoff="10m")
def flaky(text: str) -> str:
    if activity_info().number == 1:
        raise ConnectionError("not yet")
    return f"{text} at attempt {activity_info().number}"


@activity(type="held")
def held() -> str:
    gate.began.set()
    gate.opened.wait(30)
    return "through"


@activity(type="held-locally", local=True)
def held_locally() -> str:
    gate.began.set()
    gate.opened.wait(30)
    return "through"


@workflow(type="waits")
def waits() -> int:
    return wait(go)


@workflow(type="naps")
def naps() -> str:
    sleep("1h")
    return "awake"


@workflow(type="retries")
def retries() -> str:
    return flaky("done")


@workflow(type="works")
def works() -> str:
    return held()


@workflow(type="parent")
def parent() -> int:
    return waits() + 1


@workflow(type="continues")
def continues(number: int) -> int:
    if number < 3:
        continue_as_new(continues, number + 1)
    return wait(go) + number


@workflow(type="emits")
def emits() -> str:
    while (n := wait(go)) >= 0:
        emit("out", n)
    return "enough"


@workflow(type="buffers")
class Buffers:
    """Is in the middle of a task while signals arrive."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    @signal
    def add(self, n: int) -> None:
        self.seen.append(n)

    @query
    def so_far(self) -> list[int]:
        return self.seen

    def handle(self) -> list[int]:
        held_locally()
        wait(lambda: len(self.seen) >= 3)
        return self.seen


@workflow(type="ends")
def ends(text: str) -> str:
    return text


@workflow(type="fails")
def fails() -> None:
    raise LookupError("no stock")


EVERYTHING = [flaky, held, held_locally, waits, naps, retries, works, parent, continues, emits, Buffers, ends, fails]


class StillApp(AsyncBackstay):
    """On a clock that stands still, also beside a server that has one of its own."""

    def __init__(self, database: str, now: Micros | None = None) -> None:
        super().__init__(database, EVERYTHING, world=lambda: self.clock, guard="off", grace=0)
        self._begins = now

    async def __aenter__(self) -> StillApp:
        self.clock = _Still()
        if self._begins is not None:
            self.clock._still = self._begins
        await super().__aenter__()
        return self


class _Still(StillWorld):
    def follow(self, ahead: Micros | None = None, *, at_once: bool = False) -> Micros:
        return 0


@asynccontextmanager
async def copying(source: str | Path, target: str | Path, **hooks: Any) -> AsyncIterator[Copier]:
    """A copier between two databases."""
    machine = Machine()
    there = await open_end(str(source), machine, create=False, unfinished=False)
    try:
        here = await open_end(str(target), machine, create=True, unfinished=True)
        try:
            progress = hooks.get("progress", lambda what, done, total: None)
            yield Copier(there, here, machine, progress, leaves_out=is_local)
        finally:
            await here.close()
    finally:
        await there.close()


async def copied(source: str | Path, target: str | Path, **options: bool) -> CopyReport:
    async with copying(source, target) as copier:
        return await copier.copy(**options)
