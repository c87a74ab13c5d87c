"""What a schedule does when its moment comes, when it is asked, and when a workflow of its own closes."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from backstay.kernel.features.child.messages import ChildReport, StopFromParent
from backstay.kernel.features.close import CompleteWorkflow
from backstay.kernel.features.continue_as_new import ContinueAsNew
from backstay.kernel.features.reconcile import Reconcile
from backstay.kernel.features.schedule import (
    Action,
    Interval,
    ScheduleBackfill,
    ScheduleCreate,
    ScheduleDelete,
    SchedulePause,
    SchedulePlan,
    ScheduleResume,
    ScheduleTrigger,
    ScheduleTriggered,
    ScheduleUpdate,
    Spec,
    firing,
)
from backstay.kernel.features.schedule.action import StartFromSchedule
from backstay.kernel.features.schedule.firing import ROLL_OVER
from backstay.kernel.features.schedule.records import ScheduleDeleted
from backstay.kernel.features.schedule.spec import fires, missed, occurrences
from backstay.kernel.features.start import RecordedDefinition
from backstay.kernel.values import SECOND, Routing

from ...given import T0, instant, names, only
from ...stored import refold, snapshot
from .scheduling import PLACE, Scheduling, plan, scheduling

EVERY_MINUTE: dict[str, Any] = {"every": "PT1M"}


def ids(one: Scheduling) -> list[str]:
    return [flow.state.workflow_id for flow in one.started]


def test_a_schedule_starts_a_workflow_named_after_the_occurrence_and_hears_of_its_close() -> None:
    one = scheduling(**EVERY_MINUTE)
    assert one.next_fire == 60
    assert one.due(59).events == []
    assert names(one.due(60).events) == ["ScheduleTriggered"]
    (workflow,) = one.started
    assert workflow.state.workflow_id == "schedule:nightly:2027-01-15T08:01:00Z"
    assert workflow.state.namespace == "default"
    assert names(workflow.history) == ["StartAccepted", "WorkflowStarted", "ScheduleTriggered"]
    noted = only(workflow.decisions[0], ScheduleTriggered)
    assert (noted.schedule_id, noted.trigger_number, noted.occurrence_time) == ("nightly", 1, instant(60))
    assert workflow.commands[0].source == "schedule"
    assert (one.next_fire, one.state.fires_count, len(one.running)) == (120, 1, 1)
    assert one.flow.row is not None
    assert one.flow.row.unanswered == 1
    one.finish(workflow)
    assert one.running == []
    assert one.flow.row.unanswered == 0
    assert (one.state.recent[0].status, one.state.recent[0].closed_at) == ("completed", one.world.now)


def test_a_schedule_starts_the_workflow_of_its_plan() -> None:
    action = Action(
        workflow_type="report",
        routing=Routing(queue="slow"),
        arguments=b"args",
        execution_timeout_seconds=60,
        run_timeout_seconds=30,
    )
    one = scheduling(
        **EVERY_MINUTE,
        action=action,
        memo={"a": b"m"},
        search_attributes={"team": "x"},
        visibility_labels={"k": "v"},
    )
    one.due(60)
    (workflow,) = one.started
    began: Any = workflow.history[1].event
    assert (began.workflow_type, began.arguments, began.routing.queue) == ("report", b"args", "slow")
    assert (began.memo, began.search_attributes, began.visibility_labels) == ({"a": b"m"}, {"team": "x"}, {"k": "v"})
    assert (began.execution_timeout_seconds, began.run_timeout_seconds) == (60, 30)


@pytest.mark.parametrize("options", [EVERY_MINUTE, {"cron": "* * * * *"}, {"every": "PT1M", "cron": "*/7 * * * *"}])
def test_after_downtime_one_fire_and_the_rest_is_counted(options: dict[str, Any]) -> None:
    one = scheduling(**options)
    decision = one.due(10 * 60 + 30)
    assert names(decision.events) == ["ScheduleTriggerSkipped", "ScheduleTriggered"]
    assert ids(one) == ["schedule:nightly:2027-01-15T08:10:00Z"]
    assert (one.state.skipped_count, one.state.last_skip_reason) == (9, "missed_occurrences")
    assert (one.state.fires_count, one.next_fire) == (1, 11 * 60)


def test_a_long_downtime_is_counted_without_taking_long() -> None:
    spec = Spec(intervals=[Interval(every="PT1S")])
    year = 365 * 86_400
    first = next(fires(spec, "n", 0, T0))
    last, before = missed(spec, "n", 0, first, T0 + year * SECOND)
    assert (last.at, before) == (T0 + year * SECOND, year - 1)
    both = Spec(intervals=[Interval(every="PT1S"), Interval(every="PT2S")])
    last, before = missed(both, "n", 0, first, T0 + year * SECOND)
    assert (last.at, before) == (T0 + year * SECOND, 10_000)


# -- overlap


@pytest.mark.parametrize(
    ("policy", "second", "third"),
    [
        ("skip", ("skipped", "overlap_policy_skip"), ("skipped", "overlap_policy_skip")),
        ("buffer_one", ("buffered", None), ("buffer_full", "buffer_full")),
        ("buffer_all", ("buffered", None), ("buffered", None)),
        ("allow_all", ("triggered", None), ("triggered", None)),
        ("cancel_other", ("triggered", None), ("triggered", None)),
        ("terminate_other", ("triggered", None), ("triggered", None)),
    ],
)
def test_the_overlap_policy_decides_while_another_workflow_runs(policy: Any, second: Any, third: Any) -> None:
    one = scheduling(**EVERY_MINUTE, overlap_policy=policy)
    assert one.trigger().outcome == "triggered"
    fired = [one.trigger(), one.trigger()]
    assert [(f.outcome, f.reason) for f in fired] == [second, third]
    assert [f.workflow_id is not None for f in fired] == [f.outcome == "triggered" for f in fired]


def test_a_trigger_may_overlap_otherwise_than_the_schedule() -> None:
    one = scheduling(**EVERY_MINUTE)
    one.trigger()
    assert one.trigger().outcome == "skipped"
    assert one.trigger(overlap_policy="allow_all").outcome == "triggered"
    assert ids(one) == ["schedule:nightly:trigger:1", "schedule:nightly:trigger:2"]


def test_buffered_occurrences_go_one_after_another_in_order() -> None:
    one = scheduling(**EVERY_MINUTE, overlap_policy="buffer_all")
    one.due(60)
    one.due(120)
    one.due(180)
    assert [occasion.occurrence for occasion in one.state.buffer] == [instant(120), instant(180)]
    for number in range(3):
        assert len(one.running) == 1
        one.finish(one.started[number])
    assert ids(one) == [f"schedule:nightly:2027-01-15T08:0{minute}:00Z" for minute in (1, 2, 3)]
    assert (one.running, one.state.buffer, one.next_fire) == ([], [], 240)


@pytest.mark.parametrize(("policy", "closed"), [("cancel_other", "cancelled"), ("terminate_other", "terminated")])
def test_the_next_one_stops_the_others(policy: Any, closed: str) -> None:
    one = scheduling(**EVERY_MINUTE, overlap_policy=policy)
    one.due(60)
    one.due(120)
    first, second = one.started
    assert (first.run.closed_reason, second.run.closed_reason) == (closed, None)
    assert [started.workflow_id for started in one.running] == [second.state.workflow_id]
    assert [past.status for past in one.state.recent] == [closed, None]


# -- sends


def test_sends_that_arrive_again_change_nothing() -> None:
    one = scheduling(**EVERY_MINUTE)
    one.due(60)
    one.finish(one.started[0])
    before = [snapshot(flow) for flow in one.world.flows.values()]
    for send in list(one.world.log):
        one.world.deliver(send)
    one.world.settle()
    assert [len(flow.history) for flow in one.world.flows.values()] == [3, 4]
    assert [found["length"] for found in before] == [3, 4]


def test_asking_after_a_workflow_brings_news_that_was_lost() -> None:
    one = scheduling(**EVERY_MINUTE)
    one.due(60)
    one.started[0].complete(CompleteWorkflow())
    one.world.rows.clear()  # its report is lost
    one.flow.when(Reconcile(incarnation="e", ask=True))
    one.world.settle()
    assert one.running == []
    assert len(one.started) == 1


def test_an_id_that_another_caller_has_used_is_a_failure_of_the_schedule() -> None:
    one = scheduling(**EVERY_MINUTE)
    one.world.start("schedule:nightly:2027-01-15T08:01:00Z")
    one.due(60)
    assert (one.state.failures_count, one.running) == (1, [])
    assert "belongs to another" in (one.state.recent[0].message or "")
    one.due(120)
    assert len(one.running) == 1


def test_a_workflow_that_continues_as_new_is_followed() -> None:
    one = scheduling(**EVERY_MINUTE)
    one.due(60)
    (workflow,) = one.started
    workflow.complete(ContinueAsNew())
    one.world.settle()
    assert [(s.run_id, s.run_number) for s in one.running] == [(workflow.run.run_id, 2)]
    one.finish(workflow)
    assert one.running == []


def test_the_workflow_is_judged_by_the_code_that_is_known_where_it_starts() -> None:
    one = scheduling(**EVERY_MINUTE)
    one.flow.due(60)
    (send,) = one.world.on_their_way(StartFromSchedule)
    known = RecordedDefinition(signals=["go"], fingerprint="f")
    message = send.message.with_definition(lambda routing, _: (replace(routing, compatibility="b1"), known))
    one.world.rows[send.key] = type(send)(send.key, send.sender, send.namespace, send.workflow_id, message)
    one.world.settle()
    began: Any = one.started[0].history[1].event
    assert (began.workflow_definition_fingerprint, began.routing.compatibility) == ("f", "b1")
    assert ChildReport(child_call_id="", parent_run_id="", run_id="", run_number=1).with_definition(lambda *_: 1 / 0)


# -- pause, resume, update, delete


def test_a_paused_schedule_does_not_fire_and_goes_on_from_when_it_is_resumed() -> None:
    one = scheduling(**EVERY_MINUTE, note="first")
    one.flow.when(SchedulePause(note="holidays"), 30)
    assert (one.state.status, one.next_fire, one.flow.state.next_wake) == ("paused", None, None)
    assert one.state.plan.note == "holidays"
    assert one.flow.row is not None
    assert one.flow.row.waits_externally == 1, "nobody has to move it"
    assert one.trigger().reason == "status_not_triggerable"
    assert names(one.flow.when(SchedulePause()).events) == []
    reply = one.flow.when(ScheduleResume(), 3000).reply
    assert (reply.outcome, one.next_fire, one.state.skipped_count) == ("resumed", 3060, 1)
    assert one.flow.when(ScheduleResume()).reply.outcome == "resumed"


def test_a_schedule_may_begin_paused() -> None:
    one = scheduling(**EVERY_MINUTE, paused=True)
    assert (one.state.status, one.next_fire) == ("paused", None)
    one.flow.when(ScheduleResume(), 10)
    assert one.next_fire == 60


def test_a_buffered_action_waits_while_its_schedule_is_paused() -> None:
    one = scheduling(**EVERY_MINUTE, overlap_policy="buffer_one")
    one.due(60)
    one.due(120)
    one.flow.when(SchedulePause())
    one.finish(one.started[0])
    assert len(one.started) == 1
    one.flow.when(ScheduleResume())
    one.world.settle()
    assert ids(one)[1] == "schedule:nightly:2027-01-15T08:02:00Z"


def test_an_update_changes_what_it_names() -> None:
    one = scheduling(**EVERY_MINUTE)
    one.flow.when(ScheduleUpdate(changes={"spec": Spec(intervals=[Interval(every="PT1H")])}), 90)
    assert one.next_fire == 3600
    one.flow.when(ScheduleUpdate(changes={"overlap_policy": "allow_all", "note": "n", "max_runs": 3}))
    state = one.state
    assert (state.plan.overlap_policy, state.plan.note, state.remaining_actions) == ("allow_all", "n", 3)
    assert one.next_fire == 3600
    assert names(one.flow.when(ScheduleUpdate(changes={"note": "n"})).events) == []
    refusal = one.flow.refused(ScheduleUpdate(changes={"colour": 1}))
    assert (refusal.reason, refusal.fields["field"]) == ("invalid_schedule_update", "colour")
    assert one.flow.refused(ScheduleUpdate(changes={"spec": Spec()})).reason == "invalid_schedule_spec"


def test_lists_show_what_an_update_has_made_of_it() -> None:
    one = scheduling(**EVERY_MINUTE)
    created = one.state.created_at
    one.flow.when(ScheduleUpdate(changes={"action": Action(workflow_type="other", routing=Routing(queue="q2"))}), 5)
    row = one.flow.runs[one.flow.run.key]
    assert (row.workflow_type, row.queue, row.started_at, row.status) == ("other", "q2", created, "active")
    one.due(60)
    began: Any = one.started[0].history[1].event
    assert began.workflow_type == "other"


def test_a_deleted_schedule_is_over_and_its_workflows_go_on() -> None:
    one = scheduling(**EVERY_MINUTE)
    one.due(60)
    assert one.flow.when(ScheduleDelete()).reply.outcome == "deleted"
    row = one.flow.runs[one.flow.run.key]
    assert (row.status, row.closed_reason, one.flow.state.next_wake) == ("deleted", "deleted", None)
    one.finish(one.started[0])
    assert names(one.flow.history)[-2:] == ["ScheduleDeleted", "ScheduleStartConfirmed"]
    for message in (ScheduleTrigger(), SchedulePause(), ScheduleDelete(), ScheduleUpdate(changes={})):
        assert one.flow.refused(message).reason == "schedule_not_found"


@pytest.mark.parametrize("ends", ["deleted", "ended"])
def test_a_start_that_was_lost_is_made_again_after_the_schedule_has_ended(ends: str) -> None:
    one = scheduling(**EVERY_MINUTE, max_runs=1 if ends == "ended" else None)
    one.flow.due(60)
    if ends == "deleted":
        one.flow.when(ScheduleDelete())
    one.world.rows.clear()  # its start is lost
    assert one.flow.row is not None
    assert (one.state.status, one.started, one.flow.row.unanswered) == (ends, [], 1)
    one.flow.reopen()
    one.flow.when(Reconcile(incarnation="e", ask=True))
    one.world.settle()
    assert len(one.started) == 1
    for _ in range(2):
        one.flow.when(Reconcile(incarnation="e", ask=True))
        one.world.settle()
        assert len(one.started) == 1
        assert one.flow.row is not None
        assert (one.flow.row.unanswered, names(one.flow.history)[-1]) == (0, "ScheduleStartConfirmed")
    assert one.flow.runs[one.flow.run.key].length == len(one.flow.history)
    one.flow.reopen()
    assert not one.flow.when(Reconcile(incarnation="e", ask=True)).sends


def test_a_started_workflow_that_continued_as_new_is_not_asked_after_once_the_schedule_is_deleted() -> None:
    one = scheduling(**EVERY_MINUTE)
    one.due(60)
    one.started[0].complete(ContinueAsNew())
    one.world.settle()
    decision = one.flow.when(ScheduleDelete())
    assert decision.instance.unanswered == 0
    one.finish(one.started[0])
    assert names(one.flow.history)[-1] == "ScheduleDeleted"


def test_a_schedule_that_was_deleted_by_an_older_release_starts_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it fired for was not confirmed in its history, and may have been removed by retention since."""
    one = scheduling(**EVERY_MINUTE)
    one.due(60)
    with monkeypatch.context() as older:
        older.setattr(firing, "ScheduleDeleted", lambda reason, **_: ScheduleDeleted(reason=reason))
        decision = one.flow.when(ScheduleDelete())
    assert decision.instance.unanswered == 0
    one.flow.reopen()
    one.finish(one.started[0])
    assert names(one.flow.history)[-1] == "ScheduleDeleted"
    assert not one.flow.when(Reconcile(incarnation="e", ask=True)).sends
    assert not one.flow.when(ScheduleCreate(schedule_id="nightly", plan=plan(every="PT1H"))).sends


def test_a_schedule_that_takes_the_name_of_a_deleted_one_sends_the_starts_that_one_has_not_heard_of() -> None:
    one = scheduling(**EVERY_MINUTE)
    one.flow.due(60)
    one.flow.when(ScheduleDelete())
    one.world.rows.clear()  # its start is lost
    one.flow.when(ScheduleCreate(schedule_id="nightly", plan=plan(every="PT1H")))
    one.world.settle()
    assert ids(one) == ["schedule:nightly:2027-01-15T08:01:00Z"]
    assert one.running == []


def test_a_name_can_be_used_again_after_a_deletion() -> None:
    one = scheduling(**EVERY_MINUTE)
    one.trigger()
    again = ScheduleCreate(schedule_id="nightly", plan=plan(every="PT1H"))
    assert one.flow.refused(again).reason == "schedule_already_exists"
    one.flow.when(ScheduleDelete())
    one.flow.when(again)
    assert (one.state.status, one.next_fire, one.state.fires_count, one.state.sequence_base) == ("active", 3600, 0, 3)
    assert one.trigger().workflow_id == "schedule:nightly:trigger:2"


def test_a_schedule_ends_with_its_last_action() -> None:
    one = scheduling(**EVERY_MINUTE, max_runs=2)
    one.due(60)
    one.due(120)  # the first still runs
    assert one.state.remaining_actions == 1
    one.finish(one.started[0])
    assert names(one.due(180).events) == ["ScheduleTriggered", "ScheduleDeleted"]
    assert one.state.status == "ended"
    assert one.flow.state.next_wake is None


def test_a_schedule_that_has_ended_still_tells_how_its_last_workflow_ends() -> None:
    one = scheduling(**EVERY_MINUTE, max_runs=1)
    one.due(60)
    (workflow,) = one.started
    assert (one.state.status, one.state.recent[0].status) == ("ended", None)
    workflow.complete(ContinueAsNew())
    one.world.settle()
    assert (one.state.recent[0].run_id, one.state.recent[0].run_number) == (workflow.run.run_id, 2)
    one.finish(workflow)
    for _ in range(2):
        assert (one.state.status, one.state.recent[0].status, one.running) == ("ended", "completed", [])
        assert one.state.recent[0].closed_at == workflow.run.closed_at
        assert one.flow.runs[one.flow.run.key].length == len(one.flow.history)
        row = one.flow.row
        assert row is not None
        assert (row.unanswered, row.next_wake) == (0, None)
        one.flow.reopen()


def test_a_schedule_whose_last_workflow_could_not_be_started_says_so() -> None:
    one = scheduling(**EVERY_MINUTE, max_runs=1)
    one.world.start("schedule:nightly:2027-01-15T08:01:00Z")
    one.due(60)
    assert (one.state.status, one.state.failures_count) == ("ended", 1)
    assert "belongs to another" in (one.state.recent[0].message or "")


def test_buffered_actions_count_against_the_last_action() -> None:
    one = scheduling(**EVERY_MINUTE, max_runs=2, overlap_policy="buffer_all")
    one.due(60)
    one.due(120)
    assert one.trigger().reason == "remaining_actions_exhausted"
    one.finish(one.started[0])
    assert one.state.status == "ended"
    assert len(one.started) == 2


# -- backfill


def backfill(one: Scheduling, start: float, end: float, **options: Any) -> list[tuple[str, str | None]]:
    reply = one.flow.when(ScheduleBackfill(start=instant(start), end=instant(end), **options)).reply
    one.world.settle()
    assert reply.outcome == "backfill_started"
    return [(fired.outcome, fired.reason) for fired in reply.fired]


def test_a_backfill_fires_for_each_occurrence_from_start_to_before_end() -> None:
    one = scheduling(**EVERY_MINUTE, at=600, jitter_seconds=30)
    assert backfill(one, 60, 240, overlap_policy="allow_all") == [("triggered", None)] * 3
    assert ids(one) == [f"schedule:nightly:backfill:2027-01-15T08:0{minute}:00Z" for minute in (1, 2, 3)]


def test_a_backfill_obeys_overlap_and_does_not_put_anything_off() -> None:
    one = scheduling(**EVERY_MINUTE, at=600)
    skip = ("skipped", "overlap_policy_skip")
    assert backfill(one, 60, 240) == [("triggered", None), skip, skip]
    assert (one.state.skipped_count, names(one.flow.history)[-1]) == (2, "ScheduleTriggerSkipped")
    buffering = scheduling(**EVERY_MINUTE, at=600, overlap_policy="buffer_one")
    assert backfill(buffering, 60, 180) == [("triggered", None)] * 2


def test_a_backfill_of_what_was_started_before_starts_nothing_twice() -> None:
    one = scheduling(**EVERY_MINUTE, at=600, overlap_policy="allow_all")
    backfill(one, 60, 120)
    assert backfill(one, 60, 180) == [("skipped", "already_started"), ("triggered", None)]
    one.finish(one.started[0])
    one.finish(one.started[1])
    assert backfill(one, 60, 180, known=frozenset(ids(one))) == [("skipped", "already_started")] * 2
    backfill(one, 60, 120)  # nobody had looked
    assert len(one.started) == 2
    assert one.running == [], "it was told how that stands"


def test_a_backfill_keeps_to_the_last_action() -> None:
    one = scheduling(**EVERY_MINUTE, at=600, overlap_policy="allow_all", max_runs=2)
    exhausted = ("skipped", "remaining_actions_exhausted")
    assert backfill(one, 60, 240) == [("triggered", None), ("triggered", None), exhausted]
    assert one.state.status == "ended"


@pytest.mark.parametrize(("start", "end"), [(120, 60), (60, 60), (0, 60 * 1001), (-T0 / SECOND - 1, 60)])
def test_a_backfill_of_no_time_or_too_much(start: float, end: float) -> None:
    one = scheduling(**EVERY_MINUTE, at=600)
    assert one.flow.refused(ScheduleBackfill(start=instant(start), end=instant(end))).reason == "invalid_time_range"


# -- jitter


def test_jitter_is_the_same_every_time_and_never_reaches_the_next_occurrence() -> None:
    spec = Spec(intervals=[Interval(every="PT10S")])
    first = [next(fires(spec, "a", 3600, T0 + i * 10 * SECOND)) for i in range(200)]
    assert first == [next(fires(spec, "a", 3600, T0 + i * 10 * SECOND)) for i in range(200)]
    assert all(0 <= fire.at - fire.occurrence < 10 * SECOND for fire in first)
    assert len({fire.at - fire.occurrence for fire in first}) > 150
    assert first != [next(fires(spec, "b", 3600, T0 + i * 10 * SECOND)) for i in range(200)]


def test_a_jittered_fire_keeps_the_name_of_its_occurrence() -> None:
    one = scheduling(**EVERY_MINUTE, jitter_seconds=50)
    assert one.next_fire is not None
    assert 60 <= one.next_fire < 110
    one.due(one.next_fire)
    assert ids(one) == ["schedule:nightly:2027-01-15T08:01:00Z"]
    assert 120 <= (one.next_fire or 0) < 170


# -- requests that are made again


def test_a_request_that_is_made_again_gets_the_same_answer() -> None:
    one = scheduling(**EVERY_MINUTE, overlap_policy="allow_all")
    trigger = ScheduleTrigger(request_id="r")
    first = one.flow.when(trigger).reply
    again = one.flow.when(replace(trigger, retained=one.flow.commands[-1]))
    assert (again.reply, again.idle) == (first, True)
    other = ScheduleTrigger(request_id="r", overlap_policy="skip", retained=one.flow.commands[-1])
    assert one.flow.refused(other).reason == "request_id_conflict"
    assert len(one.running) == 1


# -- a long life


def test_a_long_life_goes_on_in_new_histories() -> None:
    one = scheduling(**EVERY_MINUTE)
    for minute in range(1, ROLL_OVER):
        one.due(minute * 60)
        one.finish(one.started[-1])
    assert one.flow.run.number > 1
    assert len(one.flow.history) < ROLL_OVER
    assert one.state.fires_count == ROLL_OVER - 1
    assert one.state.trigger_number == ROLL_OVER - 1
    earlier = sum(len(history) for run, history in one.flow.histories.items() if run != one.flow.run.key)
    assert one.state.sequence_base == earlier
    assert one.flow.runs[one.flow.run.key].started_at == one.state.created_at
    closed = [row.closed_reason for row in one.flow.runs.values()]
    assert closed == ["continued"] * (len(closed) - 1) + [None]
    assert snapshot(one.flow) == snapshot(one.flow, refold(one.flow))


def test_a_workflow_that_runs_when_a_schedule_begins_its_next_run_reports_to_that_run() -> None:
    one = scheduling(**EVERY_MINUTE, overlap_policy="buffer_all")
    one.due(60)
    one.due(120)
    number = one.flow.run.number
    one.flow.when(ScheduleUpdate(changes={"action": Action(workflow_type="other")}))
    assert one.flow.run.number == number + 1
    one.finish(one.started[0])
    assert len(one.running) == 1
    assert ids(one)[1] == "schedule:nightly:2027-01-15T08:02:00Z"


# -- what is refused


@pytest.mark.parametrize(
    ("change", "reason", "field"),
    [
        ({"spec": Spec()}, "invalid_schedule_spec", "spec"),
        ({"spec": Spec(cron_expressions=["nope"])}, "invalid_schedule_spec", "spec.cron_expressions[0]"),
        ({"spec": Spec(cron_expressions=["0 0 30 2 *"])}, "invalid_schedule_spec", "spec.cron_expressions[0]"),
        ({"spec": Spec(cron_expressions=["@daily"], timezone="No/Where")}, "invalid_schedule_spec", "spec.timezone"),
        ({"spec": Spec(intervals=[Interval(every="30")])}, "invalid_schedule_spec", "spec.intervals[0].every"),
        ({"spec": Spec(intervals=[Interval(every="P1M")])}, "invalid_schedule_spec", "spec.intervals[0].every"),
        ({"spec": Spec(intervals=[Interval(every="PT")])}, "invalid_schedule_spec", "spec.intervals[0].every"),
        ({"spec": Spec(intervals=[Interval(every="PT0S")])}, "invalid_schedule_spec", "spec.intervals[0].every"),
        ({"spec": Spec(intervals=[Interval(every="P400D")])}, "invalid_schedule_spec", "spec.intervals[0].every"),
        (
            {"spec": Spec(intervals=[Interval(every="PT1M", offset="PT1M")])},
            "invalid_schedule_spec",
            "spec.intervals[0].offset",
        ),
        ({"spec": Spec(cron_expressions=["@daily"] * 51)}, "invalid_schedule_spec", "spec"),
        ({"overlap_policy": "sometimes"}, "invalid_overlap_policy", "overlap_policy"),
        ({"jitter_seconds": 3601}, "invalid_jitter", "jitter_seconds"),
        ({"jitter_seconds": -1}, "invalid_jitter", "jitter_seconds"),
        ({"max_runs": 0}, "invalid_max_runs", "max_runs"),
        ({"note": "n" * 5000}, "invalid_note", "note"),
        ({"action": Action(workflow_type="")}, "invalid_workflow_type", "workflow_type"),
        ({"action": Action(workflow_type="w", run_timeout_seconds=0)}, "invalid_timeout", "run_timeout_seconds"),
        ({"action": Action(workflow_type="w", arguments=b"x" * 3_000_000)}, "structural_limit_exceeded", None),
    ],
)
def test_a_malformed_schedule_is_refused(change: dict[str, Any], reason: str, field: str | None) -> None:
    one = scheduling(**EVERY_MINUTE)
    bad = replace(plan(**EVERY_MINUTE), **change)
    other = one.world.flow("other", PLACE)
    refusal = other.refused(ScheduleCreate(schedule_id="other", plan=bad))
    assert (refusal.reason, refusal.fields.get("field")) == (reason, field)
    assert one.flow.refused(ScheduleUpdate(changes=change)).reason == reason


@pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 129, "ü"])
def test_a_malformed_schedule_id_is_refused(name: str) -> None:
    flow = scheduling(**EVERY_MINUTE).world.flow("other", PLACE)
    refusal = flow.refused(ScheduleCreate(schedule_id=name, plan=plan(**EVERY_MINUTE)))
    assert refusal.reason == "invalid_schedule_id"


def test_the_earliest_of_all_fires_and_equal_moments_are_one() -> None:
    spec = Spec(
        cron_expressions=["*/10 * * * *"],
        intervals=[Interval(every="PT15M"), Interval(every="PT1H", offset="PT5M")],
    )
    found = []
    for moment in occurrences(spec, T0):
        found.append((moment - T0) / 60 / SECOND)
        if len(found) == 7:
            break
    assert found == [5, 10, 15, 20, 30, 40, 45]


def test_stops_are_sent_to_those_that_run() -> None:
    one = scheduling(**EVERY_MINUTE, overlap_policy="terminate_other")
    one.flow.due(60)
    one.flow.due(120)
    assert [send.workflow_id for send in one.world.on_their_way(StopFromParent)] == [
        "schedule:nightly:2027-01-15T08:01:00Z"
    ]
    assert isinstance(one.state.plan, SchedulePlan)
