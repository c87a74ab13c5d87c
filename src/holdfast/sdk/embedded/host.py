"""The engine as the embedded worker sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from holdfast.engine.engine import Engine
from holdfast.engine.matching import COLD, Held
from holdfast.engine.world import World
from holdfast.kernel.event import Recorded
from holdfast.kernel.features.workflow_task import WorkflowAssignment, shown_to
from holdfast.kernel.message import Message
from holdfast.kernel.values import SECOND
from holdfast.sdk.executor import EmbeddedExecutor
from holdfast.store import Now


class EngineHost:
    cold = COLD

    def __init__(self, engine: Engine, world: World, threads: int) -> None:
        self._engine = engine
        self._world = world
        self._pool = world.pool(threads, "holdfast-activity")
        self._workflows = world.pool(1, "holdfast-workflow")
        self._closed = False
        self.executor: EmbeddedExecutor | None = None

    def held(self, start: Callable[[BaseException | None], None]) -> object:
        return Held(start)

    def report(self, key: int, message: Message, reply: Callable[[Any, BaseException | None], None] | None) -> None:
        self._engine.inline.report(key, message, reply)

    def room(self) -> None:
        assert self.executor is not None
        self._engine.serving.executor(self.executor)

    def events(
        self, after: int, assignment: WorkflowAssignment, then: Callable[[list[Recorded] | Exception], None]
    ) -> None:
        try:
            found = self._engine.store.history(assignment.run_key, after)
        except Exception as error:  # a database at hand says so at once
            then(error)
            return
        if isinstance(found, Now):
            then(shown_to(assignment, found.value))
        else:
            self._world.spawn(_fetched(found, assignment, then), "holdfast-history")

    def done_holding(self, key: int) -> None:
        self._engine.inline.release_hold(key)

    def look_at(self, key: int) -> None:
        self._engine.inline.given_up(key)

    def thread(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._pool.submit(call, done)

    def workflow_thread(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._workflows.submit(call, done)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return self._world.spawn(work, name)

    def post(self, call: Callable[[], None]) -> None:
        self._world.post(call)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self._world.at(self._world.now() + round(seconds * SECOND), lambda: None if self._closed else call())

    def close(self) -> None:
        self._closed = True
        self._pool.close()
        self._workflows.close()


async def _fetched(
    found: Awaitable[list[Recorded]],
    assignment: WorkflowAssignment,
    then: Callable[[list[Recorded] | Exception], None],
) -> None:
    try:
        events = await found
    except Exception as error:
        then(error)
    else:
        then(shown_to(assignment, events))
