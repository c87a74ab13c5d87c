"""Composite steps: several durable calls that code waits for as one. The common part of `gather` and `race`."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Protocol, cast

from backstay.sdk.author.step import Step
from backstay.sdk.replay.live_run import LiveRun
from backstay.sdk.replay.workflow_greenlet import current_greenlet, current_run


class Bundle(Protocol):
    """Several open calls that end together: a running group or race."""

    @property
    def over(self) -> bool: ...
    def value(self) -> Any: ...
    def cancel(self) -> None: ...


class Composite(Step[Any]):
    """A step that makes several calls when it runs."""

    composite = True
    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(cast(Any, None))

    @abstractmethod
    def begin(self, live_run: LiveRun, done: Callable[[], None]) -> Bundle:
        """Make the calls. `done` is called when all is over, maybe before this returns."""

    @abstractmethod
    def outside(self) -> Any:
        """Make the calls outside a workflow, as plain functions."""

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
