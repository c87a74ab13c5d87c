"""Inline code: workflow code that runs on the engine's own thread, right before a batch is sealed.

So its commands share the commit of the message that woke it. Live code gets the events it has not seen from memory
(`unseen_events`); cold code gets its whole history: the events on disk, then the uncommitted ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Protocol

from backstay.engine.core.batch import Uncommitted
from backstay.engine.core.cache import Cache, CachedInstance, Reply
from backstay.engine.core.world import World
from backstay.engine.tasks.matching import Matching
from backstay.engine.tasks.refused_completions import Submits, note_refusal
from backstay.engine.tasks.workers import COLD, Executor, TaskHeld
from backstay.kernel.event import HistoryDamaged, Recorded
from backstay.kernel.features.lease import Claim, Offer
from backstay.kernel.features.workflow_task import (
    CompleteWorkflowTask,
    FailWorkflowTask,
    WorkflowAssignment,
    events_shown,
)
from backstay.kernel.machine import Machine
from backstay.kernel.message import Message, Refused
from backstay.kernel.state import Run
from backstay.kernel.task import Lease
from backstay.kernel.values import LEASE
from backstay.kernel.views import log_ids
from backstay.store import Ready, Store
from backstay.store.errors import Unavailable

log = logging.getLogger("backstay.engine")

TASK_REPORTS = (CompleteWorkflowTask, FailWorkflowTask)
BURST = 512  # activations of workflow code between two commits


class InlineEngine(Submits, Protocol):
    """The part of an engine that inline code uses."""

    down: Unavailable | None

    def decide(
        self,
        entry: CachedInstance,
        message: Message,
        reply: Reply | None,
        again: bool,
        refused: Callable[[CachedInstance, Any, Reply | None, Any, BaseException | None], None] | None = None,
    ) -> None: ...
    def submit_later(self, key: int, message: Message) -> None: ...
    def reconcile(self, key: int) -> None: ...
    def discard(self, entry: CachedInstance) -> None: ...
    def owns(self, key: int) -> bool: ...
    def keep_or_evict(self, entry: CachedInstance) -> None: ...
    def keep_flushing(self) -> None: ...


class InlineCode:
    def __init__(
        self,
        engine: InlineEngine,
        world: World,
        store: Store,
        machine: Machine,
        cache: Cache,
        matching: Matching,
        uncommitted: Uncommitted,
    ) -> None:
        self._engine = engine
        self._world = world
        self._store = store
        self._machine = machine
        self._cache = cache
        self._matching = matching
        self._uncommitted = uncommitted
        self.due: deque[tuple[CachedInstance, str, Executor]] = deque()
        self._executing: dict[str, asyncio.Future[Any]] = {}  # callers of `execute`, by task
        self._fetching: dict[
            CachedInstance, dict[str, Executor]
        ] = {}  # cold code whose history is being read, with its tasks
        self._stolen: dict[str, CachedInstance] = {}  # due tasks of other processes' instances
        self._reports_stopped = False
        self._held: dict[int, asyncio.Future[Any]] = {}  # callers of `execute` whose task is held, by instance

    def steal(self, entry: CachedInstance, task_id: str, executor: Executor) -> None:
        """Queue the code of a task whose instance another process owns."""
        self._stolen[task_id] = entry
        self.due.append((entry, task_id, executor))

    def is_about_to_run(self, entry: CachedInstance) -> bool:
        """Whether code of an instance that another process owns is about to run here: until then the instance is kept."""
        return entry in self._fetching or entry in self._stolen.values()

    def clear(self) -> None:
        """Run nothing that is due: the database is unavailable."""
        self.due.clear()
        self._stolen.clear()

    def run(self) -> None:
        """Run the code of all due tasks, up to a limit."""
        due = self.due
        if not due:
            return
        with self._matching.burst():
            for _ in range(BURST):  # code that wakes itself at once must not delay the commit of others for ever
                if not due:
                    return
                entry, task_id, executor = due.popleft()
                is_stolen = self._stolen.pop(task_id, None) is not None
                if not is_stolen and not self._engine.owns(entry.instance.key):
                    continue  # another process owns it by now, and finds the task's row
                try:
                    self._activate(entry, task_id, executor)
                except HistoryDamaged as damage:
                    log.error(
                        "%s", damage, extra=log_ids.of_damage(damage)
                    )  # this run stays where it is; the rest of the batch goes on
                except Unavailable as error:
                    self._cannot_replay(entry, task_id, error)
                if is_stolen and not entry.inflight:
                    self._engine.keep_or_evict(entry)
        if due:
            self._engine.keep_flushing()

    def _activate(self, entry: CachedInstance, task_id: str, executor: Executor) -> None:
        """Run the code of a task that was due when it was queued, unless the task has changed since then.

        The exits, in this order: its entry was dropped; another worker has the task, or it is gone; its type has moved to a
        thread of its own; its code is cold and its history has to be read first.
        """
        instance = entry.instance
        item = entry.open_batch_entry
        task = instance.tasks.get(task_id) if item is None else item.turn.task(task_id)
        if entry.dead:
            # Evicted or rolled back: its due tasks are found from its rows.
            self._engine.reconcile(instance.key)
            return
        if entry.code_is_busy or task is None or task.state != "ready":
            return
        if not executor.inline(task.kind, task.type):
            if task_id in instance.tasks:  # otherwise sealing this turn creates the task and offers it
                self._engine.submit(instance.key, Offer(task_id=task_id))
            return
        run = instance.run
        assert run is not None, "a task is of a run"
        assignment = self._machine.assign(instance, task)
        result: Any = COLD
        if entry.unseen_events is not None:
            result = self._show(entry, entry.unseen_events, run, assignment, executor)
        if result is COLD:
            history = self._store.history(run.key)
            if not isinstance(history, Ready):
                if task_id not in instance.tasks:
                    return  # this commit writes its row, and then it is offered again
                self._fetch(entry, task_id, executor, history)
                return
            result = self._replay(entry, run, assignment, history.value, executor)
        self._activated(entry, task_id, executor, result)

    def _fetch(
        self, entry: CachedInstance, task_id: str, executor: Executor, history: Awaitable[list[Recorded]]
    ) -> None:
        """Read the history of cold code, once for all its due tasks."""
        waiting = self._fetching.get(entry)
        if waiting is not None:
            waiting[task_id] = executor
            return
        self._fetching[entry] = {task_id: executor}
        # The read returns the events that are on disk now. Uncommitted ones, and those decided during the read, come after.
        entry.unseen_events = self._uncommitted.events(entry)
        self._world.spawn(self._fetched(entry, history), "backstay-history")

    async def _fetched(self, entry: CachedInstance, history: Awaitable[list[Recorded]]) -> None:
        """The history of cold code was read: queue its tasks again."""
        committed: list[Recorded] = []
        error: Exception | None = None
        try:
            committed = await history
        except (HistoryDamaged, Unavailable) as failed:
            error = failed
        if error is None:
            error = self._engine.down  # since the read began: nothing is decided until the database is back
        if error is not None:
            entry.unseen_events = None
            waiting = self._fetching.pop(entry)
            if isinstance(error, Unavailable):
                for task_id in waiting:
                    self._cannot_replay(entry, task_id, error)
            else:
                log.error("%s", error)
            if not entry.inflight:
                self._engine.keep_or_evict(entry)
            return
        waiting = self._fetching.pop(entry)
        if not entry.dead:
            run = entry.instance.current
            whole = _joined(run, committed, entry.unseen_events or ())
            if whole is None or len(whole) != run.length or (whole and whole[-1].checksum != run.checksum):
                entry.unseen_events = None
                for task_id in waiting:
                    self._outdated(entry, task_id)
                return
            entry.unseen_events = whole
        for task_id, executor in waiting.items():
            if not self._engine.owns(entry.instance.key):
                self._stolen[task_id] = entry
            self.due.append((entry, task_id, executor))
        self._engine.keep_flushing()

    def _cannot_replay(self, entry: CachedInstance, task_id: str, error: Unavailable) -> None:
        log.error(
            "workflow %s cannot be replayed now: %s",
            entry.instance.workflow_id,
            error,
            extra=log_ids.of_instance(entry.instance),
        )
        self._engine.submit_later(entry.instance.key, Offer(task_id=task_id))

    def _replay(
        self,
        entry: CachedInstance,
        run: Run,
        assignment: WorkflowAssignment,
        committed: list[Recorded],
        executor: Executor,
    ) -> Any:
        """Show cold code its whole history. `COLD` if that is not the history its state was folded from."""
        whole = self._whole(entry, run, committed)
        if whole is None or (whole and whole[-1].checksum != run.checksum):
            return COLD
        entry.unseen_events = whole
        return self._show(entry, whole, run, assignment, executor)

    def _show(
        self,
        entry: CachedInstance,
        unseen: list[Recorded],
        run: Run,
        assignment: WorkflowAssignment,
        executor: Executor,
    ) -> Any:
        """Run code on the events that it has not seen and that this task may see; the rest stays for a later task."""
        # Earlier runs of the chain may have left events of their own in the list.
        mine = unseen if run.number == 1 else [e for e in unseen if e.run == run.key]
        shown = events_shown(assignment, mine)
        result = executor.activate(assignment, shown, run.length - len(mine))
        if result is COLD:
            return COLD
        if shown is mine:
            entry.unseen_events = []
        else:
            seen = {e.sequence for e in shown}
            entry.unseen_events = [e for e in mine if e.sequence not in seen]
        return result

    def _whole(self, entry: CachedInstance, run: Run, committed: list[Recorded]) -> list[Recorded] | None:
        """A run's whole history: the events on disk, then the uncommitted ones. None if these do not fit."""
        return committed if entry.inflight == 0 else _joined(run, committed, self._uncommitted.events(entry))

    def _activated(self, entry: CachedInstance, task_id: str, executor: Executor, result: Any) -> None:
        if result is COLD:
            self._outdated(entry, task_id)
            return
        future = self._executing.pop(task_id, None) if self._executing else None
        if isinstance(result, TaskHeld):
            entry.code_is_busy = True
            if future is not None:
                self._held[entry.instance.key] = future
            start = result.start
            # In a shard of another process a lease has an end (`guest_leases.py`).
            until = None if self._engine.owns(entry.instance.key) else self._world.now() + LEASE
            lease = Lease(owner=executor.owner, until=until)
            self._engine.decide(entry, Claim(task_id=task_id, lease=lease), lambda _v, e: start(e), False)
            return
        reply = None if future is None else partial(_settle, future)
        self._engine.decide(entry, result, reply, False, self._refused)

    def _outdated(self, entry: CachedInstance, task_id: str) -> None:
        """Drop an instance whose history on disk is not the one its state was folded from: another process has changed it."""
        self._engine.discard(entry)
        future = self._executing.pop(task_id, None)
        if future is not None:
            future.set_exception(Refused("task_not_claimable", f"workflow {entry.instance.workflow_id!r} has changed"))

    def _refused(
        self,
        entry: CachedInstance,
        message: CompleteWorkflowTask | FailWorkflowTask,
        reply: Reply | None,
        value: Any,
        error: BaseException | None,
    ) -> None:
        """Drop live code whose completion was refused: it is ahead of its history."""
        if isinstance(error, Refused):
            log.warning(
                "workflow %s: its completion was refused: %s",
                entry.instance.workflow_id,
                error,
                extra=log_ids.of_instance(entry.instance),
            )
            self._engine.discard(entry)
            if isinstance(message, CompleteWorkflowTask):
                note_refusal(self._engine, entry.instance.key, message, error)
        if reply is not None:
            reply(value, error)

    async def execute(self, key: int, task_id: str) -> Any:
        """Run one ready workflow task on this process's executor and answer when its outcome is on disk."""
        future: asyncio.Future[Any] = self._world.future()

        def offered(value: Any, error: BaseException | None) -> None:
            if error is not None:
                future.set_exception(error)
            elif (entry := self._cache.get(key)) is None or task_id not in entry.instance.tasks:
                future.set_exception(Refused("task_not_claimable", f"task {task_id} was taken meanwhile"))
            else:
                self._execute_now(entry, task_id, future)

        self._engine.submit(key, Offer(task_id=task_id, quiet=True), offered)
        return await future

    def _execute_now(self, entry: CachedInstance, task_id: str, future: asyncio.Future[Any]) -> None:
        task = entry.instance.tasks[task_id]
        executor = self._matching.manual
        if executor is None or not executor.serves(task):
            message = f"no worker of this process runs {task.type!r}"
            reason = "workflow_type_not_registered"
            routing = task.routing
            if executor is not None and executor.runs(task.kind, task.type, routing.namespace, routing.queue, None):
                reason = "compatibility_blocked"
                message += f" marked {routing.compatibility!r}"
            future.set_exception(Refused(reason, message))
            return
        self._executing[task_id] = future
        self._activate(entry, task_id, executor)

    def report(self, key: int, message: Message, reply: Reply | None) -> None:
        """Submit the report of a worker in this process. A caller of `execute` whose task was held gets its outcome."""
        if self._reports_stopped:
            return
        if not isinstance(message, TASK_REPORTS):
            self._engine.submit(key, message, reply)
            return
        future = self._held.pop(key, None)

        def reported(value: Any, error: BaseException | None) -> None:
            if isinstance(message, CompleteWorkflowTask):
                note_refusal(self._engine, key, message, error)
            if reply is not None:
                reply(value, error)
            _settle(future, value, error)

        self._engine.submit(key, message, reported)

    def stop_reports(self) -> None:
        """The worker of this process has stopped: ignore the reports of code and activities that still run."""
        self._reports_stopped = True

    def given_up(self, key: int) -> None:
        """The code of a held task will not report: the task is offered again."""
        _settle(self._held.pop(key, None), None, Refused("task_not_claimable", "the code was given up half-way"))
        self._engine.reconcile(key)

    def release_hold(self, entry_key: int) -> None:
        """The code of this instance has ended its task and reported."""
        entry = self._cache.get(entry_key)
        if entry is not None:
            entry.code_is_busy = False


def _joined(run: Run, committed: list[Recorded], later: Iterable[Recorded]) -> list[Recorded] | None:
    """A run's events from disk, followed by those of `later` that come after them. None if another process has written
    others in their place: the decisions on them will not be written."""
    last = len(committed)
    mine = [e for e in later if e.run == run.key]
    if any(e.checksum != committed[e.sequence - 1].checksum for e in mine if e.sequence <= last):
        return None
    return [*committed, *{e.sequence: e for e in mine if e.sequence > last}.values()]


def _settle(future: asyncio.Future[Any] | None, value: Any, error: BaseException | None) -> None:
    if future is not None and not future.done():
        future.set_result(value) if error is None else future.set_exception(error)
