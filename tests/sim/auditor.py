"""The auditor: what must hold after every commit, at every checkpoint, and when all is over.

It never looks into an engine. It reads what was committed, folds it with the real kernel, replays it with the real worker
code, and compares that with the rows, with what the clients were told, and with what the activities have done.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from itertools import islice
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from backstay.codec.values import loads
from backstay.engine.core.cache import CachedInstance, Reply
from backstay.engine.core.engine import Engine
from backstay.engine.core.refusals import is_refusal
from backstay.engine.core.waiters import ENDED
from backstay.engine.reading.describe import describe_state, with_history
from backstay.kernel.decision import Decision, InstanceRow
from backstay.kernel.event import HistoryDamaged, Recorded, clock
from backstay.kernel.features import pause
from backstay.kernel.features.activity import Activities
from backstay.kernel.features.child.messages import StartFromParent
from backstay.kernel.features.start import started_of
from backstay.kernel.features.workflow_task.expected import due_task_id
from backstay.kernel.groups import Groups
from backstay.kernel.machine import Machine
from backstay.kernel.message import Message
from backstay.kernel.send import pack
from backstay.kernel.state import Instance, Run
from backstay.kernel.task import Task
from backstay.kernel.turn import add_task_deadlines
from backstay.kernel.values import SECOND, activity_task_id, instance_kind
from backstay.protocol.commands import SIGNAL_WAIT
from backstay.protocol.export import bundle
from backstay.protocol.requests import AwaitResult
from backstay.sdk.author.workflow import definition_of
from backstay.sdk.replay.live_run import LiveRun
from backstay.sdk.replay.reactions import REACTIONS
from backstay.sdk.worker.registry import Registry
from backstay.store import Loaded

from . import exports
from .clients import Told
from .ownership_laws import OwnershipLaws
from .poll_laws import one_task_each
from .programs import ACTIVITIES, BUILDS, HELPERS, disagreement, ledger
from .schedules import ScheduleLaws

if TYPE_CHECKING:
    from .nodes import Node
    from .simulation import Simulation

CLOSES = {
    "WorkflowCompleted": "completed",
    "WorkflowFailed": "failed",
    "WorkflowTimedOut": "timed_out",
    "WorkflowContinuedAsNew": "continued",
    "WorkflowCancelled": "cancelled",
    "WorkflowTerminated": "terminated",
    "ScheduleRolledOver": "continued",
    "ScheduleDeleted": "deleted",
}
AFTERWARDS = {
    *("UpdateCompleted", "ActivityCancelled", "ParentClosePolicyApplied", "ParentClosePolicyFailed"),
    *("ScheduleStartConfirmed", "ScheduleActionClosed", "ScheduleActionContinued"),  # more about them in `ScheduleLaws`
    *("ArchiveRequested", "WorkflowArchived"),
}
OPENS = {
    "ActivityScheduled",
    "TimerScheduled",
    "SignalWaitOpened",
    "ConditionWaitOpened",
    "ChildWorkflowScheduled",
}
ENDS = {
    *("ActivityCompleted", "ActivityFailed", "ActivityTimedOut", "ActivityCancelled", "TimerFired", "TimerCancelled"),
    *("SignalApplied", "ConditionWaitSatisfied", "ConditionWaitTimedOut"),
    *("ChildRunCompleted", "ChildRunFailed", "ChildRunCancelled", "ChildRunTerminated"),
}
OUTCOMES = {"ActivityCompleted", "ActivityFailed"}
TOLD = {"SignalReceived", "UpdateAccepted", "CancelRequested"}
SOON = 8
"""Seconds that an answer may be on its way."""

HEARD = 45
"""Seconds within which news are heard. Who missed the notice of another node looks every fifteen."""

HEARD_OVER_LINKS = HEARD + 30
"""The same if the answer comes over a link: it may be lost, and is asked for again."""


READ = 100
"""How often a node may read an instance in calm, without a commit to it: for each sweep, wait and question."""


class Watched:
    """One run, event by event."""

    def __init__(self) -> None:
        self.length = 0
        self.at = 0
        self.closed: str | None = None
        self.closed_when: float | None = None
        self.opened: set[int] = set()
        self.ended: set[int] = set()
        self.attempts: dict[int, tuple[int, str | None]] = {}
        self.paused = False
        self.retries: Counter[int] = Counter()
        self.updates: dict[str, int] = {}
        self.commands = 0
        self.groups: dict[
            str, tuple[int, dict[int, None]]
        ] = {}  # bounded ones: the bound, and the leaves that are open
        self.groups_of: dict[int, tuple[str, ...]] = {}


def retried(entry: Recorded) -> bool:
    """Whether an attempt has failed, or was too late. One whose process was lost is followed by the next of the same task."""
    event: Any = entry.event
    return entry.type == "ActivityRetryScheduled" and event.retry_task_id != event.retry_of_task_id


def _undelivered(entry: Recorded) -> bool:
    """Whether an attempt was recorded as started and never reached its worker, as after a commit that took very long."""
    return (
        entry.type == "ActivityRetryScheduled" and getattr(entry.event, "retry_reason", "") == "activity_not_delivered"
    )


class Auditor:
    known = (*BUILDS["B"], *ACTIVITIES, *HELPERS)

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.machine = Machine()
        self.registry = Registry(None, "off")
        self.registry.register(self.known)
        self.runs: dict[int, Watched] = {}
        self.sent: set[tuple[int, int, str, bytes]] = set()
        self.taken: set[int] = set()
        self.seen: dict[str, Any] = {}
        self.checks: Counter[str] = Counter()
        self.touched: set[int] = set()
        self.read: defaultdict[int, Counter[str]] = defaultdict(Counter)  # how often since its last commit, by node
        self.leased: dict[
            tuple[str, int], int
        ] = {}  # ordinary workflow tasks and their attempts, and when they were leased
        self.schedules = ScheduleLaws(sim)
        self.ownership = OwnershipLaws(sim, self.must)
        self.at_work: set[str] = set()  # workflow tasks that are leased
        self.halted: set[int] = (
            set()
        )  # instances whose code was kept from moving: paused, or a workflow task has failed
        self._unheard: dict[Any, float] = {}  # who waits for what has come, and since when that is so
        self._asked: dict[
            asyncio.Task[Any], tuple[Node, AwaitResult, int]
        ] = {}  # who waits for ends, wherever they come

    def must(self, holds: bool, law: str, about: object) -> None:
        self.checks[law] += 1
        if not holds:
            self.sim.violation(law, about)

    # -- after every commit

    def committed(self, decision: Decision) -> None:
        for entry in decision.events:
            self.event(entry, decision.instance)
        row = decision.instance
        self.touched.add(row.key)
        self.read.pop(row.key, None)
        if any(command.command_type == "pause" for command in decision.commands):
            self.halted.add(row.key)
        self.sim.falsified.difference_update(run.key for _, run in decision.runs)
        if row.key not in self.sim.sabotaged:
            rows = len(self.sim.disk.tasks.get(row.key, ()))
            self.must(rows == row.expects, "I9 tasks are conserved", (row.workflow_id, rows, row.expects))
            for task in [change.task for change in decision.tasks if change.task is not None]:
                begun = task.state != "leased" or task.leased_at is not None
                self.must(begun, "I4 a lease is given, not made up", (row.workflow_id, task))
        self.given_once(decision)
        self.handed_out(decision)
        one_task_each(self.sim, decision, self.must)
        self.schedules.committed(decision)
        self.left_alone(decision)
        for send in decision.sends:
            made = (send.key, send.sender, send.workflow_id, pack(send.message))
            self.must(made not in self.sent, "I9 a send is made once", made)
            self.sent.add(made)
        self.taken.update(decision.taken_sends)
        self.sim.operated(1)

    def given_once(self, decision: Decision) -> None:
        """No two leases of an ordinary workflow task have one number: a report says by it which of them it is of."""
        for task in [change.task for change in decision.tasks if change.task is not None]:
            ordinary = task.kind == "workflow" and task.history_limit is None
            if (
                ordinary
                and task.state == "leased"
                and task.leased_at is not None
                and not self.sim.amnesia.is_of(task.id)
            ):
                first = self.leased.setdefault((task.id, task.attempt), task.leased_at)
                self.must(first == task.leased_at, "I4 an attempt is given once", (task.id, task.attempt, first))

    def loads(self, node: str, key: int) -> None:
        """In calm nobody reads an instance again and again that does not change."""
        if self.sim.calm_at is None or key in self.sim.damaged or key in self.sim.sabotaged:
            return
        self.read[key][node] += 1
        times = self.read[key][node]
        self.must(times <= READ, "nobody reads an instance again and again", (node, key, times))

    def left_alone(self, decision: Decision) -> None:
        """The row of a workflow task that somebody works on does not go away as long as history has use for it."""
        for change in decision.tasks:
            if change.task is not None:
                if change.task.kind == "workflow" and change.task.state == "failed":
                    self.halted.add(decision.instance.key)
                if change.task.kind == "workflow" and change.task.state == "leased":
                    self.at_work.add(change.task_id)
                else:
                    self.at_work.discard(change.task_id)
            elif change.task_id in self.at_work:
                self.at_work.discard(change.task_id)
                if not decision.events and decision.instance.key not in self.sim.damaged:
                    loaded = self.sim.disk.load(self.machine.kinds, decision.instance.key)
                    assert loaded is not None
                    gone = due_task_id(self.fold(loaded)) != change.task_id
                    self.must(gone, "I8 what is at work is left alone", (loaded.row.workflow_id, change.task_id))

    def handed_out(self, decision: Decision) -> None:
        """Of the open leaves of a bounded group, in the order they were scheduled, only the first few are handed out."""
        given = [(c.task.run, c.task.step) for c in decision.tasks if c.task is not None and c.task.step is not None]
        for send in decision.sends:
            if isinstance(send.message, StartFromParent):
                parent = send.message.parent
                given.append((self.sim.disk.run_ids[parent.workflow_run_id], parent.sequence))
        for run, step in given:
            for group in self.runs[run].groups_of.get(step, ()):
                limit, open = self.runs[run].groups[group]
                early = list(islice(open, limit))
                held = step not in open or step in early
                self.must(held, "I12 a bounded group keeps its bound", (group, limit, step, early))

    def grouped(self, run: Watched, entry: Recorded, step: int) -> None:
        """Keep the bounded groups of a run: which of their leaves are open."""
        if entry.type in ENDS:
            for group in run.groups_of.pop(step, ()):
                run.groups[group][1].pop(step, None)
            return
        bounds: dict[str, int] = {}  # a group that is all of another has its name: they are one, with the tighter bound
        for group in getattr(entry.event, "parallel_group_path", ()):
            if group.parallel_group_limit is not None:
                id, limit = group.parallel_group_id, group.parallel_group_limit
                bounds[id] = min(limit, bounds.get(id, limit))
        for id, limit in bounds.items():
            run.groups.setdefault(id, (limit, {}))[1][step] = None
        if bounds:
            run.groups_of[step] = tuple(bounds)

    def event(self, entry: Recorded, row: InstanceRow) -> None:
        run = self.runs.setdefault(entry.run, Watched())
        about = f"{row.workflow_id} {entry.sequence} {entry.type}"
        self.must(entry.sequence == run.length + 1, "I1 history is dense", about)
        self.must(entry.at >= run.at, "I1 recorded time does not go back", about)
        run.length, run.at = entry.sequence, entry.at
        if run.closed:
            self.must(entry.type in AFTERWARDS, "I2 the end is the end", about)
        if entry.type in CLOSES:
            self.must(run.closed is None, "I2 one end per run", about)
            run.closed = CLOSES[entry.type]
            run.closed_when = self.sim.loop.time()
        event: Any = entry.event
        step = getattr(event, "sequence", None)
        if getattr(event, "timer_kind", None) is not None:
            step = None  # the timeout of a wait shares its step
        if entry.type in OPENS and step is not None:
            self.must(step not in run.opened, "I2 a step opens once", about)
            run.opened.add(step)
            self.grouped(run, entry, step)
        if entry.type in ENDS and step is not None:
            self.must(step in run.opened, "I3 what ends was open", about)
            self.must(step not in run.ended, "I2 a step ends once", about)
            run.ended.add(step)
            self.grouped(run, entry, step)
        if entry.type == "ActivityStarted":
            before = run.attempts.get(event.sequence, (0, None))[0]
            self.must(event.attempt_number > before, "I4 attempts count up", about)
            run.attempts[event.sequence] = (event.attempt_number, entry.context.owner)
            if not event.local_activity:
                self.must(not run.paused, "a paused run begins nothing", about)
                task = activity_task_id(
                    event.activity_attempt_id.partition("-")[0], event.sequence, run.retries[event.sequence] + 1
                )
                self.must(entry.context.task_id == task, "I4 an attempt is one of its own task", (about, entry.context))
        if entry.type in ("WorkflowPaused", "WorkflowUnpaused"):
            run.paused = entry.type == "WorkflowPaused"
        if retried(entry):
            run.retries[event.sequence] += 1
        if entry.type in OUTCOMES and step in run.attempts and not event.local_activity:
            number, owner = run.attempts[step]
            said = (event.attempt_number, entry.context.attempt or number, entry.context.owner or owner)
            self.must(said == (number, number, owner), "I4 only the current attempt writes", (about, said))
        punctual = not self.sim.deaf and row.key not in self.sim.sabotaged
        if entry.type == "TimerFired" and self.sim.calm_at is not None and punctual:
            late = self.sim.true_time() - max(event.fire_at, self.sim.calm_at + 60 * SECOND)
            # On a bad line to a far database to read an instance and to write it take seconds each, and again after a conflict.
            # Where nobody can tell that a session is gone, the shards of the dead rest for a while.
            patience = (30 if self.sim.far else 10 if self.sim.sharing.evidence else 20) * SECOND
            self.must(late < patience, "I8 what is due comes in time", (about, late / SECOND))
        until = entry.context.lease_expires_at
        if until is not None:
            self.must(clock(entry) < until, "I4 nothing is written under a lease that is over", about)
        if entry.type in ("UpdateAccepted", "UpdateCompleted"):
            update = event.update_id
            if entry.type == "UpdateAccepted":
                run.updates.setdefault(update, 0)
            else:
                run.updates[update] = run.updates.get(update, 0) + 1
                self.must(run.updates[update] == 1, "I2 an update ends once", about)

    # -- checkpoints

    def fold(self, loaded: Loaded) -> Instance:
        row = loaded.row
        flow = Instance(row.key, row.namespace, row.workflow_id)
        flow.workflow_type = row.workflow_type
        flow.exists = True
        flow.last_decision = row.last_decision
        flow.command_sequence = row.command_sequence
        flow.cursor = row.cursor
        flow.attempts = row.attempts
        flow.next_wake = row.next_wake
        if loaded.run is not None:
            run = flow.run = Run(loaded.run.key, loaded.run.run_id, loaded.run.number)
            self.machine.fold(flow, run, loaded.history)
            for task in loaded.tasks:
                flow.keep_task(task)
                add_task_deadlines(run, task)
        flow.buffered_events = list(row.buffered_events)
        return flow

    def checkpoint(self) -> None:
        sim = self.sim
        twice = [id for id in ledger.twice if not sim.amnesia.is_of(id)]
        self.must(not twice, "I4 no attempt runs twice", twice)
        touched, self.touched = sorted(self.touched), set()  # of what has not moved, nothing new is to be learned
        for key in touched:
            if key in sim.damaged:
                continue
            try:
                loaded = sim.disk.load(self.machine.kinds, key)
            except HistoryDamaged as damage:
                self.must(False, "I1 history adds up", damage)
                continue
            assert loaded is not None
            self.check(loaded)
        sim.compare_with_file()

    def check(self, loaded: Loaded) -> None:
        row, run = loaded.row, loaded.run
        if run is None:
            return
        flow = self.fold(loaded)
        assert flow.run is not None
        id = row.workflow_id
        expected = self.machine.expect(flow)
        rows = {task.id: task for task in loaded.tasks}
        if row.key not in self.sim.sabotaged:
            missing = [id for id in expected.tasks if id not in rows]
            more = [id for id in rows if id not in expected.tasks]
            self.must(not missing and not more, "I8 what is expected exists", (id, missing, more))
            self.wake(flow, expected.next_wake, id)
        index = self.machine.index(flow, flow.run)
        if flow.run.is_open:
            index = replace(index, length=run.length)  # how long it is, the index says when it is over
        forged = run.key in self.sim.falsified
        self.must(forged or index == run, "I6 the index is the fold", (id, index, run))
        self.must(row.length == flow.run.length, "I6 the instance ends where its history does", id)
        self.must(flow.run.is_open or not expected.tasks, "I2 nothing is expected of what is over", id)
        self.bounds(flow, rows)
        if flow.run.is_open and row.key not in self.sim.sabotaged:
            moved = bool(expected.tasks) or expected.next_wake is not None or self.machine.waits_externally(flow.run)
            self.must(moved, "I8 every open run has something that moves it", id)

    def heard(self) -> None:
        """Who waits for the end of a run or of an update hears of it, at whichever node."""
        still: dict[Any, float] = {}
        now = self.sim.loop.time()
        for node in self.sim.nodes:
            if not node.serving or node.life.paused or node.app.engine.down is not None:
                continue
            for key, topic, watcher in node.app.engine.waiters:
                if key not in self.sim.damaged and not watcher.future.done() and self._has_come(key, topic):
                    since = still[watcher.future] = self._unheard.get(watcher.future, now)
                    self.must(now - since < HEARD, "I8 who waits for an end hears of it", (node.name, key, topic))
        for waits, (node, request, pauses) in list(self._asked.items()):
            if waits.done() or not node.serving or node.life.pauses > pauses:
                del self._asked[waits]
                continue
            key = self.sim.disk.names.get((request.namespace, request.workflow_id), 0)
            if key not in self.sim.damaged and node.app.engine.down is None and self._has_come(key, ENDED):
                since = still[waits] = self._unheard.get(waits, now)
                about = (node.name, request.workflow_id)
                self.must(now - since < HEARD_OVER_LINKS, "S13 who waits at any node hears", about)
        self._unheard = still

    def waits(self, node: Node, request: AwaitResult, waits: asyncio.Task[Any]) -> None:
        self._asked[waits] = (node, request, node.life.pauses)

    def waited_in_vain(self, told: Told) -> None:
        """Nobody told an end that came while it was waited for. Where there is one node, that is the one that ends runs."""
        if told.forgotten:
            return
        row = self.sim.disk.workflows[self.sim.disk.names["default", told.id]]
        ended = self.runs[row.run or 0].closed_when
        if self.sim.places == 1 and row.key not in self.sim.damaged:
            since = 0 if ended is None else self.sim.loop.time() - ended
            # Whether what could not be written is on disk is looked for. Far away that takes seconds, with longer rests between.
            bound = HEARD if self.sim.far else SOON
            self.must(since < bound, "I8 who waits for an end hears of it", (told.id, since))

    def _has_come(self, key: int, topic: str) -> bool:
        row = self.sim.disk.workflows.get(key)
        if row is None:
            return key in self.sim.amnesia.instances  # it is gone, and who waits for it must hear that
        if row.run is None:
            return False
        if topic == ENDED:
            return self.runs[row.run].closed is not None
        update = topic.partition(":")[2]
        return any(self.runs[r.key].updates.get(update) for r in self.sim.disk.runs.values() if r.workflow == key)

    def mended(self) -> None:
        """Long after faults have stopped, the rows are what history expects, whatever was done to them."""
        sim = self.sim
        for key in sorted(sim.disk.workflows):
            loaded = None if key in sim.damaged else sim.disk.load(self.machine.kinds, key)
            if loaded is not None and loaded.run is not None:
                expected = set(self.machine.expect(self.fold(loaded)).tasks)
                rows = {task.id for task in loaded.tasks}
                # A row that is lost shows by the count of rows. If a forged one makes up for it, with a lease that has an end, both
                # are found when the shard is read again; then everything must come to its end.
                more = [task for task in loaded.tasks if task.id not in expected]
                hidden = len(rows) == len(expected) and all(task.id in sim.rows.forged and task.until for task in more)
                self.must(hidden or rows == expected, "I8 what was lost or forged is mended", (key, rows ^ expected))
                self.must(loaded.row.expects == len(rows), "I8 a count that was forged is mended", key)
                shut = self.runs[loaded.run.key].closed is not None
                told = not shut or loaded.run.closed_at is not None
                self.must(told, "I8 the index of a run that is over says so again", loaded.row.workflow_id)

    def bounds(self, flow: Instance, rows: dict[str, Task]) -> None:
        """A bounded group has no more leaves in flight than it may."""
        groups = flow.current.parts.get(Groups)
        for id, group in groups.groups.items() if groups is not None else ():
            if group.limit is not None:
                given = [step for step in group.open if any(task.step == step for task in rows.values())]
                about = (flow.workflow_id, id, group.limit, given)
                self.must(len(given) <= group.limit, "I12 a bounded group keeps its bound", about)

    def held_back(self, task: Task) -> bool:
        """Whether something that is meant to be so keeps this task waiting."""
        return False

    def nothing_waits(self, patience: int, kind: str) -> None:
        """In calm, no task of the nodes' own queue stands ready for long."""
        sim = self.sim
        now = sim.true_time()
        for task in sim.disk.all_tasks():
            if task.kind != kind or task.state != "ready" or task.routing.queue != "default" or sim.deaf:
                continue
            if task.available_at > now - patience * SECOND or task.workflow in sim.damaged | sim.sabotaged:
                continue
            if self.held_back(task):
                continue
            self.must(self._is_paused(task), "I8 what is ready is begun", task)

    def _is_paused(self, task: Task) -> bool:
        loaded = self.sim.disk.load(self.machine.kinds, task.workflow)
        assert loaded is not None
        return not pause.allows(self.fold(loaded).current)

    def wake(self, flow: Instance, due: int | None, id: str) -> None:
        stored = flow.next_wake
        if due is not None and due <= self.sim.latest():
            return  # it was delivered
        if due is not None and due <= self.sim.farthest and not pause.allows(flow.current):
            return  # delivered by a node that is gone, in whose time it was due; whoever ends the pause sets it again
        if flow.current.last_at > self.sim.latest():
            return  # the clock went back: what was set by the old one begins again from now
        # A heartbeat that is not worth recording is remembered by the live engine alone.
        beating = any(e.policy.heartbeat_timeout for e in flow.current.part(Activities).open.values())
        early = due is None or (stored is not None and stored <= due + (30 * SECOND if beating else 0))
        self.must(early, "I8 a wake may be early, never late", (id, stored, due))

    # -- replay

    def replay(self, loaded: Loaded) -> None:
        """Cold code meets the whole history and must agree with it."""
        assert loaded.run is not None
        flow = self.fold(loaded)
        run = flow.current
        definition = self.registry.workflows[run.workflow_type]
        history = loaded.history
        horizon = max(max((e.context.decided_after or 0 for e in history), default=0), loaded.row.cursor)
        task = Task(
            id="",
            workflow=loaded.row.key,
            run=run.key,
            kind="workflow",
            type=run.workflow_type,
            routing=run.routing,
            available_at=0,
            created_at=0,
        )
        live_run = LiveRun(
            self.machine,
            self.machine.assign(flow, task),
            definition.main,
            self.registry.exceptions,
            definition.fingerprint,
            None,
            REACTIONS,
            definition.handlers,
        )
        live_run.looking = True
        seen = [e for e in history if e.context.decided_after is not None or e.sequence <= horizon]
        try:
            live_run.resume(seen, horizon)
            id = loaded.row.workflow_id
            self.must(live_run.block is None, "I5 a cold replay agrees with history", (id, live_run.block))
            ended = next((e for e in history if e.type == "WorkflowCompleted"), None)
            # A change that older code got past, with no step behind it, cannot be told from one that is new.
            started = started_of(history)
            assert started is not None
            newer = started.workflow_definition_fingerprint == definition.fingerprint
            fired = self.sim.faults.fired
            # In calm, who comes back has the newer build, whatever others have.
            mixed = newer and (fired["other build"] + fired["rolling restart"] > 0 or self.sim.faults.calm)
            told = live_run.closing is not None or not mixed
            if ended is not None and live_run.block is None and told:
                result = getattr(live_run.closing, "result", None)
                output = ended.event.output  # type: ignore[attr-defined]
                self.must(result == output, "I5 a cold replay ends the same", (id, live_run.closing))
        finally:
            live_run.abandon()
        self._defined(run.workflow_type, history)

    def _defined(self, workflow_type: str, history: list[Recorded]) -> None:
        """The definition of a run is that of the process that completed its first task, whoever has started it."""
        first = next((e for e in history if e.context.decided_after is not None and e.context.owner), None)
        build = None if first is None else self.sim.builds.get(first.context.owner or "")
        if build is None:
            return
        began = next((d for d in map(definition_of, BUILDS[build]) if d.type == workflow_type), None)
        started = started_of(history)
        if began is not None and started is not None:
            recorded = started.workflow_definition_fingerprint
            self.must(
                recorded == began.fingerprint, "I17 a run is defined by the code that began it", (build, recorded)
            )

    def export(self, loaded: Loaded) -> None:
        """What is exported, read back from the file alone, is the same history and replays to the same end."""
        run = loaded.run
        assert run is not None
        about = loaded.row.workflow_id
        commands = self.sim.disk.commands.get(run.workflow, [])
        chain = {other.run_id: other for other in self.sim.disk.runs.values() if other.workflow == run.workflow}
        at = loaded.history[-1].at
        found = with_history(
            describe_state(self.machine, self.fold(loaded), at, None, None), loaded.history, commands, []
        )
        text = bundle(run, loaded.history, commands, at, chain, found)
        read = exports.read(text, self.machine.kinds)
        events = [(e.sequence, e.at, e.event, exports.said(e.context)) for e in loaded.history]
        back = [(e.sequence, e.at, e.event, e.context) for e in read]
        different = next((pair for pair in zip(events, back, strict=False) if pair[0] != pair[1]), None)
        self.must(
            different is None and len(events) == len(back), "I15 an export reads back the same", (about, different)
        )
        self.replay(Loaded(loaded.row, run, read, loaded.tasks))

    def replay_some(self, count: int) -> None:
        keys = sorted(self.sim.disk.workflows)
        dice = self.sim.random
        for key in dice.sample(keys, min(count, len(keys))):
            if key not in self.sim.damaged:
                loaded = self.sim.disk.load(self.machine.kinds, key)
                if loaded is not None and loaded.run is not None and _has_code(loaded.row):
                    self.replay(loaded)

    # -- what clients see

    def answered(self, told: Told, verb: str, request_id: str) -> None:
        """Nobody is answered ahead of the commit: whatever was acknowledged is on disk by now."""
        if told.forgotten:
            return
        key = self.sim.disk.names.get(("default", told.id))
        records = [] if key is None else self.sim.disk.commands.get(key, [])
        there = any(record.request_id == request_id for record in records)
        self.must(there, "nobody is answered before the commit", (told.id, verb, request_id))

    def said(self, told: Told, token: str) -> None:
        """The same of a signal without a request id: it is on disk, and once."""
        if told.damaged or told.forgotten:
            return
        row = self.sim.disk.workflows[self.sim.disk.names["default", told.id]]
        history = self.history_of(told.id)
        held = [event for event, _ in row.buffered_events if type(event).__name__ == "SignalReceived"]
        kept = [loads(event.arguments or b"", Any)[0] for event in held]  # type: ignore[attr-defined]
        count = [*self.received(history, "note"), *self.received(history, "inbox"), *kept].count(token)
        # What was held back for the end of a task is dropped with its run; the answer may have been late.
        closed = row.run is None or self.sim.disk.runs[row.run].closed_at is not None
        self.must(
            count == 1 or (count == 0 and closed), "S6 what is said once is decided once", (told.id, token, count)
        )

    def thanked(self, attempt_id: str, worker: str) -> None:
        """A worker that was told its attempt counts finds its end in history."""
        if self.sim.amnesia.is_of(attempt_id):
            return
        run = self.sim.disk.run_ids[attempt_id.partition("-")[0]]
        if self.sim.disk.runs[run].workflow in self.sim.damaged:
            return
        ends = [
            entry.type
            for entry in self.sim.disk.history(self.machine.kinds, run)
            if getattr(entry.event, "activity_attempt_id", None) == attempt_id
        ]
        counted = set(ends) - {"ActivityStarted", "ActivityHeartbeatRecorded"}
        self.must(bool(counted), "I4 whose attempt counts is in history", (attempt_id, worker, ends))

    def told_over(self, attempt_id: str, worker: str) -> None:
        """A worker that was told that its attempt is over finds in history why, on disk and by one of the clocks."""
        if self.sim.amnesia.is_of(attempt_id):
            return
        run_id, step, number = attempt_id.split("-")
        run = self.sim.disk.run_ids[run_id]
        if self.sim.disk.runs[run].workflow in self.sim.damaged:
            return
        current = False
        for entry in self.sim.disk.history(self.machine.kinds, run):
            event: Any = entry.event
            if entry.type in CLOSES:
                current = False
            elif getattr(event, "sequence", None) != int(step):
                continue
            elif entry.type in ("ActivityStarted", "ActivityHeartbeatRecorded"):
                mine = event.attempt_number == int(number)
                self.sim.latest()
                current = mine and (event.lease_expires_at is None or event.lease_expires_at > self.sim.farthest)
            elif entry.type == "ActivityRetryScheduled" or entry.type in ENDS:
                current = False
        self.must(not current, "I11 what history calls current is not over", (attempt_id, worker))

    def watch_refusals(self, engine: Engine) -> None:
        """What is refused is so on disk when it is to be told, or when it is told."""
        answer, tell = engine._answer, engine._refusals.tell
        disk = self.sim.disk

        def watch(entry: CachedInstance, reply: Reply | None, value: Any, error: BaseException | None) -> Reply | None:
            if reply is None or not entry.on_disk or not is_refusal(value, error):
                return reply
            asked: Reply = getattr(reply, "asked", reply)  # what is decided again was watched before
            key, decided_on = entry.instance.key, entry.instance.last_decision

            def is_so(last: int) -> bool:
                row = disk.workflows.get(key)
                return row is not None and row.last_decision == last

            waits = entry.inflight > 0  # for commits, and is told what is so after them
            was_so = not waits and is_so(decided_on)

            def told(said: Any, raised: BaseException | None) -> None:
                if said is value and raised is error:  # what is decided again may come with a commit, whose guard holds
                    so = was_so or is_so(entry.instance.last_decision if waits else decided_on)
                    self.must(so, "S5 a refusal is true of the row", (entry.instance.name, error or value))
                asked(said, raised)

            told.asked = asked  # type: ignore[attr-defined]
            return told

        def watched_answer(
            entry: CachedInstance, message: Message, reply: Any, value: Any, error: BaseException | None, again: bool
        ) -> None:
            answer(entry, message, watch(entry, reply, value, error), value, error, again)

        def watched_tell(
            entry: CachedInstance, message: Message, reply: Any, value: Any, error: BaseException | None
        ) -> None:
            tell(entry, message, watch(entry, reply, value, error) or reply, value, error)

        engine._answer = watched_answer  # type: ignore[method-assign]
        engine._refusals.tell = watched_tell  # type: ignore[method-assign]

    def outcome_seen(self, told: Told, value: Any) -> None:
        if told.forgotten:
            return
        before = self.seen.setdefault(told.id, value)
        self.must(before == value, "an outcome does not change", (told.id, before, value))
        wrong = disagreement(told.program, value)
        if wrong is not None and "'tell'" in wrong:
            wrong = wrong if self.ownership.keeps_order(self.sim.disk.names["default", told.id]) else None
        self.must(wrong is None, "every program produces what it must", (told.id, wrong))

    # -- the end

    def finish(self) -> None:
        self.checkpoint()
        sim = self.sim
        for key, row in sorted(sim.disk.workflows.items()):
            if key in sim.damaged:
                continue
            loaded = sim.disk.load(self.machine.kinds, key)
            assert loaded is not None
            if loaded.run is None:
                continue
            ended = self.runs[loaded.run.key].closed is not None
            if not ended and row.workflow_id in sim.rows.unheard():
                continue
            self.must(ended, "I8 every run ends once faults stop", row.workflow_id)
            self.must(not loaded.tasks, "I9 nothing is left of what is over", (row.workflow_id, loaded.tasks))
            if not _has_code(row):
                continue
            self.replay(loaded)
            if not self.checks["I15 an export reads back the same"] or row.workflow_id == sim.told[-1].id:
                self.export(loaded)
        self.done_once()
        too_often = [one for one in ledger.too_often if not sim.amnesia.is_of(one[0])]
        self.must(not too_often, "I4 what may be begun so often is begun no more", too_often)
        left = sim.undelivered()
        self.must(not left, "I9 every send is taken", left[:2])
        self.chains()
        self.families()
        self.schedules.finish()
        for told in sim.told:
            if told.started and not told.damaged and not told.forgotten:
                self.told(told)

    def done_once(self) -> None:
        """As long as nobody dies or is taken for dead and nothing is falsified, only an attempt that failed is followed by another."""
        if self.sim.deposed or set(self.sim.faults.fired) - self.sim.kinds.gentle:
            return
        for run in self.sim.disk.runs.values():
            if run.queue != "default":
                continue
            begun: Counter[int] = Counter()
            for entry in self.sim.disk.history(self.machine.kinds, run.key):
                event: Any = entry.event
                if entry.at >= (self.sim.calm_at or 0):
                    break  # from here on everybody is replaced
                if entry.type == "ActivityStarted" and entry.context.owner and "/" in entry.context.owner:
                    begun[event.sequence] += 1
                elif retried(entry) or _undelivered(entry):
                    begun[event.sequence] -= 1
            again = [step for step, count in begun.items() if count > 1]
            self.must(not again, "I4 nothing is done again without a reason", (run.workflow_id, again))

    def history_of(self, id: str) -> list[Recorded]:
        """All runs of an instance, one behind the other."""
        key = self.sim.disk.names["default", id]
        runs = sorted((r.number, r.key) for r in self.sim.disk.runs.values() if r.workflow == key)
        return [e for _, run in runs for e in self.sim.disk.history(self.machine.kinds, run)]

    def chains(self) -> None:
        by_workflow: dict[int, list[Any]] = {}
        for run in self.sim.disk.runs.values():
            by_workflow.setdefault(run.workflow, []).append(run)
        for key, runs in by_workflow.items():
            if not _has_code(self.sim.disk.workflows[key]):
                continue  # a schedule may be created again under its name
            runs.sort(key=lambda run: run.number)
            numbers = [run.number for run in runs]
            self.must(numbers == list(range(1, len(runs) + 1)), "I10 a chain has no fork", (key, numbers))
            self.must(
                all(self.runs[run.key].closed == "continued" for run in runs[:-1]),
                "I10 a chain has one end",
                (key, numbers),
            )

    def families(self) -> None:
        """The parent's record of a child's end is the child's own."""
        disk = self.sim.disk
        for run, rows in disk.events.items():
            if disk.runs[run].workflow in self.sim.damaged:
                continue
            for row in rows:
                if row[1] != "ChildRunCompleted":
                    continue
                entry: Any = next(e for e in disk.history(self.machine.kinds, run) if e.sequence == row[0])
                child = disk.run_ids.get(entry.event.child_workflow_run_id)
                ends = [] if child is None else [e for e in disk.history(self.machine.kinds, child) if e.type in CLOSES]
                same = len(ends) == 1 and ends[0].event.output == entry.event.output  # type: ignore[attr-defined]
                same = same or self.sim.amnesia.may_be_told_of(entry.event.child_workflow_instance_id)
                self.must(same, "I10 the parent's record is the child's end", (run, entry.event))

    def told(self, told: Told) -> None:
        """What its clients were told is what happened."""
        disk = self.sim.disk
        history = self.history_of(told.id)
        key = disk.names["default", told.id]
        reason = self.runs[disk.workflows[key].run or 0].closed
        updates: list[Any] = [e for e in history if e.type in ("UpdateAccepted", "UpdateCompleted")]
        open = {e.event.update_id for e in updates} - {
            e.event.update_id for e in updates if e.type == "UpdateCompleted"
        }
        self.must(not open, "I7 every accepted update ends", (told.id, open))
        accepted = [c for c in disk.commands[key] if c.status == "accepted"]
        order = [(c.run, c.sequence) for c in accepted if c.sequence is not None]
        self.must(len(set(order)) == len(order), "I7 command numbers are given once", told.id)
        notes = self.received(history, "note")
        letters = self.received(history, "inbox")
        for token, acknowledged in {**told.notes, **told.letters}.items():
            count = [*notes, *letters].count(token)
            self.must(count <= 1, "I7 an accepted signal is told once", (told.id, token))
            if acknowledged:
                asked = [c for c in accepted if c.command_type == "signal" and c.target_name in ("note", "inbox")]
                self.must(bool(asked), "I7 what was acknowledged is on record", (told.id, token))
        allowed = {"completed"}
        if "cancel" in told.stops:
            allowed.add("cancelled")
        if "terminate" in told.stops:
            allowed.add("terminated")
        self.must(reason in allowed, "every program ends as it must", (told.id, reason, history[-1]))
        if told.stopped in ("cancelled", "terminated"):
            self.must(reason == told.stopped, "what was stopped is stopped", (told.id, told.stopped))
        if reason != "completed":
            return
        end: Any = next(e.event for e in reversed(history) if e.type == "WorkflowCompleted")
        result = loads(end.output, Any)
        self.outcome_seen(told, result)
        said = [line for line in result[0] if isinstance(line, list) and line[:1] == ["said"]]
        heard = [note for part in (*said, ["said", result[1], result[2]]) for note in part[1]]
        self.must(heard == notes[: len(heard)], "I7 signals are applied in order", (told.id, heard, notes))
        done = [e.event for e in history if e.type == "UpdateCompleted"]
        completed = Counter(event.update_id for event in done)  # type: ignore[attr-defined]
        self.must(set(completed.values()) <= {1}, "I7 an update ends once", told.id)
        added = [number for part in (*said, ["said", result[1], result[2]]) for number in part[2]]
        for number, answer in told.added.items():
            self.must(added.count(number) == 1, "I7 an acknowledged update was applied once", (told.id, number, answer))

    def noted(self, told: Told) -> tuple[int, int]:
        """The current run of an instance, and how many notes it has been sent."""
        disk = self.sim.disk
        if told.forgotten:
            return 0, 0
        row = disk.workflows[disk.names["default", told.id]]
        run = row.run or 0
        held: list[Any] = [event for event, _ in row.buffered_events]
        recorded: list[Any] = [] if told.damaged else [e.event for e in disk.history(self.machine.kinds, run)]
        sent = [e for e in (*recorded, *held) if type(e).__name__ == "SignalReceived" and e.signal_name == "note"]
        return run, len(sent)

    def moves(self, told: Told) -> bool:
        """Whether the code of an instance deals with what it is sent: nothing has ever kept it from that."""
        if told.forgotten:
            return False
        key = self.sim.disk.names["default", told.id]
        hindered = told.away or told.damaged or key in self.halted or key in self.sim.sabotaged
        return not hindered and self.runs[self.sim.disk.workflows[key].run or 0].closed is None

    def query_answered(self, told: Told, noted: tuple[int, int], seen: int) -> None:
        """What had been sent to a run before a query was asked is in its answer."""
        if self.moves(told) and self.noted(told)[0] == noted[0]:
            self.must(seen >= noted[1], "I7 what was acknowledged is seen by who asks next", (told.id, noted, seen))

    def update_refused(self, told: Told, waited: float) -> None:
        """Behind a signal an update waits, unless code does not move."""
        if self.moves(told):
            self.must(waited > SIGNAL_WAIT - 0.001, "I7 an update waits for the signals before it", (told.id, waited))

    def received(self, history: list[Recorded], name: str) -> list[str]:
        """The tokens of the signals a chain of runs was told, in order; what the next run is told again counts once."""
        found: dict[str, str] = {}
        for entry in history:
            event: Any = entry.event
            if entry.type == "SignalReceived" and event.signal_name == name:
                found.setdefault(event.signal_id, loads(event.arguments, Any)[0])
        return list(found.values())


def _has_code(row: InstanceRow) -> bool:
    """A schedule has none."""
    return instance_kind(row.namespace) == "workflow"
