"""Schedules: rules that start workflows at times. Async; `sync_schedules.py` is the same without `await`.

As with starts, options go before the call, because the workflow's own arguments come last and keep their types:
`client.schedules.options(cron="0 2 * * *", timezone="Europe/Berlin").create(report, "nightly", "emea")`.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar, Unpack, cast, overload

from msgspec.structs import asdict, replace

from backstay.codec.values import dumps
from backstay.kernel.features.schedule import Action, FiredOccurrence, Interval, Overlap, Schedule, SchedulePlan, Spec
from backstay.kernel.values import Micros, Routing
from backstay.protocol import schedules as ask
from backstay.sdk import errors
from backstay.sdk.author.durations import Duration, to_seconds
from backstay.sdk.author.options import check, expect
from backstay.sdk.author.workflow import EntryPoint, WorkflowFn, definition_of
from backstay.sdk.author.workflow_definition import WorkflowDefinition

if TYPE_CHECKING:
    from backstay.sdk.client.client import AsyncClient

P = ParamSpec("P")
T = TypeVar("T")
Coro = Coroutine[Any, Any, T]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ScheduleOptions(TypedDict, total=False):
    """Options of a schedule: when it fires, and with what options it starts its workflow."""

    cron: str | Sequence[str]  # five fields, or @daily and its like
    every: Duration | Sequence[Duration]  # whole seconds, counted from the epoch
    offset: Duration  # moves what `every` says
    timezone: str  # of the cron expressions
    overlap: Overlap  # what to do while an earlier workflow still runs
    jitter: Duration  # fire up to this much later; an hour at most
    max_runs: int
    note: str
    paused: bool  # create only
    queue: str
    connection: str
    priority: int
    fairness_key: str
    fairness_weight: int
    compatibility: str
    labels: Mapping[str, str]
    memo: Mapping[str, Any]
    search: Mapping[str, Any]
    timeout: Duration  # of the whole chain of runs
    run_timeout: Duration


_WHEN = ("cron", "every", "offset", "timezone")
_ROUTING = ("queue", "connection", "priority", "fairness_key", "fairness_weight", "compatibility")


class AsyncSchedules:
    """The schedules of a client's namespace."""

    def __init__(self, client: AsyncClient, options: ScheduleOptions | None = None) -> None:
        self._client = client
        self._options: ScheduleOptions = options or {}

    def options(self, **options: Unpack[ScheduleOptions]) -> AsyncSchedules:
        """Return the same schedules with these options for `create` and `ensure`."""
        check(options, ScheduleOptions)
        return AsyncSchedules(self._client, {**self._options, **options})

    @overload
    async def create(
        self, workflow: WorkflowFn[P, Any], id: str | None, /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncScheduleHandle: ...
    @overload
    async def create(
        self, workflow: type[EntryPoint[P, Any]], id: str | None, /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncScheduleHandle: ...
    async def create(self, workflow: Any, id: str | None, /, *args: Any, **kwargs: Any) -> AsyncScheduleHandle:
        """Create a schedule that starts this workflow with these arguments. None as `id` makes a new id.

        Raises `ScheduleAlreadyExists` if the id is taken.
        """
        if id is not None:
            expect("id", id)
        definition = definition_of(workflow)
        plan = _plan(self._options, definition, definition.signature.pack_fitting(args, kwargs))
        if not (self._options.get("cron") or self._options.get("every")):
            raise ValueError("a schedule needs options(cron=...) or options(every=...), which say when it fires")
        reply = await self._client.call(
            ask.CreateSchedule(
                schedule_id=id,
                namespace=self._client.namespace,
                plan=plan,
                paused=self._options.get("paused", False),
                request_id=self._client.request_id,
            )
        )
        return self.handle(reply.schedule_id)

    @overload
    async def ensure(
        self, workflow: WorkflowFn[P, Any], id: str, /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncScheduleHandle: ...
    @overload
    async def ensure(
        self, workflow: type[EntryPoint[P, Any]], id: str, /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncScheduleHandle: ...
    async def ensure(self, workflow: Any, id: str, /, *args: Any, **kwargs: Any) -> AsyncScheduleHandle:
        """Create a schedule, or change an existing one to these options, so that a program can declare it at every start.

        An existing schedule stays paused or active, and keeps its note unless one is given. Raises `TypeError`
        with `max_runs`.
        """
        if "max_runs" in self._options:
            raise TypeError("a schedule with max_runs ends, and ensure() would create it again: use create()")
        try:
            return await self.create(workflow, id, *args, **kwargs)
        except errors.ScheduleAlreadyExists:
            definition = definition_of(workflow)
            changes = asdict(_plan(self._options, definition, definition.signature.pack_fitting(args, kwargs)))
            if "note" not in self._options:
                del changes["note"]
            await self._client.call(
                ask.UpdateSchedule(schedule_id=id, namespace=self._client.namespace, changes=changes)
            )
            return self.handle(id)

    def handle(self, id: str, /) -> AsyncScheduleHandle:
        """Return the handle of a schedule by its id, wherever it was created."""
        return AsyncScheduleHandle(self._client, id)

    async def list(
        self,
        *,
        status: str | None = None,
        type: str | None = None,
        search: Mapping[str, str | float | bool] | None = None,
        after: Schedule | None = None,
        limit: int = ask.PAGE,
    ) -> list[Schedule]:
        """List schedules, newest first. For the next page pass the last one as `after`.

        Those that have reached their `max_runs` are listed with status="ended", deleted ones with status="deleted".
        """
        page = await self._client.call(
            ask.ListSchedules(
                namespace=self._client.namespace,
                status=status,
                workflow_type=type,
                search=dict(search or {}),
                after=None if after is None else (after.created_at, after.schedule_id),
                limit=limit,
            )
        )
        return page.schedules


class AsyncScheduleHandle:
    """One schedule by its id: describe, change, pause, resume, trigger, backfill or delete it.

    Methods raise `ScheduleNotFound` if the schedule does not exist.
    """

    id: str
    """The schedule id."""

    def __init__(self, client: AsyncClient, id: str) -> None:
        expect("id", id)
        self._client = client
        self.id = id

    async def describe(self) -> Schedule:
        """Return the schedule as it is now. Times are microseconds since the epoch."""
        return await self._client.call(ask.DescribeSchedule(schedule_id=self.id, namespace=self._client.namespace))

    async def update(self, **options: Unpack[ScheduleOptions]) -> None:
        """Change these options of the schedule; the others stay."""
        check(options, ScheduleOptions)
        if "paused" in options:
            raise TypeError("an update cannot pause a schedule: use pause() and resume()")
        await self._client.call(
            ask.UpdateSchedule(**self._to(), changes=_changes((await self.describe()).plan, options))
        )

    @overload
    async def change_workflow(self, workflow: WorkflowFn[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None: ...
    @overload
    async def change_workflow(
        self, workflow: type[EntryPoint[P, Any]], /, *args: P.args, **kwargs: P.kwargs
    ) -> None: ...
    async def change_workflow(self, workflow: Any, /, *args: Any, **kwargs: Any) -> None:
        """Change the workflow and the arguments that the schedule starts from its next occurrence on."""
        definition = definition_of(workflow)
        action = (await self.describe()).plan.action
        routing = action.routing if definition.queue is None else replace(action.routing, queue=definition.queue)
        changed = replace(
            action,
            workflow_type=definition.type,
            arguments=definition.signature.pack_fitting(args, kwargs),
            routing=routing,
        )
        await self._client.call(ask.UpdateSchedule(**self._to(), changes={"action": changed}))

    async def pause(self, note: str | None = None) -> None:
        """Pause the schedule until it is resumed. Workflows that it started go on."""
        expect("note", note)
        await self._client.call(ask.PauseSchedule(**self._to(), note=note))

    async def resume(self, note: str | None = None) -> None:
        """Resume a paused schedule. Occurrences that it missed meanwhile are not made up for."""
        expect("note", note)
        await self._client.call(ask.ResumeSchedule(**self._to(), note=note))

    async def trigger(self, *, overlap: Overlap | None = None) -> FiredOccurrence:
        """Fire once, now, and return the result. `overlap` says what to do if an earlier workflow still runs."""
        reply = await self._client.call(ask.TriggerSchedule(**self._to(), overlap_policy=overlap))
        return reply.fired[0]

    async def backfill(
        self, start: datetime, end: datetime, *, overlap: Overlap | None = None
    ) -> list[FiredOccurrence]:
        """Fire for every occurrence from `start` on and before `end`; occurrences backfilled earlier are left out.

        Raises `ValueError` for a time without a time zone.
        """
        reply = await self._client.call(
            ask.BackfillSchedule(**self._to(), start=_moment(start), end=_moment(end), overlap_policy=overlap)
        )
        return reply.fired

    async def history(self, *, after: int = 0, limit: int = ask.HISTORY_PAGE) -> list[ask.ScheduleEvent]:
        """Return the events of the schedule after the number `after`, oldest first, also after it was deleted."""
        found = await self._client.call(
            ask.GetScheduleHistory(schedule_id=self.id, namespace=self._client.namespace, after=after, limit=limit)
        )
        return found.events

    async def delete(self) -> None:
        """Delete the schedule. Workflows that it started go on."""
        await self._client.call(ask.DeleteSchedule(**self._to()))

    def _to(self) -> dict[str, Any]:
        return {
            "schedule_id": self.id,
            "namespace": self._client.namespace,
            "request_id": self._client.request_id,
        }

    def __repr__(self) -> str:
        return f"<schedule {self.id!r}>"


# -- options as fields of the kernel's plan


def _plan(o: ScheduleOptions, definition: WorkflowDefinition, arguments: bytes) -> SchedulePlan:
    start = SchedulePlan(
        spec=Spec(),
        action=Action(
            workflow_type=definition.type, arguments=arguments, routing=Routing(queue=definition.queue or "default")
        ),
    )
    return replace(start, **_changes(start, o))


def _changes(plan: SchedulePlan, o: ScheduleOptions) -> dict[str, Any]:
    """Return the fields of the plan that these options change."""
    changes: dict[str, Any] = {}
    if any(name in o for name in _WHEN):
        changes["spec"] = _spec(plan.spec, o)
    action = _action(plan.action, o)
    if action != plan.action:
        changes["action"] = action
    for option, field in (("overlap", "overlap_policy"), ("max_runs", "max_runs"), ("note", "note")):
        if option in o:
            changes[field] = o[option]
    if "jitter" in o:
        changes["jitter_seconds"] = _whole_seconds(o["jitter"], "jitter")
    if "labels" in o:
        changes["visibility_labels"] = dict(o["labels"])
    if "memo" in o:
        changes["memo"] = {key: dumps(value) for key, value in o["memo"].items()}
    if "search" in o:
        changes["search_attributes"] = dict(o["search"])
    return changes


def spec_of(options: ScheduleOptions) -> Spec:
    """When a schedule with these options fires."""
    return _spec(Spec(), options)


def _spec(spec: Spec, o: ScheduleOptions) -> Spec:
    if "cron" in o:
        cron = o["cron"]
        spec = replace(spec, cron_expressions=[cron] if isinstance(cron, str) else list(cron))
        if "every" not in o:
            spec = replace(spec, intervals=[])
    if "every" in o:
        every = o["every"]
        lengths = [every] if isinstance(every, int | float | str | timedelta) else list(every)
        offset = _iso(o["offset"], "offset") if "offset" in o else None
        spec = replace(spec, intervals=[Interval(every=_iso(one, "every"), offset=offset) for one in lengths])
        if "cron" not in o:
            spec = replace(spec, cron_expressions=[])
    elif "offset" in o:
        raise TypeError("an offset shifts an interval: give `every` too")
    return replace(spec, timezone=o["timezone"]) if "timezone" in o else spec


def _action(action: Action, o: ScheduleOptions) -> Action:
    routing = {name: cast(Mapping[str, Any], o)[name] for name in _ROUTING if name in o}
    if routing:
        routing["queue"] = routing.get("queue", action.routing.queue) or "default"
        action = replace(action, routing=replace(action.routing, **routing))
    if "timeout" in o:
        action = replace(action, execution_timeout_seconds=to_seconds(o["timeout"]))
    if "run_timeout" in o:
        action = replace(action, run_timeout_seconds=to_seconds(o["run_timeout"]))
    return action


def _whole_seconds(duration: Duration, what: str) -> int:
    seconds = to_seconds(duration)
    if seconds != int(seconds):
        raise ValueError(f"{what} is given in whole seconds, not {duration!r}")
    return int(seconds)


def _iso(duration: Duration, what: str) -> str:
    return f"PT{_whole_seconds(duration, what)}S"


def _moment(at: datetime) -> Micros:
    if at.tzinfo is None:
        raise ValueError(f"{at!r} has no time zone; give it one, for example tzinfo=UTC")
    return (at - _EPOCH) // timedelta(microseconds=1)
