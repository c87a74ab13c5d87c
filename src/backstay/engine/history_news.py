"""Waiting for new events of a run. The commits of this engine tell; after a commit of another process the database is looked at."""

from __future__ import annotations

from backstay.engine.engine import Engine
from backstay.kernel.event import Recorded
from backstay.kernel.state import Instance

TOPIC = "history"


class HistoryNews:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def wait(self, workflow: int, run: int, after: int, limit: int, seconds: float) -> list[Recorded]:
        """The events of a run after `after`, at most so many; as soon as there are any, and none after `seconds`."""
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
