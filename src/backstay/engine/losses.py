"""When a decision does not become fact: another process was first, it could not be written, or the database is gone.

State and code that grew on it are thrown away; its messages are decided again, in order, or their callers are told.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from backstay.engine.batch import Item
from backstay.engine.cache import Entry, Reply
from backstay.engine.idempotency import record_of, submit_late
from backstay.kernel.features.deadline import Due
from backstay.kernel.message import Message
from backstay.kernel.state import Workflow
from backstay.kernel.task import Task
from backstay.store import Applied, Unavailable

if TYPE_CHECKING:
    from backstay.engine.engine import Engine

log = logging.getLogger("backstay.engine")


class Losses:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._deferred: list[tuple[int, Message]] = []
        self.restless: set[int] = set()  # given up while something of theirs is on its way to disk
        # Instances of which a decision could not be written: one message at a time. By name, because one that does not
        # exist yet gets another key with every try.
        self.careful: set[tuple[str, str]] = set()

    def take_apart(self, batch: list[Item], applied: Applied) -> list[Item]:
        """Keep what was committed; for the rest drop state and code, and decide their messages again, in order."""
        committed: list[Item] = []
        lost: dict[int, list[Item]] = {}
        doomed: dict[int, Entry] = {}
        for position, item in enumerate(batch):
            error = applied.failed.get(position)
            if error is None and position not in applied.stale:
                committed.append(item)
                continue
            doomed[id(item.entry)] = item.entry
            if error is not None and len(item.asked) == 1:
                self._fail(item, error)
            else:
                if error is not None:
                    self.careful.add(item.entry.flow.name)
                lost.setdefault(id(item.entry), []).append(item)
        for id_, entry in doomed.items():
            self.discard(entry, lost.get(id_, []))
        return committed

    def _fail(self, item: Item, error: Exception) -> None:
        self._undo(item)
        self.careful.discard(item.entry.flow.name)  # this was the one; what came with it may go together again
        ((message, reply, _, _),) = item.asked
        if message.repeats() is None:
            self._refuse(item.entry.flow, reply, error)
        else:
            self._engine.world.spawn(self._answer_by_record(item.entry.flow, message, reply, error), "backstay-recall")

    async def _answer_by_record(self, flow: Workflow, message: Message, reply: Reply | None, error: Exception) -> None:
        """A request id has one record. While this try looked for one, another may have left it: then that is the answer."""
        try:
            record = await record_of(self._engine, flow.key, message)
        except Exception as unknown:
            self._refuse(flow, reply, unknown)
            return
        if record is None:
            self._refuse(flow, reply, error)
        else:
            self._engine.submit(flow.key, message.recalling(record), reply)

    def _refuse(self, flow: Workflow, reply: Reply | None, error: Exception) -> None:
        log.error("a decision for workflow %s could not be written: %r", flow.workflow_id, error)
        if reply is not None:
            reply(None, error)

    def discard(self, entry: Entry, lost: Sequence[Item] = ()) -> None:
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
        items = [*lost, *(item for item in engine.open if item.entry is entry)]
        engine.open = [item for item in engine.open if item.entry is not entry]
        entry.open = None
        engine.cache.drop(entry)
        engine.forget_code(entry)
        for item in items:
            self._undo(item)
        flow = entry.flow
        if any(item.entry is entry for item in engine.batch):
            self.restless.add(flow.key)
        answers, entry.answers = entry.answers, []
        asked = [(message, reply) for message, reply, _, _ in answers]
        asked += [(message, reply) for item in items for message, reply, _, again in item.asked if again]
        # It was to create the instance, and somebody else has: whatever was said to ours, later as well, is for theirs.
        unborn = any(item.turn.after == 0 for item in items)
        for message, reply in asked:
            if unborn and reply is not None:
                engine.world.spawn(self._address_again(flow, message, reply), "backstay-again")
            else:
                submit_late(engine, flow.key, message, reply)
        engine.world.soon(lambda: engine.reconcile(flow.key))

    async def _address_again(self, flow: Workflow, message: Message, reply: Reply) -> None:
        try:
            key = await self._engine.key_of(flow.namespace, flow.workflow_id)
            if key is None:
                self._engine.address(flow.namespace, flow.workflow_id, message, reply)
            else:
                submit_late(self._engine, key, message, reply)
        except Exception as error:
            reply(None, error)

    def _undo(self, item: Item) -> None:
        """Give back what a decision had promised outside its rows."""
        self.give_back([assignment.task for assignment in item.assignments])

    def give_back(self, granted: Sequence[Task]) -> None:
        """Free the slots that were reserved for these tasks: their leases come to nothing."""
        matching = self._engine.matching
        for task in granted:
            executor = matching.executor_of(task.owner or "")
            if executor is not None:
                executor.give_back(task)
            matching.stations.give_back(task.id)
            waiter = matching.promised(task.id)
            if waiter is not None and not waiter.future.done():
                matching.park(waiter)
        self._engine.serving.broken(granted)

    # -- when the database is gone

    def go_down(self, batch: list[Item], error: Unavailable) -> None:
        """The database cannot commit. Everything not on disk is undone; callers are told, our own reports wait."""
        log.error("the database is unavailable: %s", error)
        engine = self._engine
        engine.down = error
        engine.leases.read = False  # what could not be told from a failure may be on disk
        items = [*batch, *engine.open]
        engine.open = []
        engine.inline.due.clear()
        for item in items:
            entry = item.entry
            entry.open = None
            engine.cache.drop(entry)
            engine.forget_code(entry)
            self._undo(item)
            answers, entry.answers = entry.answers, []
            for message, reply, _, _ in answers:
                self.refuse_down(entry.flow.key, message, reply, again=True)
        for item in items:
            for message, reply, _, again in item.asked:
                self.refuse_down(item.entry.flow.key, message, reply, again)
        engine.went_down()

    def refuse_down(self, key: int, message: Message, reply: Reply | None, again: bool) -> None:
        if reply is not None:
            reply(None, self._engine.down)
        elif again and not isinstance(message, Due):
            # A wake is read from disk once more, and knows by then since when workers can be heard.
            self._deferred.append((key, message))

    def decide_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for key, message in deferred:
            self._engine.submit(key, message)
