"""The engine: messages in, decisions out, one group commit after another. Nobody is answered before their own commit.

`submit` is a plain function on the one thread that owns all state: decide, fold, add to the open batch. All messages of an
instance until the next commit share one turn, and so become one decision. `flush` runs the workflow code that is due in this
process, seals the turns and hands the batch to the store; what it caused is delivered when the store says so. While a batch is on its way, later messages are decided on top of it (speculation). If a decision does not
commit as itself, the state and code that grew on it are thrown away and its messages are decided again, in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakSet

from backstay.engine.batch import BatchEntry, Uncommitted
from backstay.engine.cache import Cache, CachedInstance, Reply
from backstay.engine.dispatch import Dispatcher
from backstay.engine.effects import Effects, log_failed_effect
from backstay.engine.inline import InlineCode
from backstay.engine.leases import Leases
from backstay.engine.lifecycle import EngineHooks, call_all
from backstay.engine.loading import Loading
from backstay.engine.lookup import InstanceLookup
from backstay.engine.matching import Matching
from backstay.engine.outbox import Outbox
from backstay.engine.rollback import Rollback
from backstay.engine.timer_queue import TimerQueue
from backstay.engine.waiters import Waiters
from backstay.engine.world import World
from backstay.kernel.decision import CommandRecord, Decision
from backstay.kernel.features.deadline import Due
from backstay.kernel.features.reconcile import Reconcile
from backstay.kernel.features.start import RecordedDefinition
from backstay.kernel.machine import Machine
from backstay.kernel.message import Message, Refused
from backstay.kernel.state import Instance, Run
from backstay.kernel.task import Lease, Task
from backstay.kernel.turn import Turn
from backstay.kernel.values import SECOND, Micros, Routing
from backstay.runtime_hooks import after_fork_in_child
from backstay.store import Applied, ForkedEngine, Store, Unavailable

log = logging.getLogger("backstay.engine")

_engines: WeakSet[Engine] = WeakSet()


def _after_fork() -> None:
    for engine in _engines:
        engine.forked()


after_fork_in_child(_after_fork)

PAUSE = SECOND  # before a message is submitted again

Define = Callable[[Routing, str], tuple[Routing, RecordedDefinition | None]]


def _undefined(routing: Routing, workflow_type: str) -> tuple[Routing, RecordedDefinition | None]:
    return routing, None


class Engine:
    """`define`: what is known here of a workflow type that is started by a process which does not know its code."""

    def __init__(
        self,
        world: World,
        store: Store,
        machine: Machine,
        *,
        cache_bytes: int = 48 << 20,
        lifecycle: EngineHooks | None = None,
        matching: Matching | None = None,
        define: Define | None = None,
    ) -> None:
        self.world = world
        self.store = store
        self.machine = machine
        self.matching = matching or Matching(world.now)
        self._lifecycle = lifecycle or EngineHooks()
        self.define: Define = define or _undefined
        self.leases = Leases()
        self.cache = Cache(cache_bytes, self.forget_code)
        self.timers = TimerQueue(world, store, self._wake)
        self.incarnation = world.ids.ulid()
        self.holder = False
        self.down: Unavailable | None = None
        self._due = Due()
        self.idle = False  # nothing was found to do for a while
        self.deployed: dict[str, str | None] = {}  # the fingerprint of each workflow type's definition, as of now
        self.waiters = Waiters(world)
        self._uncommitted = Uncommitted()
        self.lookup = InstanceLookup(self)
        self.loading = Loading(self, world, store, machine, self.cache, self.timers)
        self.outbox = Outbox(self)
        self.dispatcher = Dispatcher(self, world, self.matching, self.leases, self.loading)
        self.inline = InlineCode(self, world, store, machine, self.cache, self.matching, self._uncommitted)
        self.rollback = Rollback(self, self._uncommitted, self.matching, self.dispatcher, self._lifecycle)
        self._effects = Effects(
            self, self.matching, self.leases, self.dispatcher, self.outbox, self.waiters, self.rollback
        )
        # Every turn takes these along, so they are bound once.
        self._turn: Callable[[Instance], Turn] = partial(machine.begin, ids=world.ids, deployed=self.deployed)
        self._forked = False
        self._stopping = False
        _engines.add(self)
        self._writing = False
        self._flushing = False

    def forked(self) -> None:
        """This is a child process now: the engine belongs to its parent."""
        self._forked = True

    # -- messages

    def submit(
        self, key: int, message: Message, reply: Reply | None = None, *, again: bool = True, code_ran: bool = False
    ) -> None:
        """Decide a message for an instance. `again`: if its decision does not commit, decide it anew.

        `code_ran`: the run's code has met this message on its worker already, and what it decided is submitted next. So the
        workflow task that the message causes is not given to anybody; the completion that follows claims it by its id.
        """
        if self._forked:
            raise ForkedEngine
        if self.down is not None:
            self.rollback.refuse_or_defer(key, message, reply, again)
            return
        entry = self.cache.get(key)
        if entry is None:
            self.loading.load(key, message, reply, again)
        else:
            self.decide(entry, message, reply, again, code_ran=code_ran)

    def address(self, namespace: str, workflow_id: str, message: Message, reply: Reply) -> None:
        """Decide a message for an instance by name; an instance that does not exist yet is created by the decision."""
        if self._forked:
            raise ForkedEngine
        key = self.cache.named(namespace, workflow_id)
        if key is not None:
            self.submit(key, message, reply)
        else:
            self.lookup.add(namespace, workflow_id, message, reply)

    def create(self, namespace: str, workflow_id: str, message: Message, reply: Reply) -> None:
        """Decide the first message for an instance that does not exist yet."""
        if self.down is not None:
            reply(None, self.down)
        else:
            instance = Instance(self.world.ids.key(), namespace, workflow_id)
            self.decide(CachedInstance(instance, []), message, reply, True)

    def decide(
        self,
        entry: CachedInstance,
        message: Message,
        reply: Reply | None,
        again: bool,
        refused: Callable[[CachedInstance, Any, Reply | None, Any, BaseException | None], None] | None = None,
        code_ran: bool = False,
    ) -> None:
        """Decide a message on top of all earlier decisions for its instance, those on their way to disk included.

        That is speculation: a commit takes milliseconds, and the next message does not wait for it. So the state in memory
        may be ahead of the database, and what it is ahead by may come to nothing: another process commits first (then the
        guard `Decision.after` does not match), or the database fails. Two rules make that safe. First, nobody outside
        learns of a decision before its own commit: replies, sends and deliveries wait for it (`Effects`), and an
        answer that writes nothing waits for the commits it is based on (`_answer`). Without it a caller is told of a
        signal that never was (mutant "answers before the commit"). Second, a decision that fails takes everything with
        it that grew on it, state, live code and slots, and its messages are decided again (`Rollback.discard`). Without it
        the next decision contradicts what is on disk (mutant "state survives a failed commit"), or a report is lost
        (`test_a_report_that_was_refused_by_a_decision_that_comes_to_nothing_is_heard_again`).

        `refused` is called instead of `reply` if the message is refused, with the answer that `reply` would have had.
        """
        item = entry.open_batch_entry
        turn = self._turn(entry.instance) if item is None else item.turn
        due = turn.due_task
        try:
            value = self.machine.decide(turn, message, self.world.now())
            new = turn.due_task
            if new is not None and new is not due and not self._runs_inline(entry, turn.run, new, code_ran):
                self.machine.create_task(turn)
            if turn.ready:
                self._match(entry, turn)
        except Refused as refusal:
            answer = reply if refused is None else partial(refused, entry, message, reply)
            self._answer(entry, message, answer, None, refusal, again)
            return
        except Exception as error:
            # A bug: the state may be half folded. It is thrown away; nothing of it was written.
            log.exception("deciding %s for workflow %s failed", type(message).__name__, entry.instance.workflow_id)
            self.rollback.release_slots(turn.granted[0 if item is None else len(item.assignments) :])
            self.discard(entry)
            if reply is not None:
                reply(None, error)
            return
        if item is None:
            if not turn.events and self.machine.idle(turn):
                self._answer(entry, message, reply, value, None, again)
                return
            item = self._begin(entry, turn)
        item.messages.append((message, reply, value, again))
        self._follow(item)
        if turn.closed or (self.rollback.one_by_one and entry.instance.name in self.rollback.one_by_one):
            self._seal(item)  # an end is reported once; and a decision that failed is split into its messages

    # A process may become the engine, or stop being it, in the middle of a turn.

    def _runs_inline(self, entry: CachedInstance, run: Run, due: Task, code_ran: bool) -> bool:
        """Whether the code of a due task runs before the turn is sealed; then it is in line for that."""
        if not self.holder:
            return False
        if code_ran:
            return True  # on its worker, and its commands follow in the same request
        executor = self.matching.inline_executor(run)
        if executor is None:
            return False
        self.inline.due.append((entry, due.id, executor))
        return True

    def _match(self, entry: CachedInstance, turn: Turn) -> None:
        """Find workers for the tasks that a message made ready. One that is taken is leased in this very decision.

        The offer reserves a slot of its worker at once: the next task, of this instance or another, must not be promised
        the same slot while this one is on its way to disk. A slot is a promise outside the rows, so whoever discards the
        turn gives it back (`Rollback.release_slots`). Without that the worker would seem full for ever. Tests:
        `test_a_decision_that_breaks_gives_back_the_room_it_had_taken`, and the mutant "room is not given back".
        """
        matching = self.matching
        while turn.ready:  # a grant may make others ready
            ready, turn.ready = turn.ready, {}
            if not self.holder:
                continue
            for task in ready.values():
                taker = matching.offer(task)
                if taker is None:
                    matching.lanes.add(task)
                elif isinstance(taker, Lease):
                    self.machine.grant(turn, task, taker)
                else:
                    self.inline.due.append((entry, task.id, taker))
                    self._schedule_flush()

    def _begin(self, entry: CachedInstance, turn: Turn) -> BatchEntry:
        if turn.after == 0:
            self.cache.add(entry)
        item = entry.open_batch_entry = BatchEntry(entry, turn)
        entry.inflight += 1
        self._uncommitted.open.append(item)
        if not self._flushing:
            self._schedule_flush()
        return item

    def _follow(self, item: BatchEntry) -> None:
        """Take note of what the turn came to since the last look: events for live code, and leases to deliver."""
        entry = item.entry
        turn = item.turn
        events = turn.events
        shown, decided = item.shown, len(events)
        if shown < decided:
            if entry.unseen_events is not None:
                entry.unseen_events += events[shown:] if shown else events
            item.shown = decided
        if turn.granted:
            for task in turn.granted[len(item.assignments) :]:
                item.assignments.append(self.machine.assign(entry.instance, task))

    def _seal(self, item: BatchEntry) -> None:
        """No more messages for this turn: it becomes a decision."""
        entry = item.entry
        turn = item.turn
        entry.open_batch_entry = None
        if turn.due_task is not None:  # its code has not run
            self.machine.create_task(turn)
            self._match(entry, turn)
            self._follow(item)
        decision = item.decision = self.machine.seal(turn)
        if self.matching.remote_workers.by_task:
            self.dispatcher.on_unleased(
                self.matching.remote_workers.release_unleased(turn.granted, entry.instance.tasks)
            )
        if decision.wake_moved and self.holder:
            self.timers.set(entry.instance.key, entry.instance.next_wake)

    def _answer(
        self,
        entry: CachedInstance,
        message: Message,
        reply: Reply | None,
        value: Any,
        error: BaseException | None,
        again: bool,
    ) -> None:
        """Answer without a write of its own, but never ahead of the commits the answer is based on.

        If those come to nothing, the message is decided anew, also if nobody waits for its answer: a report that came too
        late for a run which then was not over after all is the only word about its work.
        """
        if entry.inflight:
            if reply is not None or again:
                entry.answers.append((message, reply, value, error))
        elif reply is not None:
            reply(value, error)

    # -- the batch

    def _schedule_flush(self) -> None:
        if not self._flushing and not self._writing:
            self._flushing = True
            self.world.soon(self._flush)

    def keep_flushing(self) -> None:
        """More code is due than one commit should wait for: come back for it, even if there is nothing to write now."""
        if not self._uncommitted.open:
            self._schedule_flush()

    async def key_of(self, namespace: str, workflow_id: str) -> int | None:
        key = self.cache.named(namespace, workflow_id)
        if key is not None and (entry := self.cache.get(key)) is not None and entry.on_disk:
            return key
        # What is only being created here another process may have created already, under another key.
        return await self.store.find(namespace, workflow_id) or self.cache.named(namespace, workflow_id)

    async def retained(self, key: int, command_type: str, request_id: str) -> CommandRecord | None:
        """The record of an earlier command with this request id: on disk, or on its way there."""
        found = self._uncommitted_command(key, command_type, request_id)
        if found is None:
            found = await self.store.command(key, command_type, request_id)
        # Another try may have been decided while we asked.
        return found or self._uncommitted_command(key, command_type, request_id)

    def _uncommitted_command(self, key: int, command_type: str, request_id: str) -> CommandRecord | None:
        entry = self.cache.get(key)
        if entry is None or not entry.inflight:
            return None
        return self._uncommitted.command(entry, command_type, request_id)

    def _flush(self) -> None:
        self._flushing = False
        if self._writing:
            return
        self.inline.run()
        if not self._uncommitted.open:
            self._uncommitted.end_batch()
            return
        batch = self._uncommitted.next_batch()
        self._writing = True
        decisions: list[Decision] = []
        for item in batch:
            if item.decision is None:
                self._seal(item)
            decisions.append(item.decision)  # type: ignore[arg-type]
        self.store.apply(decisions, partial(self._written, batch))

    def _written(self, batch: list[BatchEntry], applied: Applied) -> None:
        self._writing = False
        if self.idle:
            self.mark_busy()
        self._uncommitted.end_batch()
        self.rollback.restless.clear()
        if applied.down is not None:
            self.rollback.go_down(batch, applied.down)
            return
        if applied.stale or applied.failed:
            batch = self.rollback.split_batch(batch, applied)
        for item in batch:
            try:
                self._effects.carry_out(item)
            except Exception:  # in the effects of one decision; those of the others take place
                log_failed_effect(item.entry)
        self.cache.trim()
        if self._uncommitted.open or self.inline.due:
            self._schedule_flush()

    def keep_or_evict(self, entry: CachedInstance) -> None:
        """Nothing of this entry is on its way: keep it while it is useful."""
        if entry.dead or entry.code_is_busy:
            return
        run = entry.instance.run
        if not self.holder or (run is not None and run.closed_reason is not None):
            self.discard_cached(entry)
            return
        code = 0
        if run is not None:
            for executor in self.matching.executors:
                code += executor.weight(run.key)
        self.cache.used(entry, code)

    # -- when a decision does not become fact

    def discard(self, entry: CachedInstance) -> None:
        """Forget an entry and everything decided on top of it that is not yet on disk."""
        self.rollback.discard(entry)

    def discard_cached(self, entry: CachedInstance) -> None:
        """Of no more use, or another process has changed this instance: fold it again when it is next needed."""
        self.cache.drop(entry)
        self.forget_code(entry)

    def reload(self, key: int) -> bool:
        """Have an instance folded anew from disk when it is next needed; False if it is moving right now."""
        entry = self.cache.get(key)
        if entry is not None:
            if entry.inflight or entry.code_is_busy:
                return False
            self.discard_cached(entry)
        return True

    def submit_later(self, key: int, message: Message) -> None:
        """Submit a message again after a pause: its instance could not be read."""
        self.world.at(self.world.now() + PAUSE, lambda: None if self._stopping else self.submit(key, message))

    def reconcile(self, key: int) -> None:
        """Bring the tasks of an instance back to what its history expects, and offer them to workers."""
        if not self.holder:
            return
        # Work that is on its way to or from a worker is held by nobody for a moment: only what is at rest is judged.
        entry = self.cache.get(key)
        at_rest = key not in self.rollback.restless and (entry is None or not (entry.inflight or entry.code_is_busy))
        message = Reconcile(
            incarnation=self.incarnation,
            holding=self.held_tasks() if at_rest else None,
            asked_at=self.world.now(),
        )
        self.submit(key, message, again=False)

    def held_tasks(self) -> frozenset[str]:
        """The tasks that workers in this process are working on."""
        return frozenset[str]().union(*(executor.holding for executor in self.matching.executors))

    # -- the life of the engine

    def mark_idle(self) -> None:
        """Nothing is to be done: the next commit calls `on_busy`."""
        self.idle = True

    def mark_busy(self) -> None:
        """Something was committed, here or by another process."""
        if self.idle:
            self.idle = False
            call_all(self._lifecycle.on_busy)

    def on_unavailable(self, error: Unavailable) -> None:
        """A read could not reach the database: without it this process decides nothing."""
        if self.down is None and not self._writing:
            self.rollback.go_down([], error)

    def stop_deciding(self, error: Unavailable) -> list[BatchEntry]:
        """The database is gone: decide nothing until it is back. The turns that were open are for the caller to undo."""
        self.down = error
        self.leases.read = False  # a commit that seemed to fail may be on disk
        self.inline.due.clear()
        return self._uncommitted.take_open()

    def still_unavailable(self, error: Unavailable) -> None:
        self.down = error

    def on_available(self) -> None:
        """The database works again: decide the reports that waited for it."""
        self.down = None
        self.rollback.submit_deferred()

    def take_over(self) -> None:
        """This process becomes the engine: what it knew as a guest may be outdated, and is read again."""
        self.holder = True
        for entry in self.cache:
            if entry.inflight == 0:
                self.cache.drop(entry)
            else:
                # Decided while another process had to run it, and not on disk yet, where recovery would find it.
                self.reconcile(entry.instance.key)
        self.loading.outdate()

    def step_down(self) -> None:
        """Another process is the engine now: forget what only the engine may rely on."""
        self.holder = False
        self.timers.forget()
        self.matching.lanes.clear()
        self.leases.forget()
        for entry in self.cache:
            self.discard_cached(entry)

    async def drain(self) -> None:
        """Let every decision that was made reach the disk."""
        while (self._uncommitted.open or self._writing) and self.down is None:
            ended: asyncio.Future[None] = self.world.future()
            self._uncommitted.call_at_end(ended)
            await ended

    def close(self) -> None:
        """Stop what goes on by itself: timers, deliveries between instances, checks for those who wait."""
        self._stopping = True
        self.outbox.stop()
        self.waiters.close()
        self.timers.stop()

    # -- small things

    def _wake(self, key: int) -> None:
        if self.down is None:  # otherwise its wake is read from disk again, when that is back
            self.submit(key, self._due)

    def wait_for_workers(self, since: Micros, until: Micros) -> None:
        """Before `since` no worker outside this process could be heard: none is too late before `until` because of that."""
        self._due = Due(since=since, until=until)

    def forget_code(self, entry: CachedInstance) -> None:
        run = entry.instance.run
        if run is not None:
            for executor in self.matching.executors:
                executor.forget(run.key)
