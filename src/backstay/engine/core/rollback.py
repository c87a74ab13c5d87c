"""Rollback of decisions that do not commit.

A decision does not commit because another process was first, because it could not be written, or because the database is
unavailable. The state and code that grew on it are thrown away, its reserved slots are freed, and its messages are decided
again, in order, or their callers get the error.

A decision is made on top of earlier ones that are still on their way to disk (`Engine.decide`). So one that fails takes
down every later decision of its instance: those that are open, and answers that wait for its commit. All their messages
are decided again on the state that is then on disk. Three things would go wrong otherwise. Kept state: the next
decision would build on events that no history has (mutant "state survives a failed commit"). Kept slots: a worker would
seem full for ever (mutant "room is not given back"). Lost messages: no worker repeats a report
(`tests/engine/test_batches.py`). A message with a request id is decided again together with the stored record of its
first attempt (`idempotency`), since the same request may have been committed by another process meanwhile.

If several messages share a decision that could not be written, one of them may be the cause. Then they are decided again one
by one (`one_by_one`), and only a message that fails alone is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from backstay.engine.core.batch import BatchEntry, Uncommitted
from backstay.engine.core.cache import CachedInstance, Reply
from backstay.engine.core.idempotency import NamedCommandLog, address_late, record_of, submit_late
from backstay.engine.core.lifecycle import EngineHooks, call_all
from backstay.engine.tasks.dispatch import Dispatcher
from backstay.engine.tasks.matching import Matching
from backstay.kernel.features.deadline import Due
from backstay.kernel.message import Message
from backstay.kernel.state import Instance
from backstay.kernel.task import Task
from backstay.kernel.views import log_ids
from backstay.store import Applied
from backstay.store.errors import Unavailable

log = logging.getLogger("backstay.engine")


class RollbackEngine(NamedCommandLog, Protocol):
    """The part of an engine that rollback uses."""

    down: Unavailable | None

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
        self.restless: set[int] = set()  # instances that were discarded while a decision of theirs is being written
        # Instances whose last decision could not be written. By name, because an instance that does not exist yet gets
        # another key with every attempt.
        self.one_by_one: set[tuple[str, str]] = set()

    def split_batch(self, batch: list[BatchEntry], applied: Applied) -> list[BatchEntry]:
        """Return the committed decisions; roll the others back, with everything that was decided on top of them."""
        committed: list[BatchEntry] = []
        lost: dict[int, list[BatchEntry]] = {}
        doomed: dict[int, CachedInstance] = {}
        unborn: set[int] = set()
        for position, item in enumerate(batch):
            error = applied.failed.get(position)
            if error is None and position not in applied.stale:
                committed.append(item)
                continue
            doomed[id(item.entry)] = item.entry
            if item.turn.after == 0:
                unborn.add(id(item.entry))
            if error is not None and len(item.messages) == 1:
                self._fail(item, error)
            else:
                if error is not None:
                    self.one_by_one.add(item.entry.instance.name)
                lost.setdefault(id(item.entry), []).append(item)
        for id_, entry in doomed.items():
            self.discard(entry, lost.get(id_, []), unborn=id_ in unborn)
        return committed

    def _fail(self, item: BatchEntry, error: Exception) -> None:
        self._undo(item)
        self.one_by_one.discard(
            item.entry.instance.name
        )  # the cause is found; later messages may share a decision again
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
        """Answer with the record of this request id if another attempt was committed meanwhile, else with the error."""
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
        log.error(
            "workflow %s: a decision could not be written: %r",
            instance.workflow_id,
            error,
            extra=log_ids.of_instance(instance),
        )
        if reply is not None:
            reply(None, error)

    def discard(self, entry: CachedInstance, lost: Sequence[BatchEntry] = (), *, unborn: bool = False) -> None:
        """Roll an instance back to its state on disk: forget its entry, and all decisions that are not committed.
        `unborn`: the decision that was to create it is not among `lost`, because its only message has failed.

        A turn folds its events into the state as they are recorded, and a fold cannot be undone. So the whole entry is
        dropped, with its live code, and both are built again from history when they are next needed. The order matters. The
        open turns leave the batch first, so that nothing called from here adds to them. Slots are given back before any
        message is decided again, or its own worker would seem full. The messages come last, in their old order, as if they
        had just arrived; messages that were refused, or answered without a write, are among them, because the answer was
        based on the dropped state. At the end the instance is reconciled: its next wake may have been in the dropped state.
        Tests:
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
        messages = [(message, reply) for message, reply, _, _ in answers]
        messages += [(message, reply) for item in items for message, reply, _, again in item.messages if again]
        # The decision was to create the instance. Either another process has created it: the messages are for that instance,
        # which has another key. Or no process has, and the next start does.
        creates = unborn or any(item.turn.after == 0 for item in items)
        for message, reply in messages:
            if creates and reply is not None:
                address_late(engine, instance.name, message, reply)
            else:
                submit_late(engine, instance.key, message, reply)
        engine.world.soon(lambda: engine.reconcile(instance.key))

    def _undo(self, item: BatchEntry, *, written: bool = False) -> None:
        """Free the slots that a decision had reserved. `written`: the decision may be on disk nevertheless."""
        self.release_slots([assignment.task for assignment in item.assignments], written=written)

    def release_slots(self, granted: Sequence[Task], *, written: bool = False) -> None:
        """Free the slots of these tasks: their leases will not be committed. `written`: they may be on disk. Then a poll waits
        until that is known, or it would get a second task; a lease of a worker with a link is ended when the database is back."""
        matching = self._matching
        for task in granted:
            executor = matching.executor_of(task.owner or "")
            if executor is not None:
                executor.give_back(task)
            if matching.remote_workers.release(task.id) is not None and written:
                matching.remote_workers.unsent.append(task)
            poll = matching.polls.take_reserved(task.id)
            if poll is not None and not poll.future.done():
                (matching.polls.doubt if written else matching.polls.park)(poll)
        self._dispatcher.on_unleased(granted)

    # -- when the database is unavailable

    def go_down(self, batch: list[BatchEntry], error: Unavailable) -> None:
        """The database cannot commit. Roll back everything that is not on disk; callers get the error, reports are deferred."""
        log.error("the database is unavailable: %s", error)
        engine = self._engine
        items = [*batch, *engine.stop_deciding(error)]
        for position, item in enumerate(items):
            entry = item.entry
            entry.open_batch_entry = None
            engine.discard_cached(entry)
            self._undo(item, written=position < len(batch))
            answers, entry.answers = entry.answers, []
            for message, reply, _, _ in answers:
                self.refuse_or_defer(entry.instance.key, message, reply, again=True)
        for item in items:
            for message, reply, _, again in item.messages:
                self.refuse_or_defer(item.entry.instance.key, message, reply, again)
        call_all(self._lifecycle.on_unavailable)

    def refuse_or_defer(self, key: int, message: Message, reply: Reply | None, again: bool) -> None:
        """Answer a message with the error of the outage, or keep it until the database is back."""
        if reply is not None:
            reply(None, self._engine.down)
        elif again and not isinstance(message, Due):
            # Wakes are read from disk again, with the time since when workers can report.
            self._deferred.append((key, message))

    def submit_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for key, message in deferred:
            self._engine.submit(key, message)
