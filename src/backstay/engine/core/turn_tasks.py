"""Tasks of a turn: which of those that a decision makes ready are leased, or run, in the same decision.

A process may come to own a shard, or lose it, in the middle of a turn. So it is looked up for each task.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from backstay.engine.core.cache import CachedInstance
from backstay.engine.core.counters import Counters
from backstay.engine.core.world import World
from backstay.engine.tasks.inline import InlineCode
from backstay.engine.tasks.matching import Matching
from backstay.kernel.features.lease import Offer
from backstay.kernel.machine import Machine
from backstay.kernel.message import Message
from backstay.kernel.state import Run
from backstay.kernel.task import Lease, Task
from backstay.kernel.turn import Turn
from backstay.kernel.values import LEASE
from backstay.store import Store


class TurnTasks:
    """`code_is_due`: called when code was queued that runs before the next commit."""

    def __init__(
        self,
        world: World,
        store: Store,
        machine: Machine,
        matching: Matching,
        inline: InlineCode,
        counters: Counters,
        code_is_due: Callable[[], None],
    ) -> None:
        self._world = world
        self._counters = counters
        self._code_is_due = code_is_due
        self._machine = machine
        self._matching = matching
        self._inline = inline
        self._owned = store.owned
        self._mask = store.shards - 1

    def runs_inline(self, entry: CachedInstance, run: Run, due: Task, code_ran: bool) -> bool:
        """Whether the code of a due task runs before the turn is sealed. If it is to run here, it is queued for that."""
        if not self._owned[entry.instance.key & self._mask]:
            return False
        if code_ran:
            return True  # its worker has run it, and its commands follow in the same request
        executor = self._matching.inline_executor(run)
        if executor is None:
            return False
        self._inline.due.append((entry, due.id, executor))
        return True

    def match(self, entry: CachedInstance, turn: Turn, message: Message | None = None) -> None:
        """Find workers for the tasks that a message made ready. A task that a worker takes is leased in the same decision.

        The offer reserves a slot of its worker at once: the next task, of this instance or another, must not get the same
        slot while this one is being written. A slot is reserved in memory and not in the rows, so a turn that is discarded
        gives its slots back (`Rollback.release_slots`). Without that the worker would seem full for ever. Tests:
        `test_a_decision_that_breaks_gives_back_the_room_it_had_taken`, and the mutant "room is not given back".

        The tasks of another process's instance are left to it, unless `message` is there to take one.
        """
        matching = self._matching
        owned = self._owned[entry.instance.key & self._mask]
        while turn.ready:  # a grant may make others ready
            ready, turn.ready = turn.ready, {}
            if not owned:
                if isinstance(message, Offer) and message.steals and message.task_id in ready:
                    self._steal(entry, turn, ready[message.task_id])
                continue
            for task in ready.values():
                taker = matching.offer(task)
                if taker is None:
                    matching.lanes.add(task)
                elif isinstance(taker, Lease):
                    self._machine.grant(turn, task, taker)
                else:
                    self._inline.due.append((entry, task.id, taker))
                    self._code_is_due()

    def _steal(self, entry: CachedInstance, turn: Turn, task: Task) -> None:
        """Give a task of another process's instance to a worker here, under a lease that has an end."""
        taker = self._matching.offer(task)
        if isinstance(taker, Lease):
            until = taker.until if taker.until is not None else self._world.now() + LEASE
            self._machine.grant(turn, task, replace(taker, until=until))
        elif taker is not None:
            self._inline.steal(entry, task.id, taker)
            self._code_is_due()
        if taker is not None:
            self._counters.stolen += 1
