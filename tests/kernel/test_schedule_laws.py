"""Laws of schedules: whatever is asked of one, however late, often and out of order what is sent arrives.

Fires strictly increase and none is lost: every occurrence was fired for, is buffered, or is counted as skipped. No occurrence
starts two workflows. Folding the stored history gives the live state at every point, and the wake is the one that is expected.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backstay.kernel.features.close import CompleteWorkflow, FailWorkflow
from backstay.kernel.features.continue_as_new import ContinueAsNew
from backstay.kernel.features.deadline import Due
from backstay.kernel.features.reconcile import Reconcile
from backstay.kernel.features.schedule import (
    OVERLAPS,
    ScheduleBackfill,
    ScheduleDelete,
    SchedulePause,
    ScheduleResume,
    ScheduleTrigger,
    ScheduleUpdate,
    firing,
)
from backstay.kernel.features.schedule.records import (
    ScheduleActionBuffered,
    ScheduleTriggered,
    ScheduleTriggerSkipped,
)
from backstay.kernel.features.schedule.spec import window
from backstay.kernel.message import Refused
from backstay.kernel.values import SECOND

from .features.schedule.scheduling import Scheduling, plan
from .given import T0
from .stored import refold, snapshot

SPECS: list[dict[str, Any]] = [
    {"every": "PT1M"},
    {"cron": "*/2 * * * *"},
    {"every": "PT5M", "cron": "*/3 * * * *", "timezone": "Asia/Kolkata"},
]


class Life:
    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.one = Scheduling(
            plan(
                **random.choice(SPECS),
                overlap_policy=random.choice(OVERLAPS),
                jitter_seconds=random.choice([0, 0, 40]),
                max_runs=random.choice([None, None, None, 6]),
            ),
            paused=random.random() < 0.1,
        )
        self.world = self.one.world
        self.check()

    def step(self) -> None:
        random, flow = self.random, self.one.flow
        self.world.now += random.choice([0, 0, 7, 30, 60, 60, 400]) * SECOND
        match random.choice(["due"] * 6 + ["deliver"] * 8 + ["work"] * 5 + ["again", "ask", "restart", "ask it"]):
            case "deliver" if self.world.rows:
                self.deliver(random.choice(self.world.on_their_way()))
            case "again" if self.world.log:
                self.deliver(random.choice(self.world.log))
            case "work":
                self.work()
            case "ask":
                flow.when(Reconcile(incarnation="e", ask=True))
            case "restart":
                flow.reopen()
            case "ask it":
                self.ask_it()
            case _:
                flow.when(Due())
        self.check()

    def deliver(self, send: Any) -> None:
        try:
            self.world.deliver(send)
        except Refused as refusal:
            if refusal.reason != "workflow_not_found":  # a stop that overtook its start
                raise

    def ask_it(self) -> None:
        now = self.world.now
        policy: Any = self.random.choice([None, *OVERLAPS])
        message = self.random.choice(
            [
                ScheduleTrigger(overlap_policy=policy),
                ScheduleTrigger(),
                SchedulePause(),
                ScheduleResume(),
                ScheduleResume(),
                ScheduleUpdate(changes={"overlap_policy": self.random.choice(OVERLAPS)}),
                ScheduleUpdate(changes={"spec": plan(**self.random.choice(SPECS)).spec}),
                ScheduleBackfill(start=now - 300 * SECOND, end=now, overlap_policy=policy),
                *([ScheduleDelete()] if self.random.random() < 0.1 else []),
            ]
        )
        try:
            self.one.flow.when(message)
        except Refused as refusal:
            if refusal.reason != "schedule_not_found" or self.one.flow.run.is_open:
                raise

    def work(self, *, ending: bool = False) -> None:
        ready = [flow for flow in self.one.started if any(t.state == "ready" for t in flow.tasks.values())]
        if ready:
            ends: list[Any] = [CompleteWorkflow(), FailWorkflow(message="no")]
            flow = self.random.choice(ready)
            flow.now = self.world.now
            flow.complete(self.random.choice(ends if ending else [*ends, ContinueAsNew()]))

    def finish(self) -> None:
        """From here on everybody comes to an end, and everything arrives."""
        if self.one.flow.run.is_open:
            self.one.flow.when(ScheduleUpdate(changes={"overlap_policy": "skip"}))
            self.one.flow.when(SchedulePause())
        for _ in range(300):
            self.work(ending=True)
            for send in self.world.on_their_way():
                self.deliver(send)
            if not self.world.rows and not any(flow.tasks for flow in self.one.started):
                break
        self.check()

    # -- what always holds

    def check(self) -> None:
        for flow in self.world.flows.values():
            if flow.row is None:
                continue
            again = refold(flow)
            assert snapshot(flow) == snapshot(flow, again)
            expected = flow.machine.expect(flow.state)
            assert expected.tasks.keys() == flow.rows.keys()
            assert flow.machine.expect(again) == expected
        flow = self.one.flow
        assert flow.state.next_wake == flow.machine.expect(flow.state).next_wake
        state = self.one.state
        assert (state.status == "active") == (state.next_fire is not None)
        assert flow.row is not None
        assert flow.row.unanswered == len(state.running) + len(state.owed)
        assert state.remaining_actions is None or state.remaining_actions >= 0

    def events(self, *kinds: type[Any]) -> list[Any]:
        histories = self.one.flow.histories
        return [entry.event for run in sorted(histories) for entry in histories[run] if isinstance(entry.event, kinds)]

    def laws(self) -> None:
        triggered = self.events(ScheduleTriggered)
        assert [event.trigger_number for event in triggered] == list(range(1, len(triggered) + 1))
        decided = self.events(ScheduleTriggered, ScheduleActionBuffered)
        own = [e.occurrence_time for e in decided if e.cause == "schedule" and not getattr(e, "drained", False)]
        assert own == sorted(set(own)), "fires strictly increase"
        ids = [event.workflow_instance_id for event in triggered if event.cause == "schedule"]
        assert len(ids) == len(set(ids))
        started = {flow.state.workflow_id for flow in self.one.started if flow.state.run is not None}
        assert started <= {event.workflow_instance_id for event in triggered}
        for flow in self.one.started:
            assert all(
                "ScheduleTriggered" not in [e.type for e in flow.histories[run]] for run in [*flow.histories][1:]
            )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32), st.integers(10, 70))
@pytest.mark.parametrize("rolling", [False, True])
def test_a_schedule_stays_in_order(rolling: bool, seed: int, length: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        if rolling:
            patched.setattr(firing, "ROLL_OVER", 6)
        life = Life(seed)
        for _ in range(length):
            life.step()
        life.laws()
        life.finish()
        life.laws()
    assert not life.world.rows
    assert life.one.state.running == {}, "every workflow of its own has been heard of"


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(SPECS), st.sampled_from(OVERLAPS), st.integers(0, 90), st.lists(st.integers(1, 900), max_size=25)
)
def test_every_occurrence_is_fired_for_or_buffered_or_counted(
    spec: dict[str, Any], policy: Any, jitter: int, steps: list[int]
) -> None:
    life = Life(0)
    one = life.one = Scheduling(plan(**spec, overlap_policy=policy, jitter_seconds=jitter))
    fired_until, at = 0, 0
    for step in steps:
        at += step
        one.due(at)
    state = one.state
    assert state.next_fire is not None
    fired_until = state.next_fire.occurrence
    total = len(list(window(state.plan.spec, T0 + 1, fired_until, 10_000)))
    skipped = sum(event.skipped for event in life.events(ScheduleTriggerSkipped))
    assert total == len(life.events(ScheduleTriggered, ScheduleActionBuffered)) + skipped
    assert skipped == state.skipped_count
