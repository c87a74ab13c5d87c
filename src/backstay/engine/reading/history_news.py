"""Waiting for new events of a run. The commits of this engine wake it; after a commit of another process it reads the
database.

If another node owns the instance, it waits at that node, if that can be called.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from backstay.engine.core.engine import Engine
from backstay.kernel.event import Recorded
from backstay.kernel.state import Instance
from backstay.protocol.native.nodes import AwaitEvents

TOPIC = "history"


class HistoryNews:
    """`elsewhere`: whether another node owns the instance of this key; `call` calls that node."""

    def __init__(
        self, engine: Engine, elsewhere: Callable[[int], bool], call: Callable[[AwaitEvents], Awaitable[bool]]
    ) -> None:
        self._engine = engine
        self._elsewhere = elsewhere
        self._call = call

    async def wait(self, workflow: int, run: int, after: int, limit: int, seconds: float) -> list[Recorded]:
        """The events of a run after `after`, at most so many; as soon as there are any, and none after `seconds`."""
        if not self._elsewhere(workflow):
            return await self._wait_here(workflow, run, after, limit, seconds)
        await self._call(AwaitEvents(workflow=workflow, run=run, after=after, wait_seconds=seconds))
        return await self._engine.store.history(run, after, limit)

    async def await_events(self, request: AwaitEvents) -> bool:
        events = await self._wait_here(request.workflow, request.run, request.after, 1, request.wait_seconds)
        return bool(events)

    async def _wait_here(self, workflow: int, run: int, after: int, limit: int, seconds: float) -> list[Recorded]:
        waiters = self._engine.waiters
        topic = f"{TOPIC}:{run}:{after}:{limit}"

        async def look() -> list[Recorded] | None:
            return await self._engine.store.history(run, after, limit) or None

        def committed(instance: Instance) -> None:
            waiters.check(workflow, topic)

        waiters.subscribe(workflow, committed)
        try:
            return await waiters.wait(workflow, topic, list[Recorded], look, seconds) or []
        finally:
            waiters.unsubscribe(workflow, committed)
