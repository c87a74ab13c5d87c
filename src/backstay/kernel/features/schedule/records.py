"""Events and state of a schedule: Created → (Triggered | TriggerSkipped | Buffered | ActionClosed | Paused ⇄ Resumed |
Updated)* → Deleted.

A schedule is an instance of its own kind. Every moment at which it fires is decided once and stands in its history.
Folding computes none, so another edition of the time zones changes later decisions and no earlier one. When its history
is long, the schedule goes on in a new run that begins with its whole state.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from backstay.kernel.event import Event, Recorded, clock
from backstay.kernel.features import close, search
from backstay.kernel.features.schedule.spec import Fire, Spec
from backstay.kernel.state import Run
from backstay.kernel.values import Micros, Routing

Overlap = Literal["skip", "buffer_one", "buffer_all", "cancel_other", "terminate_other", "allow_all"]
OVERLAPS: tuple[Overlap, ...] = get_args(Overlap)
Cause = Literal["schedule", "manual", "backfill"]
RECENT = 10
BUFFER = 1000  # occurrences that `buffer_all` keeps


class Action(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The workflow to start."""

    workflow_type: str
    routing: Routing = Routing()
    arguments: bytes | None = None
    execution_timeout_seconds: float | None = None
    run_timeout_seconds: float | None = None


class SchedulePlan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything about a schedule that its owner decides."""

    spec: Spec
    action: Action
    overlap_policy: Overlap = "skip"
    jitter_seconds: int = 0
    max_runs: int | None = None
    memo: dict[str, bytes] = {}
    search_attributes: dict[str, Any] = {}
    visibility_labels: dict[str, str] = {}
    note: str | None = None


class Occasion(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One occurrence to fire for, and its cause."""

    occurrence: Micros
    cause: Cause = "schedule"


class StartedAction(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A workflow that a schedule has started. `status` None: it has not closed yet, as far as the schedule knows."""

    trigger_number: int
    workflow_id: str
    run_id: str
    occurrence: Micros
    started_at: Micros
    cause: Cause = "schedule"
    overlap_policy: Overlap = "skip"
    run_number: int = 1
    status: str | None = None
    closed_at: Micros | None = None
    message: str | None = None


class ScheduleCreated(SchedulePlan, Event, frozen=True, kw_only=True, omit_defaults=True):
    """`trigger_number` and `sequence_base` go on from a deleted schedule of the same name."""

    schedule_id: str
    paused: bool = False
    next_fire: Fire | None = None
    trigger_number: int = 0
    sequence_base: int = 0


class ScheduleUpdated(SchedulePlan, Event, frozen=True, kw_only=True, omit_defaults=True):
    """The whole plan as it is now; `changed` names the changed fields."""

    changed: list[str] = []
    next_fire: Fire | None = None


class SchedulePaused(Event, frozen=True, kw_only=True, omit_defaults=True):
    note: str | None = None


class ScheduleResumed(Event, frozen=True, kw_only=True, omit_defaults=True):
    note: str | None = None
    next_fire: Fire | None = None


class ScheduleTriggered(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A workflow was started. Recorded by the schedule, and by the workflow it has started."""

    schedule_id: str
    trigger_number: int
    occurrence_time: Micros
    workflow_instance_id: str
    workflow_run_id: str
    outcome: str = "triggered"
    cause: Cause = "schedule"
    effective_overlap_policy: Overlap = "skip"
    drained: bool = False  # it was buffered until another workflow closed
    next_fire: Fire | None = None


class ScheduleTriggerSkipped(Event, frozen=True, kw_only=True, omit_defaults=True):
    reason: str
    occurrence_time: Micros  # the first of them
    skipped: int = 1
    cause: Cause = "schedule"
    effective_overlap_policy: Overlap | None = None
    next_fire: Fire | None = None


class ScheduleActionBuffered(Event, frozen=True, kw_only=True, omit_defaults=True):
    occurrence_time: Micros
    cause: Cause = "schedule"
    effective_overlap_policy: Overlap = "buffer_one"
    next_fire: Fire | None = None


class ScheduleActionClosed(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A workflow of the schedule has closed, or could not be started."""

    trigger_number: int
    workflow_instance_id: str
    workflow_run_id: str
    status: str
    closed_reason: str
    closed_at: Micros
    started: bool = True
    message: str | None = None


class ScheduleActionContinued(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A workflow of the schedule goes on in another run."""

    trigger_number: int
    workflow_instance_id: str
    workflow_run_id: str
    run_number: int


ALL_STARTED = "max_runs_reached"  # the reason of one that ended by itself; it can still be looked at


class ScheduleDeleted(Event, frozen=True, kw_only=True, omit_defaults=True):
    """`confirms_starts`: the schedule checks each workflow that it fired until the workflow has answered
    (`ScheduleStartConfirmed`).

    It is False in older histories. Those did not record later answers, and their workflows may have run and been
    deleted long ago: to ask after one would start it a second time.
    """

    reason: str
    confirms_starts: bool = False


class ScheduleStartConfirmed(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A workflow has answered a schedule that is deleted: its start need not be sent again."""

    trigger_number: int
    workflow_instance_id: str


class ScheduleRolledOver(Event, frozen=True, kw_only=True, omit_defaults=True):
    """The history was long; the schedule goes on in the next run."""

    continued_to_run_id: str


class Schedule(Struct, kw_only=True, omit_defaults=True):
    """A schedule as it is now. Only folds write here."""

    schedule_id: str
    plan: SchedulePlan
    created_at: Micros
    updated_at: Micros
    status: str = "active"
    paused_at: Micros | None = None
    next_fire: Fire | None = None
    planned_at: Micros = 0  # the time when `next_fire` was decided
    remaining_actions: int | None = None
    trigger_number: int = 0
    fires_count: int = 0
    failures_count: int = 0
    skipped_count: int = 0
    last_skip_reason: str | None = None
    last_skipped_at: Micros | None = None
    last_fired_at: Micros | None = None
    running: dict[str, StartedAction] = {}  # by workflow id
    owed: dict[str, StartedAction] = {}  # once deleted: the workflows that have not answered yet, by id
    buffer: list[Occasion] = []
    recent: list[StartedAction] = []
    sequence_base: int = 0  # events of earlier runs


class ScheduleCarriedOn(Event, frozen=True, kw_only=True, omit_defaults=True):
    """The state with which a schedule begins its next run."""

    state: Schedule


class ScheduleState:
    """A schedule's part of its run."""

    __slots__ = ("schedule",)

    def __init__(self) -> None:
        self.schedule: Schedule | None = None


PLAN = SchedulePlan.__struct_fields__


def of(run: Run) -> Schedule | None:
    part = run.parts.get(ScheduleState)
    return None if part is None else part.schedule


def followed(schedule: Schedule, workflow_id: str) -> StartedAction | None:
    """Return the workflow if the schedule still records its continuations and its end.

    A schedule that has ended does not wait for its last workflows. It records their ends for its readers.
    """
    if schedule.status != "ended":
        return schedule.running.get(workflow_id)
    return next((one for one in schedule.recent if one.workflow_id == workflow_id and one.status is None), None)


def plan_of(event: ScheduleCreated | ScheduleUpdated) -> SchedulePlan:
    return SchedulePlan(**{name: getattr(event, name) for name in PLAN})


# -- folds


def created(run: Run, event: ScheduleCreated, entry: Recorded) -> None:
    plan = plan_of(event)
    run.started_at = entry.at
    run.part(ScheduleState).schedule = Schedule(
        schedule_id=event.schedule_id,
        plan=plan,
        created_at=entry.at,
        updated_at=entry.at,
        status="paused" if event.paused else "active",
        paused_at=entry.at if event.paused else None,
        remaining_actions=plan.max_runs,
        trigger_number=event.trigger_number,
        sequence_base=event.sequence_base,
    )
    _planned(run, event.next_fire, entry)
    _show(run)


def carried_on(run: Run, event: ScheduleCarriedOn, entry: Recorded) -> None:
    state = event.state
    # Later folds change the state, and the event must not change: so its containers are copied.
    run.part(ScheduleState).schedule = replace(
        state, running=dict(state.running), buffer=list(state.buffer), recent=list(state.recent)
    )
    run.started_at = state.created_at
    if state.next_fire is not None:
        run.add_deadline(state.next_fire.at, "schedule", state.next_fire.occurrence)
    _show(run)


def updated(run: Run, event: ScheduleUpdated, entry: Recorded) -> None:
    schedule = _of(run)
    if "max_runs" in event.changed:
        schedule.remaining_actions = event.max_runs
    schedule.plan = plan_of(event)
    schedule.updated_at = entry.at
    _planned(run, event.next_fire, entry)
    _show(run)


def paused(run: Run, event: SchedulePaused, entry: Recorded) -> None:
    schedule = _of(run)
    schedule.status = "paused"
    schedule.paused_at = schedule.updated_at = entry.at
    _noted(schedule, event.note)
    _planned(run, None, entry)
    _show(run)


def resumed(run: Run, event: ScheduleResumed, entry: Recorded) -> None:
    schedule = _of(run)
    schedule.status = "active"
    schedule.paused_at = None
    schedule.updated_at = entry.at
    _noted(schedule, event.note)
    _planned(run, event.next_fire, entry)
    _show(run)


def triggered(run: Run, event: ScheduleTriggered, entry: Recorded) -> None:
    schedule = of(run)
    if schedule is None:
        return  # in the history of the workflow that was started
    started = StartedAction(
        trigger_number=event.trigger_number,
        workflow_id=event.workflow_instance_id,
        run_id=event.workflow_run_id,
        occurrence=event.occurrence_time,
        started_at=entry.at,
        cause=event.cause,
        overlap_policy=event.effective_overlap_policy,
    )
    schedule.trigger_number = event.trigger_number
    schedule.fires_count += 1
    schedule.last_fired_at = entry.at
    if schedule.remaining_actions is not None:
        schedule.remaining_actions -= 1
    schedule.running[started.workflow_id] = started
    schedule.recent = [*schedule.recent[1 - RECENT :], started]
    if event.drained:
        schedule.buffer.pop(0)
    _planned(run, event.next_fire, entry, anew=event.cause == "schedule" and not event.drained)


def skipped(run: Run, event: ScheduleTriggerSkipped, entry: Recorded) -> None:
    schedule = _of(run)
    schedule.skipped_count += event.skipped
    schedule.last_skip_reason = event.reason
    schedule.last_skipped_at = entry.at
    _planned(run, event.next_fire, entry, anew=event.cause == "schedule")


def buffered(run: Run, event: ScheduleActionBuffered, entry: Recorded) -> None:
    _of(run).buffer.append(Occasion(occurrence=event.occurrence_time, cause=event.cause))
    _planned(run, event.next_fire, entry, anew=event.cause == "schedule")


def action_closed(run: Run, event: ScheduleActionClosed, entry: Recorded) -> None:
    schedule = _of(run)
    before = followed(schedule, event.workflow_instance_id)
    schedule.running.pop(event.workflow_instance_id, None)
    if not event.started:
        schedule.failures_count += 1
    if before is not None:
        _remember(
            schedule,
            replace(
                before,
                run_id=event.workflow_run_id,
                status=event.status,
                closed_at=event.closed_at,
                message=event.message,
            ),
        )


def action_continued(run: Run, event: ScheduleActionContinued, entry: Recorded) -> None:
    schedule = _of(run)
    before = followed(schedule, event.workflow_instance_id)
    assert before is not None
    now = replace(before, run_id=event.workflow_run_id, run_number=event.run_number)
    if event.workflow_instance_id in schedule.running:
        schedule.running[event.workflow_instance_id] = now
    _remember(schedule, now)


def deleted(run: Run, event: ScheduleDeleted, entry: Recorded) -> None:
    schedule = _of(run)
    schedule.status = "ended" if event.reason == ALL_STARTED else "deleted"
    schedule.updated_at = entry.at
    schedule.next_fire = None
    schedule.buffer = []
    if event.confirms_starts:  # a workflow with a later run has answered already
        schedule.owed = {id: started for id, started in schedule.running.items() if started.run_number == 1}
    schedule.running = {}
    close.shut(run, entry, schedule.status, schedule.status)


def start_confirmed(run: Run, event: ScheduleStartConfirmed, entry: Recorded) -> None:
    _of(run).owed.pop(event.workflow_instance_id, None)


def rolled_over(run: Run, event: ScheduleRolledOver, entry: Recorded) -> None:
    close.shut(run, entry, run.status, "continued")


def _of(run: Run) -> Schedule:
    schedule = of(run)
    assert schedule is not None, "a schedule's history begins with its creation"
    return schedule


def _noted(schedule: Schedule, note: str | None) -> None:
    if note is not None:
        schedule.plan = replace(schedule.plan, note=note)


def _remember(schedule: Schedule, started: StartedAction) -> None:
    schedule.recent = [
        started if recent.trigger_number == started.trigger_number else recent for recent in schedule.recent
    ]


def _planned(run: Run, fire: Fire | None, entry: Recorded, *, anew: bool = False) -> None:
    """Set the next fire. Every event that may move it carries it.

    `anew`: an occurrence was due. If the clock was set back since, the next fire may be the same as before.
    """
    schedule = _of(run)
    if anew or fire != schedule.next_fire:
        schedule.next_fire = fire
        schedule.planned_at = clock(entry)
        if fire is not None:
            run.moved_deadlines.pop((fire.at, "schedule", fire.occurrence), None)
            run.add_deadline(fire.at, "schedule", fire.occurrence)


def _show(run: Run) -> None:
    """Copy to the run what lists filter by."""
    schedule = _of(run)
    plan = schedule.plan
    run.status = schedule.status
    run.workflow_type = plan.action.workflow_type
    run.routing = plan.action.routing
    run.part(search.SearchAttributes).values = dict(plan.search_attributes)
