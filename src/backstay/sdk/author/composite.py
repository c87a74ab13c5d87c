"""Waiting for several durable calls as if they were one: what `gather` and `race` have in common."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Protocol, cast

from backstay.sdk.author.step import Step
from backstay.sdk.replay.live_run import LiveRun
from backstay.sdk.replay.workflow_greenlet import current_greenlet, current_run


class Bundle(Protocol):
    """Several calls on their way. Whoever waits is told once, when it is over."""

    @property
    def over(self) -> bool: ...
    def value(self) -> Any: ...
    def cancel(self) -> None: ...


class Composite(Step[Any]):
    """A step that stands for several calls. They are made when it is run."""

    composite = True
    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(cast(Any, None))

    @abstractmethod
    def begin(self, live_run: LiveRun, done: Callable[[], None]) -> Bundle:
        """Make the calls. `done` may be told before this returns."""

    @abstractmethod
    def outside(self) -> Any:
        """The same outside a workflow."""

    def run(self) -> Any:
        live_run = current_run()
        if live_run is None:
            return self.outside()
        greenlet = current_greenlet()
        assert greenlet is not None
        waiting = False

        def done() -> None:
            if waiting:
                live_run.wake(greenlet, None)

        bundle = self.begin(live_run, done)
        if not bundle.over:
            waiting = True
            try:
                live_run.suspend(greenlet)
            except asyncio.CancelledError:
                bundle.cancel()
                raise
        return bundle.value()

    async def _awaited(self) -> Any:
        live_run = current_run()
        if live_run is None:
            return self.outside()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        bundle = self.begin(live_run, lambda: None if future.done() else future.set_result(None))
        if not bundle.over:
            try:
                await future
            except asyncio.CancelledError:
                if not live_run.abandoned:
                    bundle.cancel()
                raise
        return bundle.value()
