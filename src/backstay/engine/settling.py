"""Settling: waiting until workflow code has dealt with every signal that was accepted so far.

An acknowledged signal is on disk; that code has had it is another commit, of whoever runs that code. A query or an update that
comes in between would not see it. So whoever asks for it (`after_signals`) waits here first: told by this engine's own commits of the
instance, or by looking at the database when another process has committed. Nobody waits for what nobody does: a run that is
paused or closed, whose task failed, or that no process runs, stands where it stands.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import NamedTuple

from backstay.engine.access import Access
from backstay.engine.cache import Entry
from backstay.engine.engine import Engine
from backstay.engine.waiting import Waiting
from backstay.kernel.features import pause
from backstay.kernel.features.signal import outstanding
from backstay.kernel.state import Workflow
from backstay.kernel.values import SECOND

TOPIC = "settled"
TAKEN_OVER = 1.0  # seconds in which another process has become the engine, if one will


class Settled(NamedTuple):
    """How the wait ended. `left` names a signal that was not dealt with; None if there is none."""

    left: str | None = None
    stands: bool = False  # nobody is there to do it


class Settling:
    """`guest`: this process never becomes the engine, so it does not know that there will be one."""

    def __init__(self, engine: Engine, access: Access, waiting: Waiting, *, guest: bool) -> None:
        self._guest = guest
        self._engine = engine
        self._access = access
        self._waiting = waiting

    async def settle(self, key: int, seconds: float) -> Settled:
        """Wait for as long as this until all signals accepted by now have been dealt with."""
        flow = await self._access.committed(key)
        asked = {} if flow.run is None else {event.signal_id: event.signal_name for event in outstanding(flow)}
        if not asked:
            return Settled()
        if not await self._served():
            return Settled(next(iter(asked.values())), stands=True)
        moved = partial(self._moved, asked)
        watching = self._engine.moved.setdefault(key, [])
        watching.append(moved)
        try:
            found = await self._waiting.wait(key, TOPIC, _never, partial(self._look, key, asked), seconds)
        finally:
            watching.remove(moved)
            if not watching:
                self._engine.moved.pop(key, None)
        if found is None and self._waiting.ended is not None:
            raise self._waiting.ended()  # nobody knows yet
        return found or Settled(next(iter(asked.values())))

    async def _served(self) -> bool:
        """Whether there is an engine, or will be one in a moment: when it has died another process takes over."""
        store, world = self._engine.store, self._engine.world
        if not self._guest or await store.has_engine():
            return True
        later: asyncio.Future[None] = world.future()
        world.at(world.now() + round(TAKEN_OVER * SECOND), partial(_over, later))
        await later
        return await store.has_engine()

    async def _look(self, key: int, asked: dict[str, str]) -> Settled | None:
        # From disk: what is in memory may be ahead of it, and may not know yet what another process has accepted.
        return self._judge(await self._access.committed(key), asked)

    def _moved(self, asked: dict[str, str], entry: Entry) -> None:
        # What this process knows only says whether it is worth looking at the disk.
        if self._judge(entry.flow, asked) is not None:
            self._waiting.look_for(entry.flow.key, TOPIC)

    def _judge(self, flow: Workflow, asked: dict[str, str]) -> Settled | None:
        """How it has ended; None if it goes on."""
        left = [] if flow.run is None else [e.signal_name for e in outstanding(flow) if e.signal_id in asked]
        if not left:
            return Settled()
        return Settled(left[0], stands=True) if self._stands(flow) else None

    def _stands(self, flow: Workflow) -> bool:
        """Whether the code of this run does not move now, whatever is sent to it."""
        run = flow.current
        if not run.open or not pause.allows(run):
            return True
        if any(task.kind == "workflow" and task.state == "failed" for task in flow.tasks.values()):
            return True
        matching = self._engine.matching
        if not self._engine.holder or matching.remote is not None:
            return False
        of = ("workflow", run.workflow_type, run.routing.namespace, run.routing.queue, run.routing.compatibility)
        return not any(executor.runs(*of) for executor in matching.executors)


def _never(news: object) -> Settled:
    """Nobody tells of it under this topic: whoever waits looks."""
    raise AssertionError(news)


def _over(rest: asyncio.Future[None]) -> None:
    if not rest.done():
        rest.set_result(None)
