"""A periodic job: an async function that is called at intervals, never twice at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from backstay.engine.core.world import Alarm, World
from backstay.kernel.values import SECOND, Micros
from backstay.store.errors import Unavailable

log = logging.getLogger("backstay.engine")

OUTAGE_PAUSE = SECOND  # at least, after a call that could not reach the database


class PeriodicJob:
    """`active`: whether to go on; if not, the job rests until it is started again. `work` may change `interval`.

    `needed`: whether there is any work this time. It costs a tenth of a call that finds nothing to do.
    """

    def __init__(
        self,
        world: World,
        name: str,
        work: Callable[[], Awaitable[object]],
        active: Callable[[], bool] = lambda: True,
        needed: Callable[[], bool] = lambda: True,
    ) -> None:
        self._world = world
        self._name = name
        self._work = work
        self._active = active
        self._needed = needed
        self._alarm: Alarm | None = None
        self._running: asyncio.Task[None] | None = None
        self._started = False
        self._stopped = False
        self._unavailable = False  # the last call could not reach the database
        self.interval: Micros = 0

    def start(self, interval: Micros) -> None:
        """Call `work` after each `interval`. A job that was started already only changes its interval."""
        self.interval = interval
        if not self._started:
            self._started = True
            self._alarm = self._world.at(self._world.now() + interval, self._ring)

    def hurry(self, interval: Micros) -> None:
        """Shorten the interval, and the pause that has begun already."""
        running = self._running is not None and not self._running.done()
        if self._started and self.interval > interval and not running:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm = self._world.at(self._world.now() + interval, self._ring)
        self.interval = interval

    def stop(self) -> None:
        """End the job for good, and cancel the call that is under way."""
        self._stopped = True
        if self._alarm is not None:
            self._alarm.cancel()
        if self._running is not None:
            self._running.cancel()

    def _ring(self) -> None:
        if self._stopped or not self._active():
            self._started = False
        elif not self._needed():
            self._alarm = self._world.at(self._world.now() + self.interval, self._ring)
        else:
            self._running = self._world.spawn(self._run(), f"backstay-{self._name}")

    async def _run(self) -> None:
        least = 0
        try:
            await self._work()
            self._unavailable = False
        except Unavailable as error:
            if not self._unavailable:  # logged once, then retried until it works
                self._unavailable = True
                log.warning("%s: the database is unavailable: %s", self._name, error)
            least = OUTAGE_PAUSE
        except Exception:
            log.exception("%s failed and is retried", self._name)
        if not self._stopped and self._active():
            self._alarm = self._world.at(self._world.now() + max(self.interval, least), self._ring)
        else:
            self._started = False
