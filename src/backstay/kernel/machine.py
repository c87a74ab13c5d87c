"""The machine: every feature's tables merged into decide, evolve and expect.

`decide(turn, message, now)` is a function of its arguments: it reads no clock, opens no file, calls nothing outside of
the kernel, and decides the same for the same input. It leaves on the turn which tasks are ready. The caller finds
workers for them, calls `grant` for each task that a worker takes, and then makes a decision of the turn with `seal`.
`evolve` is the only writer of a run. `expect` says which tasks and which wake must exist; recovery, repair, the
operator's view and the tests all use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from backstay.kernel.agenda import Agenda, wake_may_stay
from backstay.kernel.command import Command
from backstay.kernel.decision import ChainEnd, Decision, InstanceRow, TaskChange
from backstay.kernel.event import NO_CONTEXT, Context, Event, Recorded, StepEvent
from backstay.kernel.feature import CommandRule, Feature, Outcome, Shape, TaskRule
from backstay.kernel.feature_list import FEATURES
from backstay.kernel.fleet import NO_FLEET, LiveFleet
from backstay.kernel.groups import Groups
from backstay.kernel.limits import Breach, Limits
from backstay.kernel.message import Message, Refused
from backstay.kernel.rows import instance_row, run_row
from backstay.kernel.send import OutboxMessage
from backstay.kernel.state import Instance, Run
from backstay.kernel.task import Expected, Lease, Task
from backstay.kernel.turn import Turn
from backstay.kernel.values import SECOND, Ids, Micros


class Machine:
    """The merged tables of all features, and the functions that use them."""

    # Slots, because many of them are read several times a step: Python finds slots at a fixed place, and attributes of a
    # dictionary only if there are at most thirty.
    __slots__ = (
        "_acknowledged",
        "_allows_tasks",
        "_cancel",
        "_carry",
        "_close",
        "_decide",
        "_dispatch",
        "_ensure_task",
        "_expect",
        "_infer",
        "_limits",
        "_limits_of_all",
        "_on_group_won",
        "_on_task_closing",
        "_on_wait_timeout",
        "_plans",
        "_receive",
        "_resend",
        "_shapes",
        "_unanswered",
        "_waits_externally",
        "agenda",
        "commands",
        "failure_backoff",
        "grouped_kinds",
        "kinds",
        "limits",
        "outbox_message_kinds",
        "outcomes",
        "step_kinds",
        "tasks",
    )

    def __init__(
        self,
        features: Iterable[Feature] = FEATURES,
        limits: Limits | None = None,
        failure_backoff: Micros = 60 * SECOND,
    ) -> None:
        """`failure_backoff`: the longest pause before a failed workflow task is tried again."""
        features = tuple(features)
        deciding = [feature.deciding for feature in features]
        lifecycle = [feature.lifecycle for feature in features]
        sends = [feature.sends for feature in features]
        compatibility = [feature.compatibility for feature in features]
        self.limits = limits or Limits()
        self.failure_backoff = failure_backoff
        # deciding
        self._decide = _merge(features, lambda f: f.deciding.messages)
        self.commands: dict[type[Any], CommandRule] = _merge(features, lambda f: f.deciding.commands)
        self._limits = {kind: d.limits for d in deciding if d.limits is not None for kind in d.commands}
        self._limits_of_all = [d.limits for d in deciding if d.limits is not None and not d.commands]
        self.agenda = Agenda(_merge(features, lambda f: f.deciding.deadlines))
        self.tasks: dict[str, TaskRule] = _merge(features, lambda f: f.deciding.tasks)
        self._expect = [d.expect for d in deciding if d.expect is not None]
        self._ensure_task = [d.ensure_task for d in deciding if d.ensure_task is not None]
        self._dispatch = [d.dispatch for d in deciding if d.dispatch is not None]
        self._on_group_won = [d.on_group_won for d in deciding if d.on_group_won is not None]
        self._on_wait_timeout = [d.on_wait_timeout for d in deciding if d.on_wait_timeout is not None]
        self._on_task_closing = [d.on_task_closing for d in deciding if d.on_task_closing is not None]
        # history
        evolve = _merge(features, lambda f: f.history.evolve)
        resume = _merge(features, lambda f: f.history.resume)
        own_task = _merge(features, lambda f: f.history.own_task)
        self.step_kinds = {kind for kind in evolve if issubclass(kind, StepEvent)}
        # One look-up per event instead of five: its fold, whether it is a step, the code that it wakes, its own task,
        # its name's length.
        self._plans = {
            kind: (fold, kind in self.step_kinds, resume.get(kind), own_task.get(kind), len(kind.__name__))
            for kind, fold in evolve.items()
        }
        self.kinds: dict[str, type[Event]] = {kind.__name__: kind for kind in evolve}
        self.grouped_kinds = {kind for kind in evolve if "parallel_group_path" in kind.__struct_fields__}
        self._shapes = _merge(features, lambda f: f.history.shapes)
        self.outcomes = _merge(features, lambda f: f.history.outcomes)
        # lifecycle
        self._cancel = [one.cancel for one in lifecycle if one.cancel is not None]
        self._close = [one.on_close for one in lifecycle if one.on_close is not None]
        self._close += [one.after_close for one in lifecycle if one.after_close is not None]
        self._carry = [one.carry for one in lifecycle if one.carry is not None]
        self._allows_tasks = [one.allows_tasks for one in lifecycle if one.allows_tasks is not None]
        self._waits_externally = [one.waits_externally for one in lifecycle if one.waits_externally is not None]
        # sends
        self._receive = _merge(
            features, lambda f: {(f.sends.kind, kind): take for kind, take in f.sends.receive.items()}
        )
        self.outbox_message_kinds: dict[str, type[OutboxMessage]] = {kind.__name__: kind for _, kind in self._receive}
        self._unanswered = [s.unanswered for s in sends if s.unanswered is not None]
        self._resend = [s.resend for s in sends if s.resend is not None]
        # compatibility
        self._infer = [c.infer for c in compatibility if c.infer is not None]
        self._acknowledged = [c.acknowledged for c in compatibility if c.acknowledged is not None]

    def begin(self, instance: Instance, ids: Ids, fleet: LiveFleet = NO_FLEET) -> Turn:
        """Begin a turn for an instance. `fleet`: the workers, as of now."""
        return Turn(self, instance, ids, fleet)

    def decide(self, turn: Turn, message: Message, now: Micros) -> Any:
        """Decide one more message, and return the reply. One that is refused leaves the turn as it was.

        The state is folded forward as far as the decision goes. Afterwards `turn.ready` are the tasks that a worker may
        be granted, and `turn.due_task` is the workflow task that gets no row if its code runs before the turn is
        sealed.
        """
        instance = turn.instance
        turn.run = instance.run  # type: ignore[assignment]
        turn.now = now
        turn.reply = turn.created_tasks = None
        turn.context = NO_CONTEXT
        self._decide[type(message)](turn, message)
        turn.context = NO_CONTEXT
        self._follow(turn)
        instance.exists = True
        return turn.reply

    def idle(self, turn: Turn) -> bool:
        """Whether a turn has nothing to write so far."""
        return not (
            turn.events
            or turn.changed_tasks
            or turn.commands
            or turn.reindex
            or turn.indexed
            or turn.sends
            or turn.taken_sends
            or turn.after == 0
        ) and wake_may_stay(turn.instance.next_wake, self.agenda.next_wake(turn.instance), turn.now)

    def seal(self, turn: Turn) -> Decision:
        """Make one decision of all effects of the messages that were decided in this turn."""
        instance = turn.instance
        assert turn.due_task is None, "the code of a due task has run, or the task was created"
        if turn.reindex:
            turn.index_now()
        before = instance.next_wake
        run = instance.run
        instance.next_wake = self.agenda.next_wake(instance) if run is not None and run.agenda else None
        instance.last_decision = turn.ids.serial()
        tasks = instance.tasks
        return Decision(
            self._row(instance),
            turn.after,
            turn.events,
            [TaskChange(id, tasks.get(id), stored) for id, stored in turn.changed_tasks.items()]
            if turn.changed_tasks
            else (),
            turn.indexed,
            turn.commands,
            turn.reply,
            turn.granted,
            turn.closed,
            _ended(turn) if turn.closed else None,
            turn.sends,
            turn.taken_sends,
            turn.notifications,
            turn.withdrawn,
            instance.next_wake != before,
        )

    def evolve(self, instance: Instance, run: Run, entry: Recorded) -> None:
        """Fold one recorded event into the run."""
        event = entry.event
        fold, is_step, resume, own_task, name_size = self._plans[type(event)]
        run.length = sequence = entry.sequence
        run.bytes += name_size + len(entry.body)
        run.checksum = entry.checksum
        run.last_at = entry.at
        if is_step and event.sequence > run.step:  # type: ignore[attr-defined]
            run.step = event.sequence  # type: ignore[attr-defined]
            if run.status == "pending":
                run.status = "waiting"
        fold(run, event, entry)
        if own_task is not None:
            run.own_task_events.append((sequence, own_task(run, event, entry)))
        if resume is not None and sequence > instance.cursor and run.closed_reason is None:
            reason = resume(run, event, entry)
            if reason is not None:
                run.wake_events.append((sequence, reason))

    def fold(self, instance: Instance, run: Run, history: Iterable[Recorded]) -> None:
        """Build a run from its stored history."""
        for entry in history:
            self.evolve(instance, run, entry)
        if run.grouped:
            run.part(Groups).clear_effects()

    def expect(self, instance: Instance) -> Expected:
        """The tasks and the wake that must exist so that the instance goes on."""
        if instance.run is None or not instance.run.is_open:
            return Expected({}, None)
        tasks = {task.id: task for source in self._expect for task in source(instance)}
        return Expected(tasks, self.agenda.next_wake(instance))

    def expects(self, instance: Instance, task: Task) -> bool:
        """Whether something is open that this task serves."""
        return self.tasks[task.kind].serves(instance, task)

    def lease_lost(self, turn: Turn, task: Task, begun: bool = True) -> None:
        """Decide the end of a lease whose worker has not reported."""
        self.tasks[task.kind].lost(turn, task, begun)

    def stray_task(self, turn: Turn, task: Task) -> None:
        """Correct the row of a task without a purpose, most often because its step has closed."""
        rule = self.tasks[task.kind].stray
        if rule is None:
            turn.drop_task(task.id)
        else:
            rule(turn, task)

    def assign(self, instance: Instance, task: Task) -> Any:
        """What the worker gets with this leased task."""
        return self.tasks[task.kind].assign(instance, task)

    def send_rule(self, instance: Instance, message: OutboxMessage) -> Callable[[Turn, Any], None]:
        """The function that decides a send for the instance it was sent to."""
        rule = self._receive.get((instance.kind, type(message)))
        if rule is None:
            raise Refused(
                "not_for_this_kind", f"{instance.workflow_id!r} is a {instance.kind} and cannot take this send"
            )
        return rule

    def resend_unanswered(self, turn: Turn) -> None:
        """Send once more what other instances have not answered."""
        for resend in self._resend:
            resend(turn)

    def cancel_open(self, turn: Turn) -> None:
        """Close everything that the run still waits for, with an event each, because the run is being stopped."""
        for rule in self._cancel:
            rule(turn)

    def run_closed(self, turn: Turn) -> None:
        """Close the open steps of a run right after its terminal event; then apply the consequences of its end."""
        for rule in self._close:
            rule(turn)

    def before_commands(self, turn: Turn, task: Task) -> None:
        """Record the events that an ending workflow task had seen, before its commands are applied."""
        for closing in self._on_task_closing:
            closing(turn, task)

    def infer(self, turn: Turn, task: Task, commands: list[Command]) -> list[Command]:
        """The complete commands of a worker that does not number its steps."""
        for infer in self._infer:
            commands = infer(turn, task, commands)
        return commands

    def carried(self, run: Run) -> list[tuple[Event, Context]]:
        """The events that the next run of the chain begins with, in their order in this one."""
        found = [entry for carry in self._carry for entry in carry(run)]
        return [(event, context) for _, event, context in sorted(found, key=lambda entry: entry[0])]

    def breach(self, turn: Turn, commands: list[Command]) -> Breach | None:
        """The first structural limit that these commands would exceed."""
        for kind in map(type, commands) if len(commands) == 1 else dict.fromkeys(map(type, commands)):
            limit = self._limits.get(kind)
            found = None if limit is None else limit(turn, commands)
            if found is not None:
                return found
        for limit in self._limits_of_all:
            found = limit(turn, commands)
            if found is not None:
                return found
        return None

    def shape(self, event: Event) -> Shape | None:
        """The step shape an event belongs to, or None if it is not a step event."""
        rule = self._shapes.get(type(event))
        return None if rule is None else rule(event)

    def outcome(self, event: Event) -> Outcome | None:
        """How the step of this event ended, if the event ends it."""
        rule = self.outcomes.get(type(event))
        return None if rule is None else rule(event)

    index = staticmethod(run_row)  # features cannot import it: the row is made of their parts

    def create_task(self, turn: Turn) -> None:
        """Give the due workflow task a row, and make it ready for a worker: its code does not run within this turn."""
        turn.create_task()
        if turn.to_offer:
            self._find_ready(turn)

    def grant(self, turn: Turn, task: Task, lease: Lease) -> None:
        """Lease a ready task to the worker that takes it, in the decision that made it ready.

        Such a task is born leased: one row is written, not one ready and then one leased, and its worker gets it with
        the first commit instead of the second. `ActivityStarted` stands in history right after the events of the
        message. Only the caller knows which workers have room, and to take a worker's room is an effect: so `decide`
        ends before it, and the caller, which took the room, also gives it back if the decision is not committed. Tests:
        `test_an_activity_that_is_born_leased_is_started_in_the_same_decision`,
        `test_a_decision_that_breaks_gives_back_the_room_it_had_taken`.
        """
        turn.grant(task, lease)
        if turn.to_offer:
            self._find_ready(turn)

    def _follow(self, turn: Turn) -> None:
        """Bring the tasks in line with the new events, and find those that are ready."""
        instance = turn.instance
        run = instance.run
        if run is not None:
            if run.closed_reason is not None:
                turn.due_task = None
                for task_id in list(instance.tasks):
                    turn.drop_task(task_id)
            if instance.buffered_events and instance.running_task is None:
                self._record_buffered(turn)
            if run.wake_events or run.own_task_events:
                for ensure in self._ensure_task:
                    ensure(turn)
        if turn.to_offer:
            self._find_ready(turn)

    def _row(self, instance: Instance) -> InstanceRow:
        run = instance.run
        if run is None:
            return instance_row(instance, 0, False)
        unanswered = 0
        for count in self._unanswered:
            unanswered += count(run)
        idle = not instance.tasks and instance.next_wake is None
        return instance_row(instance, unanswered, idle and self.waits_externally(run))

    def waits_externally(self, run: Run) -> bool:
        """Whether only something from outside makes this run go on."""
        return run.is_open and any(rule(run) for rule in self._waits_externally)

    def resolve(self, turn: Turn, entry: Recorded) -> None:
        """Decide the consequences if the last event has ended the first member of a group that has a winner."""
        for resolve in self._on_group_won:
            resolve(turn, entry)

    def timed_out(self, turn: Turn, step: int) -> None:
        """Decide the consequences of the timer of a wait."""
        for timed_out in self._on_wait_timeout:
            timed_out(turn, step)

    def acknowledged(self, turn: Turn, task: Task) -> None:
        """Decide the consequences when a worker that does not number its steps has seen all events and still waits."""
        for acknowledged in self._acknowledged:
            acknowledged(turn, task)

    def dispatch_freed(self, turn: Turn, groups: Groups) -> None:
        """Dispatch the leaves of bounded groups that the event just folded has made room for."""
        freed, groups.freed = groups.freed, []
        for step in freed:
            any(dispatch(turn, step) for dispatch in self._dispatch)

    def _record_buffered(self, turn: Turn) -> None:
        """Record the events that were accepted in the middle of a workflow task, now that it is over."""
        buffered, turn.instance.buffered_events = turn.instance.buffered_events, []
        if turn.run.is_open:  # a closed run takes no more events; the audit trail says that they were accepted
            for event, context in buffered:
                turn.record_with_context(event, context)

    def _find_ready(self, turn: Turn) -> None:
        """Look at the tasks that were changed, and leave those that are ready on the turn.

        A row without a purpose is corrected instead (`stray`), which changes no other row. A row that this turn made
        has its purpose.
        """
        instance = turn.instance
        tasks = instance.tasks
        while turn.to_offer:
            task_ids, turn.to_offer = turn.to_offer, []
            for allows in self._allows_tasks:
                if not allows(turn.run):
                    return
            for id in task_ids:
                task = tasks.get(id)
                if task is None or task.state != "ready" or not task.is_due(turn.now):
                    continue
                if turn.changed_tasks.get(id, True) and not self.expects(instance, task):
                    self.stray_task(turn, task)
                    for ensure in self._ensure_task:
                        ensure(turn)  # that may have ended an activity
                else:
                    turn.ready[id] = task


def _ended(turn: Turn) -> ChainEnd | None:
    run = turn.instance.current
    if run.closed_reason is None:
        return None  # continued: the chain goes on
    last = turn.events[-1]
    if last.event is not run.ended_by:
        last = next(entry for entry in reversed(turn.events) if entry.event is run.ended_by)
    return ChainEnd(run.run_id, run.status, run.closed_reason, last)


def _merge(features: Iterable[Feature], table: Callable[[Feature], Mapping[Any, Any]]) -> dict[Any, Any]:
    merged: dict[Any, Any] = {}
    for feature in features:
        for key, entry in table(feature).items():
            if key in merged:
                raise TypeError(f"{key!r} is claimed by two features, one of them {feature.name!r}")
            merged[key] = entry
    return merged
