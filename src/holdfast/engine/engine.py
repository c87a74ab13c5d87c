"""The engine: messages in, decisions out, one group commit after another. Nobody is answered before their own commit.

`submit` is a plain function on the one thread that owns all state: decide, fold, add to the open batch. `flush` runs the
workflow code that is due in this process, seals the batch and hands it to the store; what it caused is delivered when the
store says so. While a batch is on its way, later messages are decided on top of it (speculation). If a decision does not
commit as itself, the state and code that grew on it are thrown away and its messages are decided again, in order.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

from msgspec import Struct

from holdfast.engine.cache import Cache, Entry, Reply
from holdfast.engine.inline import InlineCode
from holdfast.engine.leases import Leases, Queue
from holdfast.engine.loading import Loading
from holdfast.engine.matching import Executor, Lane, Matching, Waiter
from holdfast.engine.sending import Sending
from holdfast.engine.waking import Waking
from holdfast.engine.watching import ENDED, Watching
from holdfast.engine.world import World
from holdfast.kernel.decision import CommandRecord, Decision
from holdfast.kernel.event import Recorded
from holdfast.kernel.features.deadline import Due
from holdfast.kernel.features.lease import Offer, Release
from holdfast.kernel.machine import Machine, nobody
from holdfast.kernel.message import Message, Refused
from holdfast.kernel.state import Workflow
from holdfast.kernel.task import Task
from holdfast.store import Applied, ForkedEngine, Now, Store, Unavailable

log = logging.getLogger("holdfast.engine")

# Asking for the process id on every message would be a system call each; the fork tells us instead.
_engines: WeakSet[Engine] = WeakSet()


def _after_fork() -> None:
    for engine in _engines:
        engine.forked()


os.register_at_fork(after_in_child=_after_fork)

BATCH = 1024  # decisions in one commit


class Item(Struct, eq=False):
    """A decision in a batch, and what to do when it is on disk."""

    entry: Entry
    decision: Decision
    message: Message
    reply: Reply | None
    again: bool
    assignments: Sequence[Any] = ()


class Engine:
    def __init__(self, world: World, store: Store, machine: Machine, *, cache_bytes: int = 48 << 20) -> None:
        self.world = world
        self.store = store
        self.machine = machine
        self.matching = Matching()
        self.leases = Leases()
        self.cache = Cache(cache_bytes, self._forget_code)
        self.waking = Waking(world, store, self._wake)
        self.incarnation = world.ids.ulid()
        self.holder = False
        self.down: Unavailable | None = None
        self.on_down: Callable[[], None] = lambda: None
        self.watching = Watching()
        self.loading = Loading(self)
        self.sending = Sending(self)
        self.inline = InlineCode(self)
        self._forked = False
        _engines.add(self)
        self._open: list[Item] = []
        self._writing = False
        self._flushing = False
        self._batch: list[Item] = []  # on its way to disk
        self._deferred: list[tuple[int, Message, Reply | None]] = []

    def forked(self) -> None:
        """This is a child process now: the engine belongs to its parent."""
        self._forked = True

    # -- messages

    def submit(self, key: int, message: Message, reply: Reply | None = None, *, again: bool = True) -> None:
        """Decide a message for an instance. `again`: if its decision does not commit, decide it anew."""
        if self._forked:
            raise ForkedEngine
        if self.down is not None:
            self._refuse_down(key, message, reply, again)
            return
        entry = self.cache.get(key)
        if entry is None:
            self.loading.load(key, message, reply, again)
        else:
            self.decide(entry, message, reply, again)

    def address(self, namespace: str, workflow_id: str, message: Message, reply: Reply) -> None:
        """Decide a message for an instance by name; an instance that does not exist yet is created by the decision."""
        if self._forked:
            raise ForkedEngine
        key = self.cache.named(namespace, workflow_id)
        if key is not None:
            self.submit(key, message, reply)
            return
        try:
            found = self.store.find(namespace, workflow_id)
        except Exception as error:
            reply(None, error)
            return
        if isinstance(found, Now):
            self._address_found(namespace, workflow_id, message, reply, found.value)
        else:
            self.world.spawn(self._address_later(namespace, workflow_id, message, reply), "holdfast-find")

    async def _address_later(self, namespace: str, workflow_id: str, message: Message, reply: Reply) -> None:
        try:
            key = await self.store.find(namespace, workflow_id)
        except Exception as error:
            reply(None, error)
            return
        self._address_found(namespace, workflow_id, message, reply, key)

    def _address_found(self, namespace: str, workflow_id: str, message: Message, reply: Reply, key: int | None) -> None:
        # While we looked, another message may have created it.
        key = key or self.cache.named(namespace, workflow_id)
        if key is not None:
            self.submit(key, message, reply)
        elif self.down is not None:
            reply(None, self.down)
        else:
            flow = Workflow(self.world.ids.key(), namespace, workflow_id)
            self.decide(Entry(flow, []), message, reply, True)

    def decide(self, entry: Entry, message: Message, reply: Reply | None, again: bool) -> None:
        flow = entry.flow
        offer = self.matching.offer if self.holder else nobody
        try:
            decision = self.machine.decide(flow, message, self.world.now(), self.world.ids, offer)
        except Refused as refusal:
            self._answer(entry, message, reply, None, refusal)
            return
        except Exception as error:
            # A bug: the state may be half folded. It is thrown away; nothing of it was written.
            log.exception("deciding %s for workflow %s failed", type(message).__name__, flow.workflow_id)
            self.discard(entry)
            if reply is not None:
                reply(None, error)
            return
        if decision.idle:
            self._answer(entry, message, reply, decision.reply, None)
            return
        if decision.after == 0:
            self.cache.add(entry)
        item = Item(entry, decision, message, reply, again)
        entry.inflight += 1
        if entry.fresh is not None:
            entry.fresh += decision.events
        if decision.leased:
            item.assignments = [self.machine.assign(flow, task) for task in decision.leased]
        for task in decision.born:
            self._ready(entry, task)
        if decision.wake_moved and self.holder:
            self.waking.set(flow.key, flow.next_wake)
        self._open.append(item)
        self._schedule_flush()

    def _answer(
        self, entry: Entry, message: Message, reply: Reply | None, value: Any, error: BaseException | None
    ) -> None:
        """Answer without a write of its own, but never ahead of the commits the answer is based on."""
        if reply is None:
            return
        if entry.inflight == 0:
            reply(value, error)
        else:
            entry.answers.append((message, reply, value, error))

    def _ready(self, entry: Entry, task: Task) -> None:
        """A task that nobody took at birth: run here if this process can, otherwise it waits in its lane."""
        if not self.holder:
            return
        executor = self.matching.took_inline(task)
        if executor is not None:
            self.inline.add(entry, task.id, executor)
        else:
            self.matching.enqueue(task)

    # -- the batch

    def _schedule_flush(self) -> None:
        if not self._flushing and not self._writing:
            self._flushing = True
            self.world.soon(self._flush)

    def keep_flushing(self) -> None:
        """More code is due than one commit should wait for: come back for it, even if there is nothing to write now."""
        if not self._open:
            self._schedule_flush()

    async def key_of(self, namespace: str, workflow_id: str) -> int | None:
        return self.cache.named(namespace, workflow_id) or await self.store.find(namespace, workflow_id)

    async def retained(self, key: int, command_type: str, request_id: str) -> CommandRecord | None:
        """The record of an earlier command with this request id: on disk, or on its way there."""
        return self._coming_command(key, command_type, request_id) or await self.store.command(
            key, command_type, request_id
        )

    def _coming_command(self, key: int, command_type: str, request_id: str) -> CommandRecord | None:
        entry = self.cache.get(key)
        if entry is not None and entry.inflight:
            for item in (*self._batch, *self._open):
                for command in item.decision.commands if item.entry is entry else ():
                    if command.request_id == request_id and command.command_type == command_type:
                        return command
        return None

    def coming(self, entry: Entry) -> list[Recorded]:
        """Events of this instance that are decided and not yet known to be on disk."""
        return [e for item in (*self._batch, *self._open) if item.entry is entry for e in item.decision.events]

    def _flush(self) -> None:
        self._flushing = False
        if self._writing:
            return
        self.inline.run()
        if not self._open:
            return
        batch = self._batch = self._open[:BATCH]
        self._open = self._open[BATCH:]
        self._writing = True
        self.store.apply([item.decision for item in batch], lambda applied: self._written(batch, applied))

    def _written(self, batch: list[Item], applied: Applied) -> None:
        self._writing = False
        self._batch = []
        if applied.down is not None:
            self._go_down(batch, applied.down)
            return
        if applied.stale or applied.failed:
            batch = self._take_apart(batch, applied)
        for item in batch:
            try:
                self._finish(item)
            except Exception:
                # It is on disk whatever its caller makes of the answer; the others have nothing to do with it.
                log.exception("answering for workflow %s failed", item.entry.flow.workflow_id)
        self.cache.trim()
        if self._open or self.inline:
            self._schedule_flush()

    def _finish(self, item: Item) -> None:
        entry = item.entry
        decision = item.decision
        entry.inflight -= 1
        freed = self.leases.committed(decision.tasks)
        for assignment in item.assignments:
            self._deliver(entry, assignment)
        for queue in freed:
            if self.matching.admission is not None:
                self.serve_parked(queue)
        if item.reply is not None:
            item.reply(decision.reply, None)
        for send in decision.sends:
            self.sending.dispatch(send)
        for topic, news in decision.told:
            self.watching.tell(entry.flow.key, topic, news)
        if decision.closed:
            self._closed(entry, decision)
        if entry.inflight == 0:
            if entry.answers:
                answers, entry.answers = entry.answers, []
                for _, reply, value, error in answers:
                    reply(value, error)
            self.settle(entry)

    def settle(self, entry: Entry) -> None:
        """Nothing of this entry is on its way: keep it while it is useful."""
        if entry.dead or entry.held:
            return
        run = entry.flow.run
        if not self.holder or (run is not None and not run.open):
            self.cache.drop(entry)
            self._forget_code(entry)
        else:
            self.cache.used(entry, self._code_size(entry))

    def _closed(self, entry: Entry, decision: Decision) -> None:
        for executor in self.matching.executors:
            for run_id in decision.closed:
                executor.closed(run_id)
        if decision.ended is not None:
            self.watching.tell(entry.flow.key, ENDED, decision.ended)

    def _deliver(self, entry: Entry, assignment: Any) -> None:
        """Hand out work whose lease is on disk now."""
        task: Task = assignment.task
        executor = self.matching.executor_of(task.owner or "")
        if executor is not None:
            if task.kind == "workflow":
                entry.held = True
            executor.deliver(assignment)
            return
        waiter = self.matching.promised(task.id)
        if waiter is None:
            return  # claimed by name: the caller has the task in its reply
        if waiter.future.done():
            self.submit(entry.flow.key, Release(task_id=task.id, owner=task.owner or "", attempt=task.attempt))
        else:
            waiter.future.set_result(assignment)

    def serve(self, waiter: Waiter) -> None:
        """A poll has come: offer it the best task that waits for one like it."""
        queue = (waiter.kind, waiter.namespace, waiter.queue)
        while self.matching.admits(queue) and (found := self.matching.next_for(waiter.matches)) is not None:
            # Nobody takes what was claimed by name or closed while it stood in its lane; there may be another.
            answers: list[BaseException | None] = []
            self.submit(found[1], Offer(task_id=found[0]), lambda _, error, answers=answers: answers.append(error))
            if answers != [None] or not self.matching.waits(waiter):
                return

    def serve_parked(self, queue: Queue) -> None:
        """A queue may lease again: whoever waits there is served."""
        for waiter in self.matching.waiting(queue):
            self.serve(waiter)

    def give_up_waiting(self, waiter: Waiter) -> None:
        """A poll's time is over. If a task was promised to it meanwhile, that commit answers it."""
        if self.matching.unpark(waiter) and not waiter.future.done():
            waiter.future.set_result(None)

    def refill(self, executor: Executor) -> None:
        """An executor has room: give it what waits in its lanes."""
        if not self.matching.has_tasks:
            return

        def wants(lane: Lane) -> bool:
            return executor.runs(
                lane.kind, lane.type, lane.namespace, lane.queue, lane.compatibility
            ) and executor.has_room(lane.kind, lane.type)

        while (found := self.matching.next_for(wants)) is not None:
            task_id, key = found
            self.submit(key, Offer(task_id=task_id))

    # -- when a decision does not become fact

    def _take_apart(self, batch: list[Item], applied: Applied) -> list[Item]:
        """Keep what was committed; for the rest drop state and code, and decide their messages again, in order."""
        committed: list[Item] = []
        lost: dict[int, list[Item]] = {}
        doomed: dict[int, Entry] = {}
        for position, item in enumerate(batch):
            error = applied.failed.get(position)
            if error is not None:
                log.error("a decision for workflow %s could not be written: %r", item.entry.flow.workflow_id, error)
                doomed[id(item.entry)] = item.entry
                self._undo(item)
                item.again = False
                if item.reply is not None:
                    item.reply(None, error)
            elif position in applied.stale:
                doomed[id(item.entry)] = item.entry
                lost.setdefault(id(item.entry), []).append(item)
            else:
                committed.append(item)
        for id_, entry in doomed.items():
            self.discard(entry, lost.get(id_, []))
        return committed

    def discard(self, entry: Entry, lost: Sequence[Item] = ()) -> None:
        """Forget an entry and everything decided on top of it that is not yet on disk."""
        mine = [item for item in self._open if item.entry is entry]
        if mine:
            self._open = [item for item in self._open if item.entry is not entry]
        self.cache.drop(entry)
        self._forget_code(entry)
        for item in [*lost, *mine]:
            self._undo(item)
        flow = entry.flow
        answers, entry.answers = entry.answers, []
        for message, reply, _, _ in answers:
            self._submit_again(flow.key, message, reply)
        for item in [*lost, *mine]:
            if not item.again:
                continue
            if item.decision.after == 0 and item.reply is not None:
                # It was to create the instance, and somebody else has.
                self.world.spawn(self._address_again(flow, item.message, item.reply), "holdfast-again")
            else:
                self._submit_again(flow.key, item.message, item.reply)
        self.world.soon(lambda: self.look_at(flow.key))

    async def _address_again(self, flow: Workflow, message: Message, reply: Reply) -> None:
        try:
            key = await self.key_of(flow.namespace, flow.workflow_id)
            if key is None:
                self.address(flow.namespace, flow.workflow_id, message, reply)
            else:
                self._submit_again(key, message, reply)
        except Exception as error:
            reply(None, error)

    def _submit_again(self, key: int, message: Message, reply: Reply | None) -> None:
        """Decide a message anew. What came in between may have been an earlier try of it, elsewhere."""
        asked = message.repeats()
        if asked is None:
            self.submit(key, message, reply)
        else:
            self.world.spawn(self._recall(key, message, reply, *asked), "holdfast-recall")

    async def _recall(
        self, key: int, message: Message, reply: Reply | None, kinds: tuple[str, ...], request_id: str
    ) -> None:
        try:
            records = [await self.retained(key, kind, request_id) for kind in kinds]
            self.submit(key, message.recalling(next(filter(None, records), None)), reply)
        except Exception as error:
            if reply is not None:
                reply(None, error)

    def _undo(self, item: Item) -> None:
        """Give back what a decision had promised outside its rows."""
        for assignment in item.assignments:
            task: Task = assignment.task
            executor = self.matching.executor_of(task.owner or "")
            if executor is not None:
                executor.give_back(task)
            waiter = self.matching.promised(task.id)
            if waiter is not None and not waiter.future.done():
                self.matching.park(waiter)

    def discard_cached(self, entry: Entry) -> None:
        """Another process has changed this instance: fold it again when it is next needed."""
        self.cache.drop(entry)
        self._forget_code(entry)

    def retry(self, key: int, message: Message) -> None:
        """Submit a message again after a while. Hook of recovery."""

    def look_at(self, key: int) -> None:
        """Load an instance and bring its tasks before the workers again. Hook of recovery; a no-op for guests."""

    def _go_down(self, batch: list[Item], error: Unavailable) -> None:
        """The database cannot commit. Everything not on disk is undone; callers are told, our own reports wait."""
        log.error("the database is unavailable: %s", error)
        self.down = error
        items = [*batch, *self._open]
        self._open = []
        self.inline.clear()
        for item in items:
            self.cache.drop(item.entry)
            self._forget_code(item.entry)
            self._undo(item)
            answers, item.entry.answers = item.entry.answers, []
            for _, reply, _, _ in answers:
                reply(None, error)
        for item in items:
            self._refuse_down(item.entry.flow.key, item.message, item.reply, item.again)
        self.on_down()

    def _refuse_down(self, key: int, message: Message, reply: Reply | None, again: bool) -> None:
        if reply is not None:
            reply(None, self.down)
        elif again:
            self._deferred.append((key, message, reply))

    def up(self) -> None:
        """The database works again: reports that waited are decided now."""
        self.down = None
        deferred, self._deferred = self._deferred, []
        for key, message, reply in deferred:
            self.submit(key, message, reply)

    async def drain(self) -> None:
        """Let every decision that was made reach the disk."""
        while (self._open or self._writing) and self.down is None:
            settled = self.world.future()
            self.world.soon(lambda: settled.set_result(None))  # noqa: B023 - called before the next round
            await settled

    # -- small things

    def _wake(self, key: int) -> None:
        self.submit(key, Due())

    def _forget_code(self, entry: Entry) -> None:
        run = entry.flow.run
        if run is not None:
            for executor in self.matching.executors:
                executor.forget(run.key)

    def _code_size(self, entry: Entry) -> int:
        run = entry.flow.run
        size = 0
        if run is not None:
            for executor in self.matching.executors:
                size += executor.weight(run.key)
        return size
