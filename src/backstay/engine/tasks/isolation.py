"""Isolation: a task whose workers were lost again and again is tried alone, so that its neighbours are not blamed with it.

When a worker dies, each task that it had may be what killed it, and counts a crash. A task with two crashes in a row is a
*suspect* (`Task.is_suspect`). While a worker has a suspect, it gets no other task for a few seconds, and no other suspect until
that one is reported. So the next death is counted for the suspect alone, and an innocent one is reported and cleared. The first
crash is most often a deploy and isolates nothing: all tasks of a restarted process begin again at once.

Both times are bounded, because an innocent activity may run for hours. Memory only: it is about deliveries of this process.
Servers of one database ask each other to *spare* a worker while one of them tries a suspect (`server/cluster/trials_of_nodes.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from backstay.kernel.decision import TaskChange
from backstay.kernel.task import Task
from backstay.kernel.values import SECOND, Micros

LONGEST_TRIAL = 60 * SECOND
STRICT = 4  # crashes in a row, after which time alone clears no suspect
ALONE = 600 * SECOND  # the bound of that

Worker = tuple[str, str]
"""A namespace, and the owner of leases there."""


class Trial(NamedTuple):
    """A suspect that a worker has: until when the worker gets nothing else, and until when no other suspect."""

    worker: Worker
    attempt: int
    only_until: Micros
    alone_until: Micros


class Isolation:
    """`on_begin` is called when a trial begins. `on_trial` gets the worker and the time for which it gets no other
    task; 0 when the trial is over. `may_try`: whether other nodes spare a worker that is to get a suspect. Only servers
    with others have these two."""

    def __init__(self, now: Callable[[], Micros]) -> None:
        self._now = now
        self._trials: dict[str, Trial] = {}  # by task
        self.by_worker: dict[Worker, dict[str, Trial]] = {}  # empty most of the time
        self.on_begin: Callable[[], None] | None = None
        self.on_trial: Callable[[Worker, Micros], None] | None = None
        self.may_try: Callable[[Worker], bool] | None = None

    def admits(self, worker: Worker, suspect: bool) -> bool:
        """Whether this worker may get one more task, or one more suspect."""
        trials = self.by_worker.get(worker)
        if trials is None:
            return True
        now = self._now()
        return not any(
            now < (trial.alone_until if suspect else trial.only_until) <= now + ALONE for trial in trials.values()
        )

    def lets(self, worker: Worker, suspect: bool) -> bool:
        """The same for a worker of other nodes, too: they have to spare it while it has a suspect."""
        if self.by_worker and not self.admits(worker, suspect):
            return False
        return not suspect or self.may_try is None or self.may_try(worker)

    def is_trying(self, worker: Worker, but: int) -> bool:
        """Whether this worker gets no other suspect now. The request of this other node does not count."""
        trials = self.by_worker.get(worker, {})
        now = self._now()
        own = _of_node(worker, but)
        return any(now < trial.alone_until <= now + ALONE for id, trial in trials.items() if id != own)

    def spare(self, worker: Worker, node: int, until: Micros) -> None:
        """Another node tries a suspect with this worker: it gets nothing here until then."""
        id = _of_node(worker, node)
        self._trials[id] = self.by_worker.setdefault(worker, {})[id] = Trial(worker, 0, until, until)

    def unspare(self, worker: Worker, node: int, until: Micros | None = None) -> bool:
        """The trial of another node is over; with `until`: only this trial. Returns whether it was there."""
        id = _of_node(worker, node)
        trial = self._trials.get(id)
        return trial is not None and until in (None, trial.only_until) and self._remove(id)

    def begin(self, task: Task, owner: str, attempt: int) -> None:
        """A suspect was reserved for this worker, as this attempt."""
        self._remove(task.id)
        now = self._now()
        only = min(SECOND << min(task.crashes - 1, 10), LONGEST_TRIAL)
        worker = task.routing.namespace, owner
        trial = Trial(worker, attempt, now + only, now + (only if task.crashes < STRICT else ALONE))
        self._trials[task.id] = trial
        self.by_worker.setdefault(worker, {})[task.id] = trial
        if self.on_begin is not None:
            self.on_begin()
        if self.on_trial is not None:
            self.on_trial(worker, only)

    def committed(self, changes: Iterable[TaskChange]) -> bool:
        """Apply committed changes of tasks. Returns whether a trial has ended with them."""
        ended = False
        for change in changes:
            trial = self._trials.get(change.task_id)
            task = change.task
            if trial is not None and (
                task is None
                or task.attempt > trial.attempt
                or (task.attempt == trial.attempt and task.state != "leased")
            ):
                ended |= self.end(change.task_id)
        return ended

    def end(self, task_id: str) -> bool:
        """The lease of this task has ended, or was not committed. Returns whether it was a trial."""
        trial = self._trials.get(task_id)
        if trial is not None and self.on_trial is not None:
            self.on_trial(trial.worker, 0)
        return self._remove(task_id)

    def _remove(self, task_id: str) -> bool:
        trial = self._trials.pop(task_id, None)
        if trial is None:
            return False
        others = self.by_worker[trial.worker]
        del others[task_id]
        if not others:
            del self.by_worker[trial.worker]
        return True


def _of_node(worker: Worker, node: int) -> str:
    """Under which id a worker is spared for another node."""
    return f"node {node}, {worker[0]} {worker[1]}"
