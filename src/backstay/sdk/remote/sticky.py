"""Sticky runs on the worker's side: where the live code of each run stands, and which runs have unanswered reports."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from backstay.kernel.event import Recorded
from backstay.protocol.native import worker as wire
from backstay.protocol.native.events import unpack
from backstay.sdk.replay.live_run import LiveRun
from backstay.sdk.worker.executor import WorkerExecutor


class StickyCode(NamedTuple):
    """The position of a run's live code as the server knows it: the length and checksum of the history it has seen.

    `unseen` events were recorded since. `events` are those of them that matter to code; the others are only counted. `link`:
    the one whose server knows it.
    """

    run_id: str
    length: int
    checksum: int
    unseen: int
    events: list[Recorded]
    link: object = None


class StickyRuns:
    """The positions of all live code that waits. Beyond `limit` runs, the code that has waited longest is dropped."""

    def __init__(self, executor: WorkerExecutor, limit: int) -> None:
        self._executor = executor
        self._limit = limit
        self._by_run: OrderedDict[int, StickyCode] = OrderedDict()
        self._runs: dict[str, int] = {}  # run id -> run key
        self._reporting: dict[int, int] = {}  # run key -> number of unanswered reports

    def get(self, run: int) -> StickyCode | None:
        return self._by_run.get(run)

    def run_of(self, run_id: str) -> int | None:
        return self._runs.get(run_id)

    def remove(self, run: int) -> None:
        """Remove the position of a run whose code is about to run."""
        code = self._by_run.pop(run, None)
        if code is not None:
            self._runs.pop(code.run_id, None)

    def forget(self, run: int) -> None:
        """Drop the live code of a run."""
        self.remove(run)
        self._executor.forget(run)

    def forget_of(self, link: object) -> None:
        """Drop the live code that the server of this link knows of."""
        for run in [run for run, code in self._by_run.items() if code.link is link]:
            self.forget(run)

    # -- unanswered reports

    def awaits_answer(self, run: int) -> bool:
        return run in self._reporting

    def on_report(self, run: int) -> None:
        self._reporting[run] = self._reporting.get(run, 0) + 1

    def on_answer(self, run: int, run_id: str, stand: wire.StickyState | None, link: object) -> None:
        """Take the position of a run's code from the answer to a report. Without a position the code is dropped."""
        left = self._reporting.get(run, 0) - 1
        if left > 0:
            self._reporting[run] = left
        else:
            self._reporting.pop(run, None)
        if stand is None or self._executor.live(run) is None:
            self.forget(run)
            return
        self._by_run[run] = StickyCode(run_id, stand.length, stand.checksum, stand.count, unpack(stand.events), link)
        self._runs[run_id] = run
        while len(self._by_run) > self._limit:
            self.forget(next(iter(self._by_run)))


def count_skipped(live_run: LiveRun, skipped: int, reaches: int) -> None:
    """Count the events that were left out because code ignores them."""
    live_run.consumed += skipped
    if reaches > live_run.position:
        live_run.position = reaches
