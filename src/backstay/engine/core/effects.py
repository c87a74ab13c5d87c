"""Effects: the replies, sends and dispatches of a decision that is on disk now.

Leased tasks go to their workers, callers get their replies, messages to other instances leave the outbox, and waiters are
notified. None of this happens earlier: until its commit a decision may still be rolled back (`Engine.decide`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Protocol

from backstay.engine.core.batch import BatchEntry
from backstay.engine.core.cache import CachedInstance
from backstay.engine.core.outbox import Outbox
from backstay.engine.core.refusals import Refusals
from backstay.engine.core.rollback import Rollback
from backstay.engine.core.waiters import ENDED, Waiters
from backstay.engine.tasks.dispatch import Dispatcher
from backstay.engine.tasks.leases import Leases, Queue
from backstay.engine.tasks.matching import Matching
from backstay.engine.tasks.refused_completions import Submits
from backstay.engine.tasks.remote_workers import RemoteWorker
from backstay.kernel.decision import Decision
from backstay.kernel.views import log_ids

log = logging.getLogger("backstay.engine")


class EffectsEngine(Submits, Protocol):
    """The part of an engine that effects use."""

    def owns(self, key: int) -> bool: ...
    def keep_or_evict(self, entry: CachedInstance) -> None: ...


class Effects:
    def __init__(
        self,
        engine: EffectsEngine,
        matching: Matching,
        leases: Leases,
        dispatcher: Dispatcher,
        outbox: Outbox,
        waiters: Waiters,
        rollback: Rollback,
        refusals: Refusals,
    ) -> None:
        self._engine = engine
        self._matching = matching
        self._leases = leases
        self._dispatcher = dispatcher
        self._outbox = outbox
        self._waiters = waiters
        self._rollback = rollback
        self._refusals = refusals

    def carry_out(self, item: BatchEntry) -> None:
        """The decision of this entry is on disk: do everything that waited for it."""
        entry = item.entry
        decision = item.decision
        assert decision is not None, "a decision on disk was sealed"
        entry.inflight -= 1
        entry.on_disk = True
        freed: Sequence[Queue] = ()
        roomier: Collection[RemoteWorker] = ()
        if decision.withdrawn and not decision.closed:  # executors and links learn of the end of a run as such
            self._dispatcher.withdraw(decision.withdrawn)
        if decision.tasks:
            freed = self._leases.committed(decision.tasks)
            matching = self._matching
            if matching.lanes.waiting:
                matching.lanes.remove_closed(decision.tasks, entry.instance.tasks)
            if matching.remote_workers.by_task:
                roomier = matching.remote_workers.on_commit(decision.tasks, bool(decision.closed))
            if matching.isolation.by_worker and matching.isolation.committed(decision.tasks):
                self._dispatcher.on_trial_ended()
        for assignment in item.assignments:
            self._dispatcher.deliver(entry, assignment)
        if freed or roomier:
            self._dispatcher.serve_freed(freed, roomier)
        for _, reply, value, _ in item.messages:
            if reply is not None:
                try:
                    reply(value, None)
                except Exception:
                    log_failed_effect(entry)
        if decision.sends:
            self._outbox.dispatch_all(entry, decision.sends)
        for topic, news in decision.notifications:
            self._waiters.notify(entry.instance.key, topic, news)
        if decision.closed:
            self._close_runs(entry, decision)
        subscribed = self._waiters.on_commit
        if subscribed and entry.instance.key in subscribed:
            for committed in tuple(subscribed[entry.instance.key]):
                committed(entry.instance)
        if entry.inflight == 0:
            if self._rollback.one_by_one:
                self._rollback.one_by_one.discard(entry.instance.name)
            if entry.answers:
                self._send_answers(entry)
            else:
                self._engine.keep_or_evict(entry)

    def _send_answers(self, entry: CachedInstance) -> None:
        """The commits are on disk that these answers are based on."""
        answers, entry.answers = entry.answers, []
        owned = self._engine.owns(entry.instance.key)
        if owned:
            for message, reply, value, error in answers:
                try:
                    if reply is not None:
                        # Another process may have written on top of these commits before this one heard of them.
                        self._refusals.tell(entry, message, reply, value, error)
                except Exception:
                    log_failed_effect(entry)
        self._engine.keep_or_evict(entry)
        if not owned:
            # Its owner may have changed the instance during this commit: a message that wrote nothing is decided again
            # on the state on disk.
            for message, reply, _, _ in answers:
                self._engine.submit(entry.instance.key, message, reply)

    def _close_runs(self, entry: CachedInstance, decision: Decision) -> None:
        for executor in self._matching.executors:
            for run_id in decision.closed:
                executor.closed(run_id)
        if decision.ended is not None:
            self._waiters.notify(entry.instance.key, ENDED, decision.ended)


def log_failed_effect(entry: CachedInstance) -> None:
    """The decision stays on disk, and the effects of others go on."""
    log.exception(
        "workflow %s: an effect of a committed decision failed",
        entry.instance.workflow_id,
        extra=log_ids.of_instance(entry.instance),
    )
