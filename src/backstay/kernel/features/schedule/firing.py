"""Firing: an occurrence is due, a caller triggers one, or a workflow has closed that buffered occurrences waited for.

A workflow is started by a send, like a child. Its id is made from the occurrence, so a start that is sent twice starts
it once. The workflow reports its close to the schedule like a child, and the event of that report starts the next one.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from backstay.kernel.features import close
from backstay.kernel.features.child.messages import ChildReport, stop
from backstay.kernel.features.delivery import Deliver
from backstay.kernel.features.schedule import messages
from backstay.kernel.features.schedule.action import StartFromSchedule, workflow_id_of
from backstay.kernel.features.schedule.messages import FiredOccurrence, ScheduleBackfill, ScheduleTrigger
from backstay.kernel.features.schedule.records import (
    ALL_STARTED,
    BUFFER,
    Occasion,
    Overlap,
    Schedule,
    ScheduleActionBuffered,
    ScheduleActionClosed,
    ScheduleActionContinued,
    ScheduleCarriedOn,
    ScheduleDeleted,
    ScheduleRolledOver,
    ScheduleStartConfirmed,
    ScheduleState,
    ScheduleTriggered,
    ScheduleTriggerSkipped,
    StartedAction,
    followed,
    of,
)
from backstay.kernel.features.schedule.spec import Fire, fire_name, fires, missed, window
from backstay.kernel.features.start import Parent
from backstay.kernel.message import Refused
from backstay.kernel.state import Instance, Run
from backstay.kernel.turn import Turn
from backstay.kernel.values import SECOND, Micros, base_namespace, partition_of

ROLL_OVER = 500  # events, after which a schedule goes on in a new history
BACKFILL = 1000  # occurrences of one backfill

MISSED = "missed_occurrences"
EXHAUSTED = "remaining_actions_exhausted"


def next_fire(instance: Instance, schedule: Schedule, after: Micros) -> Fire | None:
    """The next fire after this moment. A paused schedule has none."""
    if schedule.status != "active":
        return None
    plan = schedule.plan
    return next(fires(plan.spec, _name(instance, schedule), plan.jitter_seconds, after), None)


def _name(instance: Instance, schedule: Schedule) -> str:
    return fire_name(instance.namespace, schedule.schedule_id)


# -- an occurrence is due


def armed(instance: Instance, occurrence: Micros) -> Micros | None:
    schedule = of(instance.current)
    fire = None if schedule is None else schedule.next_fire
    return fire.at if fire is not None and fire.occurrence == occurrence else None


def length(instance: Instance, occurrence: Micros) -> Micros:
    schedule = of(instance.current)
    assert schedule is not None
    return (armed(instance, occurrence) or 0) - schedule.planned_at


def after_clock_change(instance: Instance, occurrence: Micros, now: Micros) -> Micros:
    """When the schedule fires next, counted from now, because the clock was set back."""
    schedule = of(instance.current)
    fire = None if schedule is None else next_fire(instance, schedule, now)
    return now if fire is None else fire.at


def due(turn: Turn, occurrence: Micros) -> None:
    """Fire for the latest occurrence that is due, and count those before it as skipped."""
    schedule = _schedule(turn)
    first = schedule.next_fire
    at = turn.features.agenda.armed(turn.instance, "schedule", occurrence)
    if first is None or at is None:
        return
    plan, name = schedule.plan, _name(turn.instance, schedule)
    if at != first.at:
        # The deadline was moved because the clock was set back: fire for the occurrence that the clock is at now.
        later = fires(plan.spec, name, plan.jitter_seconds, at - plan.jitter_seconds * SECOND - 1)
        first = next((fire for fire in later if fire.at >= at), first)
    last, before = missed(plan.spec, name, plan.jitter_seconds, first, turn.now)
    following = next(fires(plan.spec, name, plan.jitter_seconds, last.occurrence), None)
    if before:
        turn.record(
            ScheduleTriggerSkipped(
                reason=MISSED, occurrence_time=first.occurrence, skipped=before, next_fire=schedule.next_fire
            )
        )
    _fire(turn, Occasion(occurrence=last.occurrence), plan.overlap_policy, following)
    roll_over(turn)


# -- trigger and backfill


def trigger(turn: Turn, message: ScheduleTrigger) -> None:
    if messages.answer_retry(turn, message):
        return
    schedule = messages.existing(turn)
    messages.check_overlap(message.overlap_policy)
    command = messages.accept(turn, message)
    occasion = Occasion(occurrence=turn.now, cause="manual")
    policy = message.overlap_policy or schedule.plan.overlap_policy
    if schedule.status != "active":
        fired = _skip(turn, occasion, "status_not_triggerable", policy, schedule.next_fire)
    else:
        fired = _fire(turn, occasion, policy, schedule.next_fire)
    messages.answer(turn, command, fired.outcome, [fired])
    roll_over(turn)


def backfill_occurrences(schedule: Schedule, start: Micros, end: Micros) -> list[Micros]:
    """The occurrences of a backfill; refused if the range is wrong or has too many."""
    if not 0 <= start < end or end > 4_102_444_800 * SECOND:
        raise Refused(
            "invalid_time_range",
            "a backfill needs start_time before end_time, between the years 1970 and 2100",
            field="end_time",
        )
    found = window(schedule.plan.spec, start, end, BACKFILL)
    if len(found) > BACKFILL:
        raise Refused(
            "invalid_time_range",
            f"more than {BACKFILL} occurrences; split the backfill into shorter ranges",
            field="end_time",
        )
    return found


def backfill(turn: Turn, message: ScheduleBackfill) -> None:
    if messages.answer_retry(turn, message):
        return
    schedule = messages.existing(turn)
    messages.check_overlap(message.overlap_policy)
    moments = backfill_occurrences(schedule, message.start, message.end)
    command = messages.accept(turn, message)
    policy = message.overlap_policy or schedule.plan.overlap_policy
    if policy in ("buffer_one", "buffer_all"):
        policy = "allow_all"  # a backfill starts at once
    fired: list[FiredOccurrence] = []
    for moment in moments:
        occasion = Occasion(occurrence=moment, cause="backfill")
        workflow_id = workflow_id_of(schedule.schedule_id, occasion, 0)
        if workflow_id in message.known or workflow_id in schedule.running:
            reason = "already_started"
        else:
            reason = _reason_to_skip(schedule, policy)
        if reason is not None:
            fired.append(FiredOccurrence(outcome="skipped", occurrence=moment, reason=reason))
        else:
            fired.append(_start(turn, occasion, policy, schedule.next_fire))
    _record_skips(turn, fired, policy)
    messages.answer(turn, command, "backfill_started", fired)
    _end_if_exhausted(turn)
    roll_over(turn)


def _record_skips(turn: Turn, fired: Iterable[FiredOccurrence], policy: Overlap) -> None:
    """Record the skipped occurrences, with one event for each reason."""
    reasons: dict[str, list[FiredOccurrence]] = {}
    for one in fired:
        if one.outcome == "skipped":
            reasons.setdefault(one.reason or "", []).append(one)
    for reason, those in reasons.items():
        turn.record(
            ScheduleTriggerSkipped(
                reason=reason,
                occurrence_time=those[0].occurrence,
                skipped=len(those),
                cause="backfill",
                effective_overlap_policy=policy,
                next_fire=_schedule(turn).next_fire,
            )
        )


# -- one occurrence, and the overlap policy


def _fire(turn: Turn, occasion: Occasion, policy: Overlap, following: Fire | None) -> FiredOccurrence:
    schedule = _schedule(turn)
    reason = _reason_to_skip(schedule, policy)
    if reason is None and _was_started(schedule, workflow_id_of(schedule.schedule_id, occasion, 0)):
        reason = "already_started"
    if reason is not None:
        fired = _skip(turn, occasion, reason, policy, following)
    elif policy in ("buffer_one", "buffer_all") and (schedule.running or schedule.buffer):
        turn.record(
            ScheduleActionBuffered(
                occurrence_time=occasion.occurrence,
                cause=occasion.cause,
                effective_overlap_policy=policy,
                next_fire=following,
            )
        )
        fired = FiredOccurrence(outcome="buffered", occurrence=occasion.occurrence, buffer_depth=len(schedule.buffer))
    else:
        fired = _start(turn, occasion, policy, following)
    _end_if_exhausted(turn)
    return fired


def _was_started(schedule: Schedule, workflow_id: str) -> bool:
    """Whether this workflow was started before. That happens when the clock was set back since."""
    return workflow_id in schedule.running or any(started.workflow_id == workflow_id for started in schedule.recent)


def _reason_to_skip(schedule: Schedule, policy: Overlap) -> str | None:
    left = schedule.remaining_actions
    if left is not None and left <= len(schedule.buffer):
        return EXHAUSTED
    if policy == "skip" and (schedule.running or schedule.buffer):
        return "overlap_policy_skip"
    room = {"buffer_one": 1, "buffer_all": BUFFER}.get(policy)
    return "buffer_full" if room is not None and len(schedule.buffer) >= room else None


def _skip(turn: Turn, occasion: Occasion, reason: str, policy: Overlap, following: Fire | None) -> FiredOccurrence:
    turn.record(
        ScheduleTriggerSkipped(
            reason=reason,
            occurrence_time=occasion.occurrence,
            cause=occasion.cause,
            effective_overlap_policy=policy,
            next_fire=following,
        )
    )
    outcome = "buffer_full" if reason == "buffer_full" else "skipped"
    return FiredOccurrence(outcome=outcome, occurrence=occasion.occurrence, reason=reason)


def _start(
    turn: Turn, occasion: Occasion, policy: Overlap, following: Fire | None, *, drained: bool = False
) -> FiredOccurrence:
    schedule = _schedule(turn)
    if policy in ("cancel_other", "terminate_other"):
        _stop_others(turn, schedule, "request_cancel" if policy == "cancel_other" else "terminate")
    number = schedule.trigger_number + 1
    workflow_id = workflow_id_of(schedule.schedule_id, occasion, number)
    event = ScheduleTriggered(
        schedule_id=schedule.schedule_id,
        trigger_number=number,
        occurrence_time=occasion.occurrence,
        workflow_instance_id=workflow_id,
        workflow_run_id=turn.ids.run_id(partition_of(base_namespace(turn.instance.namespace), workflow_id)),
        cause=occasion.cause,
        effective_overlap_policy=policy,
        drained=drained,
        next_fire=following,
    )
    turn.record(event)
    started = schedule.running[event.workflow_instance_id]
    _send_start(turn, schedule, started, started.run_number)
    return FiredOccurrence(
        outcome="triggered",
        occurrence=occasion.occurrence,
        workflow_id=event.workflow_instance_id,
        run_id=event.workflow_run_id,
    )


def _send_start(turn: Turn, schedule: Schedule, started: StartedAction, known_run_number: int) -> None:
    """Start a workflow, or ask after it: one that has started reports if it has closed, or is in a later run than the
    known one."""
    instance = turn.instance
    plan = schedule.plan
    turn.send(
        base_namespace(instance.namespace),
        started.workflow_id,
        StartFromSchedule(
            workflow_type=plan.action.workflow_type,
            run_id=started.run_id,
            arguments=plan.action.arguments,
            routing=plan.action.routing,
            memo=plan.memo,
            search_attributes=plan.search_attributes,
            visibility_labels=plan.visibility_labels,
            execution_timeout_seconds=plan.action.execution_timeout_seconds,
            run_timeout_seconds=plan.action.run_timeout_seconds,
            known_run_number=known_run_number,
            parent=Parent(
                namespace=instance.namespace,
                workflow_instance_id=instance.workflow_id,
                workflow_run_id=turn.run.run_id,
                sequence=started.trigger_number,
                child_call_id=started.workflow_id,
                occurrence_time=started.occurrence,
            ),
            cause=started.cause,
            effective_overlap_policy=started.overlap_policy,
        ),
    )


def _stop_others(turn: Turn, schedule: Schedule, policy: str) -> None:
    for started in schedule.running.values():
        reason = f"schedule {schedule.schedule_id} starts the next one"
        stop(turn, started.workflow_id, started.workflow_id, policy, reason, answer=False)


# -- reports of workflows


def receive_child_report(turn: Turn, delivery: Deliver) -> None:
    report = delivery.send.message
    assert isinstance(report, ChildReport)
    run = turn.instance.run
    schedule = None if run is None else of(run)
    if run is None or schedule is None:
        return
    owed = schedule.owed.get(report.child_call_id)
    started = followed(schedule, report.child_call_id)  # None: its close is recorded, or the schedule is deleted
    if not run.is_open and (owed is not None or started is not None):
        turn.index()  # its length: the sequence numbers of the next schedule of the same name go on from there
    if owed is not None:
        turn.record(ScheduleStartConfirmed(trigger_number=owed.trigger_number, workflow_instance_id=owed.workflow_id))
    if started is not None:
        _follow(turn, started, report)


def _follow(turn: Turn, started: StartedAction, report: ChildReport) -> None:
    if report.run_number > started.run_number:
        turn.record(
            ScheduleActionContinued(
                trigger_number=started.trigger_number,
                workflow_instance_id=started.workflow_id,
                workflow_run_id=report.run_id,
                run_number=report.run_number,
            )
        )
    if report.close is not None:
        turn.record(
            ScheduleActionClosed(
                trigger_number=started.trigger_number,
                workflow_instance_id=started.workflow_id,
                workflow_run_id=report.run_id,
                status=report.close.status,
                closed_reason=report.close.closed_reason,
                closed_at=report.close.closed_at,
                started=report.close.started,
                message=report.close.message or None,
            )
        )
        drain(turn)
    roll_over(turn)


def drain(turn: Turn) -> None:
    """Start the first buffered occurrence, unless a workflow is running or the schedule is paused."""
    schedule = _schedule(turn)
    if schedule.buffer and not schedule.running and schedule.status == "active":
        _start(turn, schedule.buffer[0], schedule.plan.overlap_policy, schedule.next_fire, drained=True)
        _end_if_exhausted(turn)


def ask_after(turn: Turn) -> None:
    """Ask after the running workflows and, once the schedule is deleted, after those whose start is not confirmed."""
    schedule = of(turn.run)
    if schedule is None:
        return
    for started in schedule.running.values():
        _send_start(turn, schedule, started, started.run_number)
    for started in schedule.owed.values():
        _send_start(turn, schedule, started, 0)


def count_unanswered(run: Run) -> int:
    part = run.parts.get(ScheduleState)
    return 0 if part is None or part.schedule is None else len(part.schedule.running) + len(part.schedule.owed)


def waits_externally(run: Run) -> bool:
    """Every schedule does: a paused one has no deadline and waits to be resumed."""
    return of(run) is not None


# -- the end, and the next run


def _end_if_exhausted(turn: Turn) -> None:
    schedule = _schedule(turn)
    if schedule.remaining_actions == 0 and turn.run.is_open:
        end(turn, ALL_STARTED)


def end(turn: Turn, reason: str) -> None:
    turn.record(ScheduleDeleted(reason=reason, confirms_starts=True))
    close.closed(turn)


def roll_over(turn: Turn, *, now: bool = False) -> None:
    """Go on in a new run once the history is long, so that the cost of a schedule does not grow with its age."""
    old = turn.run
    if not old.is_open or (old.length < ROLL_OVER and not now):
        return
    schedule = _schedule(turn)
    new = turn.new_run()
    turn.record(ScheduleRolledOver(continued_to_run_id=new.run_id))
    close.closed(turn)
    state = replace(schedule, sequence_base=schedule.sequence_base + old.length)
    turn.instance.workflow_type = schedule.plan.action.workflow_type
    turn.begin_run(new)
    turn.record(ScheduleCarriedOn(state=state))


def _schedule(turn: Turn) -> Schedule:
    schedule = of(turn.run)
    assert schedule is not None
    return schedule
