"""Schedules: requests become messages to the instances of schedules, or reads of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from backstay.engine.core.engine import Engine
from backstay.engine.core.instances import Instances
from backstay.engine.core.world import turn
from backstay.kernel.decision import RunRow
from backstay.kernel.features import schedule as kernel
from backstay.kernel.features.instance_commands import InstanceCommand
from backstay.kernel.features.schedule import Schedule, SchedulePlan, ScheduleReply, of
from backstay.kernel.features.schedule.action import workflow_id_of
from backstay.kernel.features.schedule.firing import backfill_occurrences
from backstay.kernel.features.schedule.messages import check_id, not_found
from backstay.kernel.features.schedule.records import (
    Occasion,
    ScheduleCarriedOn,
    ScheduleRolledOver,
    ScheduleStartConfirmed,
)
from backstay.kernel.values import SCHEDULES, SECOND
from backstay.protocol import schedules as ask
from backstay.store import RunFilter

EVERY = 1_000_000  # no limit
LOOK = SECOND // 50


class ScheduleApi:
    def __init__(self, engine: Engine, instances: Instances) -> None:
        self._engine = engine
        self._instances = instances
        self.table: dict[type[Any], Callable[[Any], Awaitable[Any]]] = {
            ask.CreateSchedule: self.create,
            ask.UpdateSchedule: self.update,
            ask.PauseSchedule: self.pause,
            ask.ResumeSchedule: self.resume,
            ask.TriggerSchedule: self.trigger,
            ask.BackfillSchedule: self.backfill,
            ask.DeleteSchedule: self.delete,
            ask.DescribeSchedule: self.describe,
            ask.ListSchedules: self.list,
            ask.GetScheduleHistory: self.history,
        }

    # -- commands

    async def create(self, request: ask.CreateSchedule) -> ScheduleReply:
        schedule_id = request.schedule_id
        if schedule_id is None and request.request_id:
            schedule_id = ask.id_from(request.request_id)
        elif schedule_id is None:
            schedule_id = self._engine.world.ids.ulid()
        check_id(schedule_id)
        namespace = request.namespace + SCHEDULES
        key = await self._engine.key_of(namespace, schedule_id)
        message = kernel.ScheduleCreate(
            schedule_id=schedule_id,
            plan=_at_home(request.plan, request.namespace),
            paused=request.paused,
            request_id=request.request_id,
            source=request.source,
            context=request.context or self._engine.origin,
            retained=None
            if key is None
            else await self._instances.retained(key, kernel.ScheduleCreate.command_type, request.request_id),
        )
        return await self._instances.address(namespace, schedule_id, message)

    async def update(self, request: ask.UpdateSchedule) -> ScheduleReply:
        changes = dict(request.changes)
        if isinstance(changes.get("action"), kernel.Action):
            changes["action"] = _action_at_home(changes["action"], request.namespace)
        return await self._command(request, kernel.ScheduleUpdate, changes=changes)

    async def pause(self, request: ask.PauseSchedule) -> ScheduleReply:
        return await self._command(request, kernel.SchedulePause, note=request.note)

    async def resume(self, request: ask.ResumeSchedule) -> ScheduleReply:
        return await self._command(request, kernel.ScheduleResume, note=request.note)

    async def trigger(self, request: ask.TriggerSchedule) -> ScheduleReply:
        reply = await self._command(request, kernel.ScheduleTrigger, overlap_policy=request.overlap_policy)
        return await self._arrived(request, reply)

    async def backfill(self, request: ask.BackfillSchedule) -> ScheduleReply:
        schedule = await self._committed(request.namespace, request.schedule_id)
        known: set[str] = set()
        for moment in backfill_occurrences(schedule, request.start, request.end):
            id = workflow_id_of(schedule.schedule_id, Occasion(occurrence=moment, cause="backfill"), 0)
            if await self._engine.key_of(request.namespace, id) is not None:
                known.add(id)
        reply = await self._command(
            request,
            kernel.ScheduleBackfill,
            start=request.start,
            end=request.end,
            overlap_policy=request.overlap_policy,
            known=frozenset(known),
        )
        return await self._arrived(request, reply)

    async def _arrived(self, request: ask.ToSchedule[ScheduleReply], reply: ScheduleReply) -> ScheduleReply:
        """Wait until the workflows that a reply names exist, so that its caller can use them at once."""
        engine, namespace = self._engine, request.namespace
        key = await self._key(namespace, request.schedule_id)
        for fired in reply.fired:
            if fired.workflow_id is None:
                continue
            await engine.outbox.arrival(key, namespace, fired.workflow_id)
        return reply

    async def _turn(self) -> None:
        """Let the event loop do other work: a schedule may have hundreds of events, and a page many schedules."""
        await turn(self._engine.world)

    async def delete(self, request: ask.DeleteSchedule) -> ScheduleReply:
        return await self._command(request, kernel.ScheduleDelete)

    async def _command(
        self, request: ask.ToSchedule[ScheduleReply], message: type[InstanceCommand], **more: Any
    ) -> ScheduleReply:
        key = await self._key(request.namespace, request.schedule_id)
        command = message(
            request_id=request.request_id,
            source=request.source,
            context=request.context or self._engine.origin,
            retained=await self._instances.retained(key, message.command_type, request.request_id),
            **more,
        )
        return await self._instances.submit(key, command)

    # -- reading

    async def describe(self, request: ask.DescribeSchedule) -> Schedule:
        return await self._committed(request.namespace, request.schedule_id)

    async def list(self, request: ask.ListSchedules) -> ask.SchedulePage:
        rows = await self._engine.store.runs(
            RunFilter(
                namespace=request.namespace + SCHEDULES,
                workflow_id=request.schedule_id,
                workflow_type=request.workflow_type,
                statuses=("active", "paused") if request.status is None else (request.status,),
                queue=request.queue,
                search=next(iter(request.search.items()), None),
                current=True,
                limit=EVERY,
            )
        )
        # The index is in the order of runs, not of schedules: a schedule continues in new runs.
        rows.sort(key=_place)
        after = None if request.after is None else (-request.after[0], request.after[1])
        page: list[Schedule] = []
        for row in rows:
            if after is not None and _place(row) <= after:
                continue
            if not all(_same(row.search_attributes.get(name), value) for name, value in request.search.items()):
                continue
            schedule = await self._of(row.workflow)
            await self._turn()
            if request.note is None or schedule.plan.note == request.note:
                page.append(schedule)
            if len(page) > request.limit:
                return ask.SchedulePage(schedules=page[: request.limit], more=True)
        return ask.SchedulePage(schedules=page)

    async def history(self, request: ask.GetScheduleHistory) -> ask.ScheduleHistory:
        store = self._engine.store
        namespace = request.namespace + SCHEDULES
        runs = await store.runs(RunFilter(namespace=namespace, workflow_id=request.schedule_id, limit=EVERY))
        if not runs:
            raise not_found(request.schedule_id)
        events: list[ask.ScheduleEvent] = []
        base = 0
        for run in sorted(runs, key=lambda run: run.number):
            if run.closed_at is None or base + run.length > request.after:
                for entry in await store.history(run.key, max(0, request.after - base)):
                    if isinstance(entry.event, ScheduleRolledOver | ScheduleCarriedOn | ScheduleStartConfirmed):
                        continue  # bookkeeping, not part of a schedule's own history
                    events.append(
                        ask.ScheduleEvent(
                            id=f"{run.run_id}-e{entry.sequence}", sequence=base + entry.sequence, entry=entry
                        )
                    )
                    if len(events) > request.limit:
                        return ask.ScheduleHistory(events=events[: request.limit], more=True)
            base += run.length
        return ask.ScheduleHistory(events=events)

    async def _key(self, namespace: str, schedule_id: str) -> int:
        key = await self._engine.key_of(namespace + SCHEDULES, schedule_id)
        if key is None:
            raise not_found(schedule_id)
        return key

    async def _committed(self, namespace: str, schedule_id: str) -> Schedule:
        schedule = await self._of(await self._key(namespace, schedule_id))
        if schedule.status == "deleted":
            raise not_found(schedule_id)
        return schedule

    async def _of(self, key: int) -> Schedule:
        instance = await self._instances.committed(key)
        schedule = None if instance.run is None else of(instance.run)
        if schedule is None:
            raise LookupError(f"instance {instance.workflow_id!r} is not a schedule")
        return schedule


def _place(row: RunRow) -> tuple[int, str]:
    """The sort key of a schedule in lists: newest first, then by id."""
    return -row.started_at, row.workflow_id


def _same(have: object, wanted: object) -> bool:
    """Equality in which True is not 1."""
    return have == wanted and isinstance(have, bool) == isinstance(wanted, bool)


def _at_home(plan: SchedulePlan, namespace: str) -> SchedulePlan:
    """The plan with its workflows in the namespace of the schedule."""
    return replace(plan, action=_action_at_home(plan.action, namespace))


def _action_at_home(action: kernel.Action, namespace: str) -> kernel.Action:
    # An equal string from a wire is not the default itself, so it would be written and change the fingerprint of the request.
    if action.routing.namespace == namespace:
        return action
    return replace(action, routing=replace(action.routing, namespace=namespace))
