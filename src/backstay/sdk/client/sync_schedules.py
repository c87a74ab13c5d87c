"""Schedules without `await`, over the same bridge as the client.

Made by `tools/sync_client.py` from the async classes: change those, then run it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ParamSpec, Unpack, overload

from backstay.kernel.features.schedule import FiredOccurrence, Overlap, Schedule
from backstay.protocol import schedules as ask
from backstay.sdk.author.workflow import EntryPoint, WorkflowFn
from backstay.sdk.client.bridge import Bridge
from backstay.sdk.client.schedules import AsyncScheduleHandle, AsyncSchedules, ScheduleOptions

P = ParamSpec("P")


class Schedules:
    """The schedules of a client's namespace."""

    def __init__(self, bridge: Bridge, schedules: AsyncSchedules) -> None:
        self._bridge = bridge
        self._schedules = schedules

    def options(self, **options: Unpack[ScheduleOptions]) -> Schedules:
        """Return the same schedules with these options for `create` and `ensure`."""
        return Schedules(self._bridge, self._schedules.options(**options))

    @overload
    def create(
        self, workflow: WorkflowFn[P, Any], id: str | None, /, *args: P.args, **kwargs: P.kwargs
    ) -> ScheduleHandle: ...
    @overload
    def create(
        self, workflow: type[EntryPoint[P, Any]], id: str | None, /, *args: P.args, **kwargs: P.kwargs
    ) -> ScheduleHandle: ...
    def create(self, workflow: Any, id: str | None, /, *args: Any, **kwargs: Any) -> ScheduleHandle:
        """Create a schedule that starts this workflow with these arguments. None as `id` makes a new id.

        Raises `ScheduleAlreadyExists` if the id is taken.
        """
        return ScheduleHandle(self._bridge, self._bridge.run(self._schedules.create(workflow, id, *args, **kwargs)))

    @overload
    def ensure(self, workflow: WorkflowFn[P, Any], id: str, /, *args: P.args, **kwargs: P.kwargs) -> ScheduleHandle: ...
    @overload
    def ensure(
        self, workflow: type[EntryPoint[P, Any]], id: str, /, *args: P.args, **kwargs: P.kwargs
    ) -> ScheduleHandle: ...
    def ensure(self, workflow: Any, id: str, /, *args: Any, **kwargs: Any) -> ScheduleHandle:
        """Create a schedule, or change an existing one to these options, so that a program can declare it at every start.

        An existing schedule stays paused or active, and keeps its note unless one is given. Raises `TypeError`
        with `max_runs`.
        """
        return ScheduleHandle(self._bridge, self._bridge.run(self._schedules.ensure(workflow, id, *args, **kwargs)))

    def handle(self, id: str, /) -> ScheduleHandle:
        """Return the handle of a schedule by its id, wherever it was created."""
        return ScheduleHandle(self._bridge, self._schedules.handle(id))

    def list(
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
        return self._bridge.run(self._schedules.list(status=status, type=type, search=search, after=after, limit=limit))


class ScheduleHandle:
    """One schedule by its id: describe, change, pause, resume, trigger, backfill or delete it.

    Methods raise `ScheduleNotFound` if the schedule does not exist.
    """

    def __init__(self, bridge: Bridge, handle: AsyncScheduleHandle) -> None:
        self._bridge = bridge
        self._handle = handle

    @property
    def id(self) -> str:
        """The schedule id."""
        return self._handle.id

    def describe(self) -> Schedule:
        """Return the schedule as it is now. Times are microseconds since the epoch."""
        return self._bridge.run(self._handle.describe())

    def update(self, **options: Unpack[ScheduleOptions]) -> None:
        """Change these options of the schedule; the others stay."""
        self._bridge.run(self._handle.update(**options))

    @overload
    def change_workflow(self, workflow: WorkflowFn[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None: ...
    @overload
    def change_workflow(self, workflow: type[EntryPoint[P, Any]], /, *args: P.args, **kwargs: P.kwargs) -> None: ...
    def change_workflow(self, workflow: Any, /, *args: Any, **kwargs: Any) -> None:
        """Change the workflow and the arguments that the schedule starts from its next occurrence on."""
        self._bridge.run(self._handle.change_workflow(workflow, *args, **kwargs))

    def pause(self, note: str | None = None) -> None:
        """Pause the schedule until it is resumed. Workflows that it started go on."""
        self._bridge.run(self._handle.pause(note))

    def resume(self, note: str | None = None) -> None:
        """Resume a paused schedule. Occurrences that it missed meanwhile are not made up for."""
        self._bridge.run(self._handle.resume(note))

    def trigger(self, *, overlap: Overlap | None = None) -> FiredOccurrence:
        """Fire once, now, and return the result. `overlap` says what to do if an earlier workflow still runs."""
        return self._bridge.run(self._handle.trigger(overlap=overlap))

    def backfill(self, start: datetime, end: datetime, *, overlap: Overlap | None = None) -> list[FiredOccurrence]:
        """Fire for every occurrence from `start` on and before `end`; occurrences backfilled earlier are left out.

        Raises `ValueError` for a time without a time zone.
        """
        return self._bridge.run(self._handle.backfill(start, end, overlap=overlap))

    def history(self, *, after: int = 0, limit: int = ask.HISTORY_PAGE) -> list[ask.ScheduleEvent]:
        """Return the events of the schedule after the number `after`, oldest first, also after it was deleted."""
        return self._bridge.run(self._handle.history(after=after, limit=limit))

    def delete(self) -> None:
        """Delete the schedule. Workflows that it started go on."""
        self._bridge.run(self._handle.delete())

    def __repr__(self) -> str:
        return repr(self._handle)
