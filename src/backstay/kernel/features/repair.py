"""Repair: an operator's command that reconciles an instance and is recorded."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from backstay.kernel.event import Event, Recorded
from backstay.kernel.feature import Deciding, Feature, History
from backstay.kernel.features.instance_commands import CommandReply, InstanceCommand, accept, cause, may_accept
from backstay.kernel.features.reconcile import Reconcile, Reconciled, reconcile
from backstay.kernel.features.timer import Timers
from backstay.kernel.operator_command import CommandOutcome, OperatorCommand
from backstay.kernel.state import Instance, Run
from backstay.kernel.turn import Turn
from backstay.kernel.values import Micros
from backstay.kernel.words import COMMAND, Phrase, Story, Words


class Repair(InstanceCommand, frozen=True, kw_only=True):
    """`liveness_state` and `wait_kind` are those of the run at the request."""

    command_type = "repair"

    work: Reconcile
    liveness_state: str | None = None
    wait_kind: str | None = None

    def beside_owner(self) -> Repair:
        return replace(self, work=self.work.beside_owner())


class Repaired(Struct, frozen=True, kw_only=True):
    """The reply: the command's record, and the changes."""

    command: CommandReply
    work: Reconciled | None = None


class RepairRequested(Event, frozen=True, kw_only=True, omit_defaults=True):
    workflow_command_id: str
    command_type: str = "repair"
    outcome: str
    liveness_state: str | None = None
    wait_kind: str | None = None
    task_id: str | None = None
    task_type: str | None = None


def repair(turn: Turn, message: Repair) -> None:
    if not may_accept(turn, message):
        turn.reply = Repaired(command=turn.reply)
        return
    reconcile(turn, message.work)
    done: Reconciled = turn.reply
    outcome = "repair_dispatched" if done.changed else "repair_not_needed"
    command = accept(turn, message, outcome)
    turn.reply = Repaired(command=turn.reply, work=done)
    task_id, task_type = _repaired(turn, done)
    turn.record_with_context(
        RepairRequested(
            workflow_command_id=command.id,
            outcome=outcome,
            liveness_state=message.liveness_state,
            wait_kind=message.wait_kind,
            task_id=task_id,
            task_type=task_type,
        ),
        cause(command),
    )


def _repaired(turn: Turn, done: Reconciled) -> tuple[str | None, str | None]:
    """Id and type of the task by which the run goes on. A timer whose wake was lost is shown like a task."""
    for id in (*done.restored, *done.revived, *done.released):
        if id in turn.instance.tasks:
            return id, turn.instance.tasks[id].kind
    pending = turn.run.part(Timers).pending.values() if done.woken else ()
    first = min(pending, key=lambda timer: timer.fire_at, default=None)
    return (None, None) if first is None else (first.timer_id, "timer")


def _requested(run: Run, event: RepairRequested, entry: Recorded) -> None:
    """A repair changes rows, not the state of the run."""


def _say_requested(story: Story, event: RepairRequested) -> Phrase:
    return Phrase("•", f"repair requested: {event.outcome.replace('_', ' ')}")


def _blocked(instance: Instance, state: str, now: Micros) -> str | None:
    if state in ("repair_needed", "workflow_replay_blocked"):
        return None
    if any(task.state == "failed" for task in instance.tasks.values()):
        return None
    return "waiting_for_compatible_worker" if "waiting_for_compatible_worker" in state else "repair_not_needed"


REPAIR = OperatorCommand(
    message=Repair,
    request="RepairWorkflow",
    label="Repair",
    help="Restore the tasks and wakes that {run} misses, and retry its blocked and failed tasks.",
    more="The history does not change. The engine of the database does the work, now or when one starts.",
    examples=("order-1",),
    fields=(),  # the engine adds facts about leases and lanes
    reply=Repaired,
    outcomes={
        "repair_dispatched": CommandOutcome("repaired", goes_on=True),
        "repair_not_needed": CommandOutcome("nothing to repair"),
    },
    blocked=_blocked,
    blocked_words={
        "repair_not_needed": "Nothing is missing: it has every task and wake that its history expects.",
        "waiting_for_compatible_worker": "No live worker has the queue, type and build of its next task; start one.",
    },
)


FEATURE = Feature(
    name="repair",
    deciding=Deciding(messages={Repair: repair}),
    history=History(evolve={RepairRequested: _requested}),
    words={RepairRequested: Words(COMMAND, _say_requested)},
    operator=(REPAIR,),
)
