"""The events that `dw dev` prints: a line for each new event in the database.

It reads the database as any other process would, so it shows what is on disk, including what other processes wrote.
"""

from __future__ import annotations

from itertools import islice
from urllib.parse import quote

from rich.console import Console
from rich.text import Text

from backstay.cli import format
from backstay.cli.differences import side_by_side
from backstay.cli.reading import StoreReader
from backstay.cli.timeline import QUIET, STYLES
from backstay.kernel.decision import RunRow
from backstay.kernel.task import Task
from backstay.kernel.views.timeline import tell
from backstay.kernel.words import Story
from backstay.store import RunFilter

PAGE = 500
TRACKED = 300  # runs of one look: this runs beside the engine and must not slow it down
LINES = 40  # of one look; the rest is counted


class EventFeed:
    """`page`: the address of Waterline, if there is one. Blocked runs are printed with the address of their page."""

    def __init__(self, reader: StoreReader, namespace: str, out: Console, page: str | None = None) -> None:
        self._reader = reader
        self._namespace = namespace
        self._out = out
        self._page_address = page
        self._newest = 0
        self._open: dict[int, tuple[RunRow, Story, int]] = {}  # run key -> (row, its story, events told)
        self._blocked: dict[str, Task] = {}
        self._told = 0
        self._behind = False

    def remember(self) -> None:
        """Remember the open runs, which are not news. Called before the engine opens, so that all it does is news."""
        found = self._page(None)
        self._newest = found[0].key if found else 0
        for status in ("pending", "waiting"):
            for run in self._reader.get(
                self._reader.store.runs(RunFilter(namespace=self._namespace, status=status, limit=PAGE))
            ):
                # The index row of an open run is not written at every step, so it does not say how long its history is.
                last = self._reader.get(self._reader.store.last_event(run.key))
                self._open[run.key] = (run, _story(run), 0 if last is None else last.sequence)

    @property
    def open_runs(self) -> str | None:
        """How many runs are open, in words; None if there is none. May be asked from any thread."""
        count = len(self._open)
        return f"{count}{'+' if count >= PAGE else ''} open runs go on" if count else None

    def begin(self) -> None:
        """Print each run that is blocked already."""
        self._look_for_blocked()

    def look(self) -> None:
        """Print new commits."""
        if not self._reader.changed() and not self._behind:
            return
        self._told = 0
        started = self._started()
        for run in started:
            self._open[run.key] = (run, _story(run), 0)
            self._row("▶", STYLES["title"], run.workflow_id, f"{run.workflow_type} started")
        self._behind = len(self._open) > TRACKED
        for key in list(islice(self._open, TRACKED)):
            before, story, told = self._open.pop(key)
            # The row is read before the history: if it says that the run has closed, the history holds the end.
            run = self._reader.get(self._reader.store.run(before.namespace, before.run_id))
            if self._told <= LINES:
                told = self._tell_news(before, story, told)
            elif run is not None and run.closed_reason is not None:
                self._told += 1  # its end, which is not printed any more
            if run is not None and run.closed_reason is None:
                self._open[key] = (run, story, told)  # to the end: the next look begins with those not seen in this one
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

    def _tell_news(self, run: RunRow, story: Story, after: int) -> int:
        """Print the events that a developer wants to see at once. Returns how far the history was read."""
        for entry in self._reader.get(self._reader.store.history(run.key, after)):
            after = entry.sequence
            phrase = tell(story, entry)
            if phrase.news:
                self._row(phrase.mark, STYLES[phrase.tone], run.workflow_id, phrase.text)
                if self._told <= LINES:
                    for frame in format.where(entry.event, whole=True):
                        self._out.print(f"{'':>12}{frame}", style=QUIET, markup=False, highlight=False)
        return after

    def _look_for_blocked(self) -> None:
        blocked = {
            f"{task.id} {task.attempt}": task
            for task in self._reader.get(self._reader.store.failed())
            if task.block is not None and task.routing.namespace == self._namespace
        }
        for which, task in blocked.items():
            if which not in self._blocked and task.block is not None:
                what = "is blocked" if task.block.replay_blocked else "could not run its task and tries again"
                id = self._id_of(task)
                page = "" if self._page_address is None else f"  {self._page_address}/runs/{quote(id, safe='')}"
                self._row("■", "bold red", id, f"{what}: {format.shortened(task.block.message, 500)}{page}")
                if task.block.difference and self._told <= LINES:
                    self._out.print(side_by_side(task.block.difference))
        still = {task.run for task in blocked.values()}
        for run in {task.run: task for task in self._blocked.values() if task.run not in still}.values():
            self._row("▶", "green", self._id_of(run), "is no longer blocked")
        self._blocked = blocked

    def _id_of(self, task: Task) -> str:
        loaded = self._reader.get(self._reader.store.load(task.workflow))
        return "?" if loaded is None else loaded.row.workflow_id

    def _row(self, mark: str, style: str, id: str, text: str) -> None:
        self._told += 1
        if self._told <= LINES:
            line = Text(f"{format.clock(format.now())}  ", "bright_black")
            line.append(f"{mark} ", style)
            line.append(f"{id}  ", "bold")
            line.append(text, style)
            self._out.print(line)


def _story(run: RunRow) -> Story:
    return Story(format, run.workflow_type, run.started_at)
