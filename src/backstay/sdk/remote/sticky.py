"""Where live code stands, as the server knows it, and which reports about it are on their way."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from backstay.kernel.event import Recorded
from backstay.protocol.native import worker as wire
from backstay.protocol.native.events import unpack
from backstay.sdk.replay.live_run import LiveRun
from backstay.sdk.worker.executor import WorkerExecutor


class StickyCode(NamedTuple):
    """Where live code is, as the server knows it; `unseen` events of which `events` are told, the others are nothing to it."""

    run_id: str
    length: int
    checksum: int
    unseen: int
    events: list[Recorded]


class StickyRuns:
    """Of all live code that is at rest; beyond `limit` the one that has rested longest is given up."""

    def __init__(self, executor: WorkerExecutor, limit: int) -> None:
        self._executor = executor
        self._limit = limit
        self._by_run: OrderedDict[int, StickyCode] = OrderedDict()
        self._runs: dict[str, int] = {}  # run id -> run
        self._reporting: dict[int, int] = {}  # run -> reports without an answer

    def get(self, run: int) -> StickyCode | None:
        return self._by_run.get(run)

    def run_of(self, run_id: str) -> int | None:
        return self._runs.get(run_id)

    def leave(self, run: int) -> None:
        """Its code is about to move."""
        standing = self._by_run.pop(run, None)
        if standing is not None:
            self._runs.pop(standing.run_id, None)

    def forget(self, run: int) -> None:
        """Give up the live code of a run."""
        self.leave(run)
        self._executor.forget(run)

    def forget_all(self) -> None:
        for run in list(self._by_run):
            self.forget(run)

    # -- reports on their way

    def in_doubt(self, run: int) -> bool:
        return run in self._reporting

    def reported(self, run: int) -> None:
        self._reporting[run] = self._reporting.get(run, 0) + 1

    def answered(self, run: int, run_id: str, stand: wire.StickyState | None) -> None:
        """A report about a run was answered: its live code is where the server says, or is given up."""
        left = self._reporting.get(run, 0) - 1
        if left > 0:
            self._reporting[run] = left
        else:
            self._reporting.pop(run, None)
        if stand is None or self._executor.live(run) is None:
            self.forget(run)
            return
        self._by_run[run] = StickyCode(run_id, stand.length, stand.checksum, stand.count, unpack(stand.events))
        self._runs[run_id] = run
        while len(self._by_run) > self._limit:
            self.forget(next(iter(self._by_run)))


def advance(live_run: LiveRun, untold: int, reaches: int) -> None:
    """Count the events that the code was not shown because they are nothing to it."""
    live_run.consumed += untold
    if reaches > live_run.position:
        live_run.position = reaches
