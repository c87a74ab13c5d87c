"""Rollback: what happens to decisions that do not commit.

Another process was first, the decision could not be written, or the database is gone. The state and code that grew on such a
decision are thrown away, its reserved slots are freed, and its messages are decided again, in order, or their callers get the
error.

A decision is made on top of earlier ones that are still on their way to disk (`Engine.decide`). So one that fails takes down
every later decision of its instance: those that are open, and answers that wait for its commit. All their messages are decided
again on the state that is on disk by then. Three things would go wrong otherwise. Kept state: the next decision would build on
events that no history has (mutant "state survives a failed commit"). Kept slots: a worker would seem full for ever (mutant "room is
not given back"). Forgotten messages: a report is the only word about its work, and no worker repeats it
(`tests/engine/test_batches.py`). What may be a repetition by the time it is decided again is decided with the stored record of its
first attempt (`idempotency`), since the attempt that failed here may have been committed elsewhere.

If several messages share the decision that could not be written, one of them may be to blame. Then they are decided again one
by one (`one_by_one`), and only the one that fails alone is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from backstay.engine.batch import BatchEntry, Uncommitted
from backstay.engine.cache import CachedInstance, Reply
from backstay.engine.dispatch import Dispatcher
from backstay.engine.idempotency import CommandLog, record_of, submit_late
from backstay.engine.lifecycle import EngineHooks, call_all
from backstay.engine.matching import Matching
from backstay.kernel.features.deadline import Due
from backstay.kernel.message import Message
from backstay.kernel.state import Instance
from backstay.kernel.task import Task
from backstay.store import Applied, Unavailable

log = logging.getLogger("backstay.engine")


class RollbackEngine(CommandLog, Protocol):
    """The part of an engine that rollback uses."""

    down: Unavailable | None

    def address(self, namespace: str, workflow_id: str, message: Message, reply: Reply) -> None: ...
    async def key_of(self, namespace: str, workflow_id: str) -> int | None: ...
    def reconcile(self, key: int) -> None: ...
    def discard_cached(self, entry: CachedInstance) -> None: ...
    def stop_deciding(self, error: Unavailable) -> list[BatchEntry]: ...


class Rollback:
    def __init__(
        self,
        engine: RollbackEngine,
        uncommitted: Uncommitted,
        matching: Matching,
        dispatcher: Dispatcher,
        lifecycle: EngineHooks,
    ) -> None:
        self._engine = engine
        self._uncommitted = uncommitted
        self._matching = matching
        self._dispatcher = dispatcher
        self._lifecycle = lifecycle
        self._deferred: list[tuple[int, Message]] = []  # reports that wait for the database
        self.restless: set[int] = set()  # discarded while something of theirs is on its way to disk
        # Instances of which a decision could not be written. By name, because one that does not exist yet gets another key
        # with every attempt.
        self.one_by_one: set[tuple[str, str]] = set()

    def split_batch(self, batch: list[BatchEntry], applied: Applied) -> list[BatchEntry]:
        """Return the committed decisions; roll the others back, with everything that was decided on top of them."""
        committed: list[BatchEntry] = []
        lost: dict[int, list[BatchEntry]] = {}
        doomed: dict[int, CachedInstance] = {}
        for position, item in enumerate(batch):
            error = applied.failed.get(position)
            if error is None and position not in applied.stale:
                committed.append(item)
                continue
            doomed[id(item.entry)] = item.entry
            if error is not None and len(item.messages) == 1:
                self._fail(item, error)
            else:
                if error is not None:
                    self.one_by_one.add(item.entry.instance.name)
                lost.setdefault(id(item.entry), []).append(item)
        for id_, entry in doomed.items():
            self.discard(entry, lost.get(id_, []))
        return committed

    def _fail(self, item: BatchEntry, error: Exception) -> None:
        self._undo(item)
        self.one_by_one.discard(item.entry.instance.name)  # this was the one to blame; the others may go together again
        ((message, reply, _, _),) = item.messages
        if message.idempotency_key() is None:
            self._refuse(item.entry.instance, reply, error)
        else:
            self._engine.world.spawn(
                self._answer_by_record(item.entry.instance, message, reply, error), "backstay-recall"
            )

    async def _answer_by_record(
        self, instance: Instance, message: Message, reply: Reply | None, error: Exception
    ) -> None:
        """A request id has one record. Another attempt may have left it meanwhile: then that is the answer."""
        try:
            record = await record_of(self._engine, instance.key, message)
        except Exception as unknown:
            self._refuse(instance, reply, unknown)
            return
        if record is None:
            self._refuse(instance, reply, error)
        else:
            self._engine.submit(instance.key, message.with_record(record), reply)

    def _refuse(self, instance: Instance, reply: Reply | None, error: Exception) -> None:
        log.error("a decision for workflow %s could not be written: %r", instance.workflow_id, error)
        if reply is not None:
            reply(None, error)

    def discard(self, entry: CachedInstance, lost: Sequence[BatchEntry] = ()) -> None:
        """Roll an instance back to what is on disk: forget its entry, and all decisions that are not committed.

        A turn folds its events into the state as it goes, and there is no way to take one back; so the whole entry goes,
        with its live code, and both are built again from history when they are next needed. The order matters. The open
        turns leave the batch first, so that nothing that is called from here adds to them. Slots are given back before any
        message is decided again, or that finds its own worker full. The messages come last, in their old order, as if they
        had just arrived; those that were only refused or answered come with them, because the answer was based on what is
        gone. At the end the instance is looked at: what woke it may have been in the state that is gone. Tests:
        `test_a_message_that_cannot_be_written_fails_alone`,
        `test_a_report_on_its_way_that_turns_out_stale_is_not_taken_for_lost_work`, and the simulator's mutants "state
        survives a failed commit" and "room is not given back".
        """
        engine = self._engine
        items = [*lost, *self._uncommitted.take_open(entry)]
        entry.open_batch_entry = None
        engine.discard_cached(entry)
        for item in items:
            self._undo(item)
        instance = entry.instance
        if self._uncommitted.is_writing(entry):
            self.restless.add(instance.key)
        answers, entry.answers = entry.answers, []
        asked = [(message, reply) for message, reply, _, _ in answers]
        asked += [(message, reply) for item in items for message, reply, _, again in item.messages if again]
        # It was to create the instance, and another process has: its messages, later ones too, are for that instance.
        unborn = any(item.turn.after == 0 for item in items)
        for message, reply in asked:
            if unborn and reply is not None:
                engine.world.spawn(self._address_again(instance, message, reply), "backstay-again")
            else:
                submit_late(engine, instance.key, message, reply)
        engine.world.soon(lambda: engine.reconcile(instance.key))

    async def _address_again(self, instance: Instance, message: Message, reply: Reply) -> None:
        try:
            key = await self._engine.key_of(instance.namespace, instance.workflow_id)
            if key is None:
                self._engine.address(instance.namespace, instance.workflow_id, message, reply)
            else:
                submit_late(self._engine, key, message, reply)
        except Exception as error:
            reply(None, error)

    def _undo(self, item: BatchEntry) -> None:
        """Free what a decision had reserved outside its rows."""
        self.release_slots([assignment.task for assignment in item.assignments])

    def release_slots(self, granted: Sequence[Task]) -> None:
        """The leases of these tasks come to nothing: their workers have room for others."""
        matching = self._matching
        for task in granted:
            executor = matching.executor_of(task.owner or "")
            if executor is not None:
                executor.give_back(task)
            matching.remote_workers.release(task.id)
            poll = matching.polls.take_reserved(task.id)
            if poll is not None and not poll.future.done():
                matching.polls.park(poll)
        self._dispatcher.on_unleased(granted)

    # -- when the database is gone

    def go_down(self, batch: list[BatchEntry], error: Unavailable) -> None:
        """The database cannot commit. Undo everything that is not on disk; callers get the error, our own reports wait."""
        log.error("the database is unavailable: %s", error)
        engine = self._engine
        items = [*batch, *engine.stop_deciding(error)]
        for item in items:
            entry = item.entry
            entry.open_batch_entry = None
            engine.discard_cached(entry)
            self._undo(item)
            answers, entry.answers = entry.answers, []
            for message, reply, _, _ in answers:
                self.refuse_or_defer(entry.instance.key, message, reply, again=True)
        for item in items:
            for message, reply, _, again in item.messages:
                self.refuse_or_defer(item.entry.instance.key, message, reply, again)
        call_all(self._lifecycle.on_unavailable)

    def refuse_or_defer(self, key: int, message: Message, reply: Reply | None, again: bool) -> None:
        if reply is not None:
            reply(None, self._engine.down)
        elif again and not isinstance(message, Due):
            # A wake is read from disk again, and knows by then since when workers can report.
            self._deferred.append((key, message))

    def submit_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for key, message in deferred:
            self._engine.submit(key, message)
