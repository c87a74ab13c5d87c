"""The engine: messages in, decisions out, one group commit after another. Every reply follows its own commit.

`submit` is a plain function on the one thread that owns all state: decide, fold, add to the open batch (`batch.py`). All
messages of an instance until the next commit share one turn, and so become one decision. `Commits` runs the workflow code that
is due in this process, seals the turns and hands the batch to the store (`commits.py`). When the batch is on disk, its effects take place
(`effects.py`). While it is being written, later messages are decided on top of it (speculation). A decision that does not
commit is rolled back with the state and code that grew on it, and its messages are decided again, in order (`rollback.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any
from weakref import WeakSet

from backstay.engine.core.batch import BatchEntry, Uncommitted
from backstay.engine.core.cache import Cache, CachedInstance, Reply
from backstay.engine.core.commits import Commits
from backstay.engine.core.counters import Counters
from backstay.engine.core.effects import Effects
from backstay.engine.core.lifecycle import EngineHooks, call_all
from backstay.engine.core.loading import Loading
from backstay.engine.core.lookup import InstanceLookup
from backstay.engine.core.outbox import Outbox
from backstay.engine.core.refusals import Refusals
from backstay.engine.core.rollback import Rollback
from backstay.engine.core.shard_moves import ShardMoves
from backstay.engine.core.timer_queue import TimerQueue
from backstay.engine.core.turn_tasks import TurnTasks
from backstay.engine.core.waiters import Waiters
from backstay.engine.core.world import World
from backstay.engine.tasks.dispatch import Dispatcher
from backstay.engine.tasks.inline import InlineCode
from backstay.engine.tasks.late_deliveries import LateDeliveries
from backstay.engine.tasks.leases import Leases
from backstay.engine.tasks.matching import Matching
from backstay.kernel.decision import CommandRecord
from backstay.kernel.features.deadline import Due
from backstay.kernel.features.reconcile import Reconcile
from backstay.kernel.features.start import RecordedDefinition
from backstay.kernel.machine import Machine
from backstay.kernel.message import Message, Refused
from backstay.kernel.state import Instance
from backstay.kernel.turn import Turn
from backstay.kernel.values import SECOND, Micros, Routing, partition_of
from backstay.kernel.views import log_ids
from backstay.runtime_hooks import after_fork_in_child
from backstay.store import Store
from backstay.store.errors import ForkedEngine, Unavailable

log = logging.getLogger("backstay.engine")

_engines: WeakSet[Engine] = WeakSet()


def _after_fork() -> None:
    for engine in _engines:
        engine.forked()


after_fork_in_child(_after_fork)

PAUSE = SECOND  # before `submit_later` submits

Define = Callable[[Routing, str], tuple[Routing, RecordedDefinition | None]]


def _undefined(routing: Routing, workflow_type: str) -> tuple[Routing, RecordedDefinition | None]:
    return routing, None


class Engine:
    """`define` supplies the routing and definition of a workflow type that was started by a process without its code.
    `origin`: the context of commands that come without one, from the process itself."""

    def __init__(
        self,
        world: World,
        store: Store,
        machine: Machine,
        *,
        cache_bytes: int = 40 << 20,
        lifecycle: EngineHooks | None = None,
        matching: Matching | None = None,
        define: Define | None = None,
        origin: dict[str, Any] | None = None,
    ) -> None:
        self.world = world
        self.origin = origin or {}
        self.store = store
        self.machine = machine
        self.matching = matching or Matching(world.now)
        self._lifecycle = lifecycle or EngineHooks()
        self.define: Define = define or _undefined
        self.leases = Leases()
        self.counters = Counters()
        self.cache = Cache(cache_bytes, self.forget_code)
        self.timers = TimerQueue(world, store, self._wake, self.shards)
        self.incarnation = world.ids.ulid()
        self.owned = store.owned  # 1 for each shard of this process; `Shards` says which
        self._mask = store.shards - 1
        # Whether every live worker is known to this process: others may have some that are in no registry.
        self.knows_workers: Callable[[], bool] = lambda: self.owns_all
        self.down: Unavailable | None = None
        self.down_since: Micros | None = None
        self._due = [Due()] * store.shards
        self.idle = False  # the sweep found nothing to do, and nothing was committed since
        self.waiters = Waiters(world, store.moved, self.owns)
        self._uncommitted = Uncommitted()
        self.lookup = InstanceLookup(self)
        self.loading = Loading(self, world, store, machine, self.cache, self.timers, self.leases)
        self.outbox = Outbox(self)
        self._refusals = Refusals(self)
        self.dispatcher = Dispatcher(self, world, self.matching, self.leases, self.loading)
        self.loading.on_ended_elsewhere = self.dispatcher.ended_elsewhere
        self.late_deliveries = LateDeliveries(self, world, store, self.dispatcher)
        self.inline = InlineCode(self, world, store, machine, self.cache, self.matching, self._uncommitted)
        self.rollback = Rollback(self, self._uncommitted, self.matching, self.dispatcher, self._lifecycle)
        effects = Effects(
            self,
            self.matching,
            self.leases,
            self.dispatcher,
            self.outbox,
            self.waiters,
            self.rollback,
            self._refusals,
        )
        self.commits = Commits(
            self,
            world,
            store,
            self.cache,
            self.counters,
            self.waiters,
            self._uncommitted,
            self.inline,
            self.rollback,
            effects,
            self.late_deliveries,
        )
        self._tasks = TurnTasks(world, store, machine, self.matching, self.inline, self.counters, self.commits.schedule)
        self.shard_moves = ShardMoves(self, store.shards)
        # Bound once: every turn gets these arguments.
        self._turn: Callable[[Instance], Turn] = partial(machine.begin, ids=world.ids, fleet=self.matching)
        self._forked = False
        self._stopping = False
        _engines.add(self)

    def forked(self) -> None:
        """Refuse all messages: this is a child process now, and the engine belongs to its parent."""
        self._forked = True

    # -- messages

    def submit(
        self, key: int, message: Message, reply: Reply | None = None, *, again: bool = True, code_ran: bool = False
    ) -> None:
        """Decide a message for an instance. `again`: if its decision does not commit, decide it again.

        `code_ran`: the run's code has seen this message on its worker already, and its completion is submitted next. So the
        workflow task that the message causes is offered to no worker; the completion claims it by its id.
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
        """Decide the first message for an instance that does not exist, as far as is known.

        If it does exist, its name or its key is taken, and the decision does not commit: it is decided again by name.
        """
        if self._forked:
            raise ForkedEngine
        if self.down is not None:
            reply(None, self.down)
        else:
            instance = Instance(self.world.ids.key(partition_of(namespace, workflow_id)), namespace, workflow_id)
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

        That is speculation: a commit takes milliseconds, and the next message does not wait for it. So the state in
        memory may be ahead of the database, and a decision may still fail: another process commits first (then the
        guard `Decision.after` does not match), or the database fails. Two rules make that safe. First, no caller learns
        of a decision before its own commit: replies, sends and deliveries wait for it (`Effects`), and an answer that
        writes nothing waits for the commits it is based on (`_answer`). Without this rule a caller gets an answer about
        a signal that does not exist (mutant "answers before the commit"). Second, a decision that fails takes
        everything with it that grew on it, state, live code and slots, and its messages are decided again
        (`Rollback.discard`). Without this rule the next decision contradicts the rows on disk (mutant "state survives a
        failed commit"), or a report is lost
        (`test_a_report_that_was_refused_by_a_decision_that_comes_to_nothing_is_heard_again`).

        `refused` is called instead of `reply` if the message is refused, with the answer that `reply` would have had.
        """
        item = entry.open_batch_entry
        turn = self._turn(entry.instance) if item is None else item.turn
        due = turn.due_task
        try:
            value = self.machine.decide(turn, message, self.world.now())
            new = turn.due_task
            if new is not None and new is not due and not self._tasks.runs_inline(entry, turn.run, new, code_ran):
                self.machine.create_task(turn)
            if turn.ready:
                self._tasks.match(entry, turn, message)
        except Refused as refusal:
            if refused is None:
                self._answer(entry, message, reply, None, refusal, again)
            elif entry.inflight:
                self._answer(entry, message, partial(refused, entry, message, reply), None, refusal, again)
            else:
                refused(entry, message, reply, None, refusal)
            return
        except Exception as error:
            # A bug. The state may be half folded, so it is thrown away; none of it was written.
            log.exception(
                "workflow %s: deciding %s failed",
                entry.instance.workflow_id,
                type(message).__name__,
                extra=log_ids.of_instance(entry.instance),
            )
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
            self.seal(item)  # the end of a run is a decision of its own, and so is each message after a failed write

    def _begin(self, entry: CachedInstance, turn: Turn) -> BatchEntry:
        if turn.after == 0:
            self.cache.add(entry)
        item = entry.open_batch_entry = BatchEntry(entry, turn)
        entry.inflight += 1
        self._uncommitted.open.append(item)
        if not self.commits.scheduled:
            self.commits.schedule()
        return item

    def _follow(self, item: BatchEntry) -> None:
        """Note the turn's new events for live code, and its new leases for delivery after the commit."""
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

    def seal(self, item: BatchEntry) -> None:
        """Make a decision of the turn. It takes no more messages."""
        entry = item.entry
        turn = item.turn
        entry.open_batch_entry = None
        if turn.due_task is not None:  # its code has not run
            self.machine.create_task(turn)
            self._tasks.match(entry, turn)
            self._follow(item)
        decision = item.decision = self.machine.seal(turn)
        if self.matching.remote_workers.by_task:
            self.dispatcher.on_unleased(
                self.matching.remote_workers.release_unleased(turn.granted, entry.instance.tasks)
            )
        if decision.wake_moved and self.owned[entry.instance.key & self._mask]:
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
        """Answer a message that writes nothing, but not before the commits that the answer is based on.

        If those fail, the message is decided again, even if no caller waits for its reply. A report may have been
        refused because its run was closed; if the commit that closed it fails, the report is needed, and no worker
        repeats it.
        """
        if entry.inflight:
            if reply is not None or again:
                entry.answers.append((message, reply, value, error))
        elif reply is not None:
            self._refusals.tell(entry, message, reply, value, error)

    # -- what is stored

    def keep_flushing(self) -> None:
        self.commits.keep_going()

    async def key_of(self, namespace: str, workflow_id: str) -> int | None:
        key = self.cache.named(namespace, workflow_id)
        if key is not None and (entry := self.cache.get(key)) is not None and entry.on_disk:
            return key
        # An instance that is only being created here may exist on disk already, created by another process under another key.
        return await self.store.find(namespace, workflow_id) or self.cache.named(namespace, workflow_id)

    async def retained(self, key: int, command_type: str, request_id: str) -> CommandRecord | None:
        """The record of an earlier command with this request id, on disk or not committed yet."""
        record = self._uncommitted.command(self.cache.get(key), command_type, request_id)
        if record is None:
            record = await self.store.command(key, command_type, request_id)
        # Another attempt may have been decided during the read.
        return record or self._uncommitted.command(self.cache.get(key), command_type, request_id)

    def keep_or_evict(self, entry: CachedInstance) -> None:
        """Keep an entry without uncommitted decisions in the cache, or drop it if it will not be needed."""
        if entry.dead or entry.code_is_busy:
            return
        run = entry.instance.run
        if not self.owned[entry.instance.key & self._mask]:
            if not self.inline.is_about_to_run(entry):
                self.discard_cached(entry)
            return
        if run is not None and run.closed_reason is not None:
            self.discard_cached(entry)
            return
        code = 0
        if run is not None:
            for executor in self.matching.executors:
                code += executor.weight(run.key)
        self.cache.used(entry, code)

    # -- instances that are rolled back, dropped or read again

    def discard(self, entry: CachedInstance) -> None:
        """Drop an entry and all its decisions that are not on disk."""
        self.rollback.discard(entry)

    def discard_cached(self, entry: CachedInstance) -> None:
        """Drop an entry from memory; it is folded again from disk when it is next needed."""
        self.cache.drop(entry)
        self.forget_code(entry)

    def reload(self, key: int) -> bool:
        """Drop an instance from memory, so that it is folded again from disk; False if it is being changed right now."""
        entry = self.cache.get(key)
        if entry is not None:
            if entry.inflight or entry.code_is_busy:
                return False
            self.discard_cached(entry)
        return True

    def submit_later(self, key: int, message: Message) -> None:
        """Submit a message after a pause, because its instance could not be read."""
        self.world.at(self.world.now() + PAUSE, lambda: None if self._stopping else self.submit(key, message))

    def reconcile(self, key: int, reply: Reply | None = None) -> None:
        """Bring the tasks of an instance back to what its history expects, and offer them to workers."""
        if not self.owned[key & self._mask]:
            return
        message = Reconcile(
            incarnation=self.incarnation if self.owns(key) or not self.holder else None,
            holding=self.held_tasks() if self.is_at_rest(key) else None,
            asked_at=self.world.now(),
        )
        self.submit(key, message, reply, again=False)

    def is_at_rest(self, key: int) -> bool:
        """Whether no task of this instance is on its way to or from a worker: such a task is held by no executor, and not lost."""
        entry = self.cache.get(key)
        if entry is not None and (entry.inflight or entry.code_is_busy):
            return False
        return not (key in self.rollback.restless or self.late_deliveries.has(key) or self.loading.reads(key))

    def held_tasks(self) -> frozenset[str]:
        """The tasks that workers in this process are working on."""
        return frozenset[str]().union(*(executor.holding for executor in self.matching.executors))

    # -- the life of the engine

    def mark_idle(self) -> None:
        """The sweep is about to look for work: the next commit calls `on_busy`."""
        self.idle = True

    def mark_busy(self) -> None:
        """A commit took place, in this process or another."""
        if self.idle:
            self.idle = False
            call_all(self._lifecycle.on_busy)

    def on_unavailable(self, error: Unavailable) -> None:
        """A read could not reach the database: decide nothing until it is back."""
        if self.down is None and not self.commits.writing:
            self.rollback.go_down([], error)

    def stop_deciding(self, error: Unavailable) -> list[BatchEntry]:
        """Decide nothing until the database is back. Returns the open turns, which the caller rolls back."""
        self.down = error
        self.down_since = self.world.now()
        self.leases.read = False  # a commit that seemed to fail may be on disk
        self.inline.clear()
        return self._uncommitted.take_open()

    def still_unavailable(self, error: Unavailable) -> None:
        self.down = error

    def on_available(self) -> None:
        """The database works again: decide the deferred reports."""
        self.down = self.down_since = None
        self.rollback.submit_deferred()
        self.waiters.check_owned()  # a commit that seemed to fail may be on disk

    # -- the shards of this process

    @property
    def holder(self) -> bool:
        """Whether this process owns any shard."""
        return 1 in self.owned

    @property
    def owns_all(self) -> bool:
        return 0 not in self.owned

    @property
    def active(self) -> bool:
        """Whether this process serves workers: it owns shards, or may take tasks of shards that others own."""
        return 1 in self.owned or not self.store.exclusive

    def owns(self, key: int) -> bool:
        """Whether this process owns the instance with this key."""
        return bool(self.owned[key & self._mask])

    def shards(self) -> Sequence[int] | None:
        """The shards of this process; None: all of them."""
        return None if self.owns_all else [shard for shard, owned in enumerate(self.owned) if owned]

    def close(self) -> None:
        """Stop timers, deliveries between instances, and checks for waiters."""
        self._stopping = True
        self.dispatcher.stop()
        self.outbox.stop()
        self.waiters.close()
        self.timers.stop()

    # -- small things

    def _wake(self, key: int) -> None:
        if self.down is None:  # otherwise the wake is read from disk again when the database is back
            self.submit(key, self._due[key & self._mask])

    def wait_for_workers(self, shards: Iterable[int], since: Micros, until: Micros) -> None:
        """Postpone the deadlines of remote workers to `until`: before `since` their reports could not be received here."""
        due = Due(since=since, until=until)
        for shard in shards:
            self._due[shard] = due

    def forget_code(self, entry: CachedInstance) -> None:
        run = entry.instance.run
        if run is not None:
            for executor in self.matching.executors:
                executor.forget(run.key)
