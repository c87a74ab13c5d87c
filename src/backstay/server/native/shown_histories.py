"""The part of a history that a worker gets: with a workflow task, a query, or the answer to its report.

A worker keeps the live code of its sticky runs between tasks, so it needs only the events after those it has seen. Both
sides must mean the same history: the worker compares length and checksum, and reads from the beginning if they differ.
"""

from __future__ import annotations

from backstay.engine.core.cache import CachedInstance
from backstay.engine.core.engine import Engine
from backstay.engine.reading.history_pages import fitting, read_page, size_of
from backstay.engine.tasks.remote_workers import RemoteWorker, StickyRun
from backstay.kernel.event import Recorded
from backstay.kernel.features.workflow_task import WorkflowAssignment, events_shown
from backstay.protocol.native import worker as wire
from backstay.protocol.native.events import pack
from backstay.server.workers.remote_queries import PendingQuery

Sized = tuple[wire.TaskLease, int]
"""A delivery, and the bytes of its history."""


class ShownHistories:
    """The histories that one worker is sent, at most `page_bytes` of each at a time.

    `quiet`: types of events that are of no use to live code. It is not sent them.
    """

    def __init__(self, engine: Engine, station: RemoteWorker, page_bytes: int, quiet: frozenset[str]) -> None:
        self._engine = engine
        self._station = station
        self._page_bytes = page_bytes
        self._quiet = quiet

    def from_memory(self, entry: CachedInstance, assignment: WorkflowAssignment) -> Sized | None:
        """A workflow task with the events that the worker's sticky run has not seen; None: they must be read from disk.

        Events may be sent alone only if no other code has decided anything since: code is never sent its own decisions, so
        those of another worker's code would be missing (mutant "live code goes on after what another worker decided";
        `test_live_code_is_not_asked_to_go_on_after_what_another_worker_decided`).
        """
        sticky = self._station.live.get(assignment.run_key)
        after = 0 if sticky is None else sticky.length
        unseen = entry.unseen_after(assignment.run_key, after)
        if unseen is None:
            entry.restart_unseen()
        elif not entry.dead:
            reached = unseen[0].sequence == after + 1 if unseen else assignment.last_sequence <= after
            passed = sticky is not None and any(e.context.decided_after is not None for e in unseen)
            size = size_of(unseen)
            if reached and not passed and (size <= self._page_bytes or len(unseen) == 1):
                return self._lease(assignment, sticky, events_shown(assignment, unseen), False), size
        return None

    async def from_disk(self, assignment: WorkflowAssignment) -> Sized:
        """A workflow task with its history from the beginning, or the first page of it."""
        store = self._engine.store
        if assignment.task.history_limit is not None:
            shown = events_shown(assignment, await store.history(assignment.run_key))
            events = fitting(shown, self._page_bytes)
            more = len(events) < len(shown)
        else:
            last = assignment.last_sequence
            events = await read_page(store, assignment.run_key, 0, last, self._page_bytes)
            more = bool(events) and events[-1].sequence < last
        return self._lease(assignment, None, events, more), size_of(events)

    def _lease(
        self, assignment: WorkflowAssignment, sticky: StickyRun | None, events: list[Recorded], more: bool
    ) -> wire.TaskLease:
        task = assignment.task
        quiet = self._quiet
        after = 0 if sticky is None else sticky.length
        sent = events if sticky is None else [e for e in events if e.type not in quiet]
        return wire.TaskLease(
            task.id,
            task.attempt,
            task.workflow,
            assignment.run_key,
            assignment.workflow_id,
            assignment.run_id,
            assignment.run_number,
            assignment.run_status,
            assignment.workflow_type,
            assignment.last_sequence,
            assignment.cursor,
            task.history_limit,
            task.resume,
            after,
            0 if sticky is None else sticky.checksum,
            len(events),
            events[-1].sequence if events else after,
            more,
            pack(sent),
        )

    def query(self, question: PendingQuery) -> tuple[wire.QueryTask, int]:
        """A query with the history that it is about, and the bytes of that."""
        events = fitting(question.history, self._page_bytes)
        more = len(events) < len(question.history)
        task = wire.QueryTask(question.id, question.attempt, question.inquiry, pack(events), more)
        return task, size_of(events)

    def sticky_state(self, entry: CachedInstance, run: int, seen: int, reports: int) -> wire.StickyState | None:
        """How far live code that has just reported is in its history, with the events that it has not seen.

        None: the code is no longer sticky. That is also so if the events are more than the report's part of a reply to
        `reports` reports: the run's next task is then sent its whole history.
        """
        current = entry.instance.run
        workers = self._engine.matching.remote_workers
        unseen = entry.unseen_after(run, seen)
        if entry.dead or current is None or current.key != run or not current.is_open or unseen is None:
            workers.unstick(run, self._station)
            return None
        entry.restart_unseen()
        if current.length - seen != len(unseen) or size_of(unseen) > self._page_bytes // reports:
            workers.unstick(run, self._station)
            return None
        workers.stick(run, self._station, StickyRun(current.length, current.checksum))
        sent = [e for e in unseen if e.type not in self._quiet]
        return wire.StickyState(current.length, current.checksum, len(unseen), pack(sent))

    def unstick(self, run: int) -> None:
        """Send the run's next task its whole history: its live code differs from history."""
        self._engine.matching.remote_workers.unstick(run, self._station)
