"""A schedule in a world, and the workflows it starts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from backstay.kernel.decision import Decision
from backstay.kernel.features.close import CompleteWorkflow, FailWorkflow
from backstay.kernel.features.schedule import (
    Action,
    Interval,
    Schedule,
    ScheduleCreate,
    SchedulePlan,
    ScheduleTrigger,
    Spec,
    of,
)
from backstay.kernel.features.schedule.records import StartedAction
from backstay.kernel.values import SCHEDULES, SECOND, Micros

from ...given import MACHINE, T0, Flow
from ...world import Member, World

PLACE = f"default{SCHEDULES}"


class Scheduling:
    """The schedule `nightly`; time counts in seconds from `T0`, which is a full minute."""

    def __init__(self, plan: SchedulePlan, *, at: float = 0, paused: bool = False) -> None:
        self.world = World(MACHINE)
        self.flow = self.world.flow("nightly", PLACE)
        self.flow.when(ScheduleCreate(schedule_id="nightly", plan=plan, paused=paused), at)

    @property
    def state(self) -> Schedule:
        schedule = of(self.flow.run)
        assert schedule is not None
        return schedule

    def due(self, at: float) -> Decision:
        """The clock comes to this, and what is sent arrives."""
        decision = self.flow.due(at)
        self.world.settle()
        return decision

    def trigger(self, at: float | None = None, **options: Any) -> Any:
        reply = self.flow.when(ScheduleTrigger(**options), at).reply
        self.world.settle()
        return reply.fired[0]

    @property
    def started(self) -> list[Member]:
        """The workflows it has started, in order."""
        return [flow for id, flow in self.world.flows.items() if id != "nightly"]

    @property
    def running(self) -> list[StartedAction]:
        return list(self.state.running.values())

    def finish(self, workflow: Flow, *, fail: bool = False) -> None:
        workflow.complete(FailWorkflow(message="no") if fail else CompleteWorkflow())
        self.world.settle()

    @property
    def next_fire(self) -> float | None:
        """In seconds."""
        fire = self.state.next_fire
        return None if fire is None else (fire.at - T0) / SECOND


def plan(*, cron: str | None = None, every: str | None = None, timezone: str = "UTC", **options: Any) -> SchedulePlan:
    spec = Spec(
        cron_expressions=[] if cron is None else [cron],
        intervals=[] if every is None else [Interval(every=every)],
        timezone=timezone,
    )
    return SchedulePlan(spec=spec, action=options.pop("action", Action(workflow_type="report")), **options)


def scheduling(*, at: float = 0, paused: bool = False, **options: Any) -> Scheduling:
    return Scheduling(plan(**options), at=at, paused=paused)


def utc(text: str) -> Micros:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND
