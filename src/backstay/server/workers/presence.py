"""Presence: the polling workers with a poll parked here. A worker whose parked poll was cut off has left, unless it
polls again.

A worker of the published protocol has no link. While it has nothing to do, a poll of it waits here; if that connection ends before
the poll is answered, the process is gone, or it comes back at once. Our own workers are watched by their links (`worker_link.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from backstay.engine.core.world import World
from backstay.kernel.values import SECOND, Micros
from backstay.server.workers.worker_registry import RegisteredWorker, WorkerRegistry

UNSEEN = 2 * SECOND  # in which a worker polls again whose poll was cut off


class Presence:
    """`is_leaving`: whether this server is about to stop, and cuts polls off itself."""

    def __init__(self, world: World, workers: WorkerRegistry, is_leaving: Callable[[], bool]) -> None:
        self._world = world
        self._workers = workers
        self._is_leaving = is_leaving
        self._parked: Counter[tuple[str, str]] = Counter()  # polls by worker

    def begin(self, worker: RegisteredWorker) -> None:
        """A poll of the worker is parked."""
        self._parked[worker.namespace, worker.worker_id] += 1

    def end(self, worker: RegisteredWorker, *, hung_up: bool) -> None:
        """A poll is not parked any more. `hung_up`: its connection has ended before it was answered."""
        place = (worker.namespace, worker.worker_id)
        self._parked[place] -= 1
        if not self._parked[place]:
            del self._parked[place]
            if hung_up and not self._is_leaving():
                now = self._world.now()
                self._world.at(now + UNSEEN, partial(self._look, worker, now))

    def waits(self, namespace: str, worker_id: str) -> bool:
        """Whether a poll of the worker is parked here."""
        return (namespace, worker_id) in self._parked

    def _look(self, worker: RegisteredWorker, since: Micros) -> None:
        """The worker has left if it was not heard of since its poll was cut off."""
        if not self._is_leaving() and self._workers.last_heard(worker) <= since:
            self._world.spawn(self._workers.left(worker.namespace, worker.worker_id), "backstay-worker-left")
