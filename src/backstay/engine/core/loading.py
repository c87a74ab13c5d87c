"""Loading: reads instances from the store and folds them. Messages that wait for one instance share one read."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from backstay.engine.core.cache import Cache, CachedInstance, Reply
from backstay.engine.core.timer_queue import TimerQueue
from backstay.engine.core.world import World, turn
from backstay.engine.tasks.leases import Leases
from backstay.engine.tasks.refused_completions import Submits
from backstay.kernel.decision import InstanceRow, RunRow
from backstay.kernel.event import HistoryDamaged
from backstay.kernel.machine import Machine
from backstay.kernel.message import Message, Refused
from backstay.kernel.state import Instance, Moment, Run
from backstay.kernel.task import Task
from backstay.kernel.turn import add_task_deadlines
from backstay.kernel.values import Micros
from backstay.kernel.views import log_ids
from backstay.store import Loaded, Opening, Ready, Store
from backstay.store.errors import Unavailable

log = logging.getLogger("backstay.engine")

LONG = 1000  # events of a history that is folded page by page
PAGE = 200  # events that are read and folded at a stretch

WaitingMessage = tuple[Message, Reply | None, bool]
"""A message, the callback for its answer, and whether to submit it again if the instance cannot be read."""


class LoadingEngine(Submits, Protocol):
    """The part of an engine that loading uses."""

    down: Unavailable | None

    @property
    def holder(self) -> bool: ...
    def owns(self, key: int) -> bool: ...
    def submit_later(self, key: int, message: Message) -> None: ...
    def decide(self, entry: CachedInstance, message: Message, reply: Reply | None, again: bool) -> None: ...
    def keep_or_evict(self, entry: CachedInstance) -> None: ...


class Loading:
    def __init__(
        self,
        engine: LoadingEngine,
        world: World,
        store: Store,
        machine: Machine,
        cache: Cache,
        timers: TimerQueue,
        leases: Leases,
    ) -> None:
        self._engine = engine
        self._world = world
        self._store = store
        self._machine = machine
        self._cache = cache
        self._timers = timers
        self._leases = leases
        self._waiting: dict[int, list[WaitingMessage]] = {}  # by instance that is being read
        self._later: dict[int, list[WaitingMessage]] = {}  # arrived during the read
        self._outdated: set[int] = set()  # instances to be read once more
        self._rearmed: dict[tuple[int, Moment], Micros] = {}  # by run; small, since clocks rarely go back
        self.on_damage: Callable[[int], None] = lambda key: None  # called if an instance cannot be folded
        # Called with leases that another process has ended, and the tasks as they are now.
        self.on_ended_elsewhere: Callable[[Sequence[Task], Mapping[str, Task]], None] = lambda leases, tasks: None

    def load(self, key: int, message: Message, reply: Reply | None, again: bool) -> None:
        if key in self._waiting:
            self._later.setdefault(key, []).append((message, reply, again))
            return
        self._waiting[key] = [(message, reply, again)]
        self._begin(key)

    def reads(self, key: int) -> bool:
        """Whether the instance is being read."""
        return key in self._waiting

    def outdate(self, key: int | None = None) -> None:
        """Read this instance again, or every instance that is being read: another process may have changed it meanwhile."""
        self._outdated.update(self._waiting if key is None else self._waiting.keys() & {key})

    def _begin(self, key: int) -> None:
        try:
            answer = self._store.load(key)
        except Exception as error:
            self._loaded(key, None, error)
            return
        if isinstance(answer, Ready):
            self._loaded(key, answer.value, None)
        else:
            self._world.spawn(self._load_later(key, answer), "backstay-load")

    async def _load_later(self, key: int, answer: Awaitable[Loaded | None]) -> None:
        folded: Loaded | Instance | None
        try:
            folded = loaded = await answer
            if loaded is not None and len(loaded.history) > LONG:
                folded = await self._restore_slowly(loaded)
        except Exception as error:
            self._loaded(key, None, error)
        else:
            self._loaded(key, folded, None)

    async def _restore_slowly(self, loaded: Loaded) -> Instance:
        """Fold a long history page by page: the engine decides for others meanwhile, and the messages of this instance wait.

        If another process changes the instance in between, the guard of the next decision fails, as after any read.
        """
        instance = self.blank(loaded.row, loaded.run)
        for start in range(0, len(loaded.history), PAGE):
            if instance.run is not None:
                self._machine.fold(instance, instance.run, loaded.history[start : start + PAGE])
            await self._turn()
        self.add_rows(instance, loaded.row, loaded.run, loaded.tasks)
        instance.needs_reconcile |= loaded.drifted
        return instance

    async def _turn(self) -> None:
        """Let the event loop do other work."""
        await turn(self._world)

    def _loaded(self, key: int, loaded: Loaded | Instance | None, error: Exception | None) -> None:
        if key in self._outdated:
            self._outdated.discard(key)
            self._begin(key)
            return
        self._fold(key, self._waiting.pop(key), loaded, error)
        later = self._later.pop(key, None)
        if later is None:
            return
        # A message that arrived during the read may belong to a newer state than the one that was read. So the instance is
        # read again, once for all of them.
        if key in self._waiting:
            self._waiting[key] += later
        elif self._engine.down is None and self._cache.get(key) is None:
            self._waiting[key] = later
            self._begin(key)
        else:
            for message, reply, again in later:
                self._engine.submit(key, message, reply, again=again)

    def _fold(
        self, key: int, waiting: list[WaitingMessage], loaded: Loaded | Instance | None, error: Exception | None
    ) -> None:
        if error is None and loaded is None:
            error = Refused("workflow_not_found", "no such workflow", key=key)
        if error is None:
            error = self._engine.down  # since the read began: nothing is decided until the database is back
        entry: CachedInstance | None = None
        if error is None and loaded is not None:
            try:
                instance = loaded if isinstance(loaded, Instance) else self.restore(loaded)
                entry = self._cache.add(CachedInstance(instance, None))
                entry.sends_unread = self._store.shared
            except Exception as damage:
                error = damage
        if entry is None:
            if isinstance(error, HistoryDamaged):
                log.error("%s", error, extra=log_ids.of_damage(error))
            if not isinstance(error, (Refused, Unavailable)):
                self.on_damage(key)
            for message, reply, again in waiting:
                if reply is not None:
                    reply(None, error)
                elif again and isinstance(error, Unavailable):
                    self._engine.submit_later(key, message)  # a report of this process: no worker repeats it
            return
        if self._engine.owns(key):
            # Another process may have changed its wake.
            self._timers.set(key, entry.instance.next_wake)
        elif self._engine.holder:  # its shard may have moved since the message was submitted
            waiting = [(message.beside_owner(), reply, again) for message, reply, again in waiting]
        ended = self._recount_leases(entry.instance)
        for message, reply, again in waiting:
            self._engine.decide(entry, message, reply, again)
        if ended:
            self.on_ended_elsewhere(ended, entry.instance.tasks)
        if not entry.inflight:
            self._engine.keep_or_evict(entry)

    def _recount_leases(self, instance: Instance) -> Sequence[Task]:
        """The leases of this instance that this process knows and another one has ended."""
        return () if self._store.exclusive else self._leases.found(instance.key, instance.tasks)

    def unchanged(self, opening: Opening) -> Instance | None:
        """The committed state in memory, for reading, if it is exactly what these rows say."""
        entry = self._cache.get(opening.row.key)
        if entry is None or entry.inflight or entry.dead or not _is_state_of(opening, entry.instance):
            return None
        return entry.instance

    async def fold_slowly(self, opening: Opening) -> Instance:
        """The current run of an instance from these rows and its history, which is read and folded a page at a time."""
        instance = self.blank(opening.row, opening.run)
        if instance.run is not None:
            await self._fold_pages(instance, instance.run, opening.row.length)
            if (instance.run.length, instance.run.checksum) != (opening.row.length, opening.row.checksum):
                raise HistoryDamaged(
                    instance.run.key, instance.run.length, "it is not the event its workflow ended with"
                )
            await self._require_end(opening, instance.run)
        self.add_rows(instance, opening.row, opening.run, opening.tasks)
        return instance

    async def _require_end(self, opening: Opening, run: Run) -> None:
        """Require that no event is stored after the last one, unless the instance has moved on meanwhile."""
        more = await self._store.history(run.key, run.length, 1)
        if more:
            again = await self._store.opening(opening.row.key)
            if again is not None and again.row.last_decision == opening.row.last_decision:
                raise HistoryDamaged(run.key, more[0].sequence, "it comes after the end of its workflow")

    async def fold_older(self, row: RunRow) -> Instance:
        """A run that is not the current one of its instance, from its history alone."""
        instance = Instance(row.workflow, row.namespace, row.workflow_id)
        instance.workflow_type = row.workflow_type
        run = instance.run = Run(row.key, row.run_id, row.number)
        await self._fold_pages(instance, run, row.length)
        return instance

    async def _fold_pages(self, instance: Instance, run: Run, length: int) -> None:
        """Fold a history up to a length. The event loop does other work between two pages."""
        while run.length < length:
            page = await self._store.history(run.key, run.length, min(PAGE, length - run.length))
            if not page:
                raise HistoryDamaged(run.key, run.length + 1, "missing, and so is everything after it")
            self._machine.fold(instance, run, page)
            await self._turn()

    def restore(self, loaded: Loaded) -> Instance:
        """Fold an instance from its rows."""
        instance = self.blank(loaded.row, loaded.run)
        if instance.run is not None:
            self._machine.fold(instance, instance.run, loaded.history)
        self.add_rows(instance, loaded.row, loaded.run, loaded.tasks)
        instance.needs_reconcile |= loaded.drifted
        return instance

    def blank(self, row: InstanceRow, run: RunRow | None) -> Instance:
        """An instance as its row says, with its current run, whose history is not folded yet."""
        instance = Instance(row.key, row.namespace, row.workflow_id)
        instance.workflow_type = row.workflow_type
        instance.exists = True
        instance.last_decision = instance.loaded_from = row.last_decision
        instance.command_sequence = row.command_sequence
        instance.cursor = row.cursor
        instance.attempts = row.attempts
        instance.next_wake = row.next_wake
        instance.reserved_at = row.reserved_at
        if run is not None:
            instance.run = Run(run.key, run.run_id, run.number)
        return instance

    def add_rows(self, instance: Instance, row: InstanceRow, indexed: RunRow | None, tasks: Sequence[Task]) -> None:
        """Add the state that is stored beside history, once the history is folded."""
        run = instance.run
        if run is not None and indexed is not None:
            for task in tasks:
                instance.keep_task(task)
                add_task_deadlines(run, task)
            self._machine.agenda.restart_after_clock_change(instance, self._world.now(), self._rearmed)
            instance.missing_tasks = row.expects - len(tasks)
            instance.needs_reconcile = instance.missing_tasks != 0 or (indexed.closed_at is None) != run.is_open
        instance.buffered_events = list(row.buffered_events)


def _is_state_of(opening: Opening, instance: Instance) -> bool:
    """Whether a state is that of these rows: after the same decision, with the same history, tasks and wake."""
    row, indexed, run = opening.row, opening.run, instance.run
    return (
        run is not None
        and indexed is not None
        and (instance.last_decision, instance.next_wake, instance.cursor, instance.attempts, instance.command_sequence)
        == (row.last_decision, row.next_wake, row.cursor, row.attempts, row.command_sequence)
        and (run.key, run.length, run.checksum) == (row.run, row.length, row.checksum)
        and (indexed.closed_at is None) == run.is_open
        and row.expects == len(instance.tasks) + instance.missing_tasks
        and len(instance.tasks) == len(opening.tasks)
        and all(instance.tasks.get(task.id) == task for task in opening.tasks)
        and list(instance.buffered_events) == list(row.buffered_events)
    )
