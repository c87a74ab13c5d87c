"""The live stream of `dw dev`: what changed in the database since the last look, in lines.

It reads the database like any other process would, so it shows what is really on disk, whoever put it there.
"""

from __future__ import annotations

from itertools import islice

from rich.console import Console
from rich.text import Text

from backstay.cli import words
from backstay.cli.differences import side_by_side
from backstay.cli.reading import Reader
from backstay.kernel.decision import RunRow
from backstay.kernel.event import Event, Recorded
from backstay.kernel.features.activity import (
    ActivityFailed,
    ActivityRetryScheduled,
    ActivityStarted,
    ActivityTimedOut,
)
from backstay.kernel.features.close import WorkflowCompleted, WorkflowFailed
from backstay.kernel.features.deadline import WorkflowTimedOut
from backstay.kernel.features.timer import TimerScheduled
from backstay.kernel.task import Task
from backstay.kernel.values import SECOND
from backstay.store import RunFilter

PAGE = 500
TRACKED = 300  # runs of one look: this runs beside the engine and must not slow it down
LINES = 40  # of one look; the rest is counted


class Stream:
    def __init__(self, reader: Reader, namespace: str, out: Console) -> None:
        self._reader = reader
        self._namespace = namespace
        self._out = out
        self._newest = 0
        self._open: dict[int, tuple[RunRow, int]] = {}  # run key -> (row, events told)
        self._blocked: dict[str, Task] = {}
        self._told = 0
        self._behind = False

    def remember(self) -> None:
        """Take what is there now as known. Before the engine opens: what it finishes at once is news."""
        found = self._page(None)
        self._newest = found[0].key if found else 0
        for status in ("pending", "waiting"):
            for run in self._reader.get(
                self._reader.store.runs(RunFilter(namespace=self._namespace, status=status, limit=PAGE))
            ):
                # The index row of an open run is not written at every step, so it does not say how long its history is.
                last = self._reader.get(self._reader.store.last_event(run.key))
                self._open[run.key] = (run, 0 if last is None else last.sequence)

    def begin(self) -> None:
        """Say what was there already: the open runs counted, the blocked ones named."""
        if self._open:
            self._out.print(f"{len(self._open)}{'+' if len(self._open) >= PAGE else ''} open runs go on", style="cyan")
        self._look_for_blocked()

    def look(self) -> None:
        """Tell what was committed since the last look."""
        if not self._reader.changed() and not self._behind:
            return
        self._told = 0
        started = self._started()
        for run in started:
            self._open[run.key] = (run, 0)
            self._line("▶", "bold", run, "started")
        self._behind = len(self._open) > TRACKED
        for key in list(islice(self._open, TRACKED)):
            before, told = self._open.pop(key)
            if self._told <= LINES:
                told = self._notable(before, told)
            run = self._reader.get(self._reader.store.run(before.namespace, before.run_id))
            if run is not None and run.closed_reason is None:
                self._open[key] = (run, told)  # to the end: the next look begins with those not seen in this one
            elif run is not None:
                self._closed(run)
        self._look_for_blocked()
        if self._told > LINES:
            self._out.print(f"… and {self._told - LINES} more lines (dw list shows the runs)", style="bright_black")

    def _started(self) -> list[RunRow]:
        found: list[RunRow] = []
        before: int | None = None
        while True:
            page = self._page(before)
            fresh = [run for run in page if run.key > self._newest]
            found += fresh
            if len(fresh) < PAGE:
                break
            before = page[-1].key
        if found:
            self._newest = found[0].key
        return found[::-1]

    def _page(self, before: int | None) -> list[RunRow]:
        return self._reader.get(
            self._reader.store.runs(RunFilter(namespace=self._namespace, before=before, limit=PAGE))
        )

    def _notable(self, run: RunRow, after: int) -> int:
        """The events of a run that a developer wants to see at once. Returns how far it was read."""
        for entry in self._reader.get(self._reader.store.history(run.key, after)):
            after = entry.sequence
            match entry.event:
                case ActivityRetryScheduled() as e:
                    pause = words.span(e.retry_available_at - entry.at)
                    if e.retry_task_id == e.retry_of_task_id:
                        said = words.shortened(e.message)
                    else:
                        why = words.failure(e.timeout_kind or e.exception_type, e.message)
                        said = f"{e.activity_type} attempt {e.retry_after_attempt} failed: {why}"
                    self._line("↻", "yellow", run, f"{said}; again in {pause}", e)
                case ActivityFailed() as e:
                    why = words.failure(e.exception_type, e.message)
                    self._line("✗", "red", run, f"{e.activity_type} failed for good: {why}", e)
                case ActivityTimedOut() as e:
                    self._line("✗", "red", run, f"{e.activity_type} timed out: {words.shortened(e.message)}")
                case ActivityStarted(attempt_number=1) as e:
                    self._line("▸", "bright_black", run, e.activity_type)
                case TimerScheduled() as e if e.delay_seconds >= 1:
                    self._line("◷", "", run, f"sleeps for {words.span(round(e.delay_seconds * SECOND))}")
                case _:
                    pass
        return after

    def _closed(self, run: RunRow) -> None:
        took = words.span((run.closed_at or run.started_at) - run.started_at)
        last: Recorded | None = self._reader.get(self._reader.store.last_event(run.key))
        match last.event if last is not None else None:
            case WorkflowCompleted(output=output):
                self._line("✓", "green", run, f"completed in {took} → {words.value(output)}")
            case WorkflowFailed(exception_type=kind, message=message) as e:
                self._line("✗", "bold red", run, f"failed after {took}: {words.failure(kind, message)}", e)
            case WorkflowTimedOut(message=message):
                self._line("✗", "bold red", run, f"timed out after {took}: {words.shortened(message)}")
            case _:
                self._line("↪", "green", run, f"{run.closed_reason} after {took}")

    def _look_for_blocked(self) -> None:
        blocked = {
            f"{task.id} {task.attempt}": task
            for task in self._reader.get(self._reader.store.failed())
            if task.block is not None and task.routing.namespace == self._namespace
        }
        for which, task in blocked.items():
            if which not in self._blocked and task.block is not None:
                what = "is blocked" if task.block.replay_blocked else "could not run its task and tries again"
                self._row("■", "bold red", self._id_of(task), f"{what}: {words.shortened(task.block.message, 500)}")
                if task.block.difference and self._told <= LINES:
                    self._out.print(side_by_side(task.block.difference))
        still = {task.run for task in blocked.values()}
        for run in {task.run: task for task in self._blocked.values() if task.run not in still}.values():
            self._row("▶", "green", self._id_of(run), "is no longer blocked")
        self._blocked = blocked

    def _id_of(self, task: Task) -> str:
        loaded = self._reader.get(self._reader.store.load(task.workflow))
        return "?" if loaded is None else loaded.row.workflow_id

    def _line(self, mark: str, style: str, run: RunRow, text: str, failed: Event | None = None) -> None:
        self._row(mark, style, run.workflow_id, f"{run.workflow_type} {text}" if text == "started" else text)
        if self._told <= LINES:
            for frame in words.where(failed, whole=True):
                self._out.print(f"{'':>12}{frame}", style="bright_black", markup=False, highlight=False)

    def _row(self, mark: str, style: str, id: str, text: str) -> None:
        self._told += 1
        if self._told <= LINES:
            line = Text(f"{words.clock(words.now())}  ", "bright_black")
            line.append(f"{mark} ", style)
            line.append(f"{id}  ", "bold")
            line.append(text, style)
            self._out.print(line)
