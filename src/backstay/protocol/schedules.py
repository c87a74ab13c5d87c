"""Requests to schedules. Each is answered when it is on disk; workflows that it starts follow."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, TypeVar, get_type_hints

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from backstay.kernel.event import Recorded
from backstay.kernel.features.schedule import Overlap, Schedule, SchedulePlan, ScheduleReply
from backstay.kernel.names import Name
from backstay.kernel.values import Micros
from backstay.protocol.requests import Request

R = TypeVar("R")

PAGE = 50
PAGE_MAX = 200
HISTORY_PAGE = 100
HISTORY_PAGE_MAX = 500


def id_from(request_id: str) -> str:
    """The id of a schedule that was created without one: the same if the request is repeated, so that its record is
    found."""
    return blake2b(request_id.encode(), digest_size=16).hexdigest()


class ToSchedule(Request[R], frozen=True, kw_only=True):
    schedule_id: str
    namespace: str = "default"
    request_id: Name | None = None
    source: str = "python"
    context: dict[str, Any] = {}


class CreateSchedule(Request[ScheduleReply], frozen=True, kw_only=True):
    """Without an id one is made."""

    plan: SchedulePlan
    schedule_id: str | None = None
    namespace: str = "default"
    paused: bool = False
    request_id: Name | None = None
    source: str = "python"
    context: dict[str, Any] = {}


class UpdateSchedule(ToSchedule[ScheduleReply], frozen=True, kw_only=True):
    """`changes`: fields of the plan by name."""

    changes: dict[str, Any]

    def typed(self) -> UpdateSchedule:
        """The request with changes from JSON converted to the types of a plan. Unknown names are left as they are."""
        hints = get_type_hints(SchedulePlan)
        changes = {
            name: msgspec.convert(value, hints[name]) if name in hints else value
            for name, value in self.changes.items()
        }
        return replace(self, changes=changes)


class PauseSchedule(ToSchedule[ScheduleReply], frozen=True, kw_only=True):
    note: str | None = None


class ResumeSchedule(ToSchedule[ScheduleReply], frozen=True, kw_only=True):
    note: str | None = None


class TriggerSchedule(ToSchedule[ScheduleReply], frozen=True, kw_only=True):
    overlap_policy: Overlap | None = None


class BackfillSchedule(ToSchedule[ScheduleReply], frozen=True, kw_only=True):
    """Every occurrence from `start` on and before `end`."""

    start: Micros
    end: Micros
    overlap_policy: Overlap | None = None


class DeleteSchedule(ToSchedule[ScheduleReply], frozen=True, kw_only=True):
    pass


class DescribeSchedule(Request[Schedule], frozen=True, kw_only=True):
    """A schedule that was deleted is not found."""

    schedule_id: str
    namespace: str = "default"


class SchedulePage(Struct, frozen=True, kw_only=True):
    schedules: list[Schedule]
    more: bool = False


class ListSchedules(Request[SchedulePage], frozen=True, kw_only=True):
    """Newest first, those of the same moment by id. Deleted ones only if the filter names that status.

    `after`: (created at, id) of the last one of the page before.
    """

    namespace: str = "default"
    status: str | None = None
    workflow_type: str | None = None
    queue: str | None = None
    schedule_id: str | None = None
    note: str | None = None
    search: dict[str, str | float | bool] = {}
    after: tuple[Micros, str] | None = None
    limit: int = PAGE


class ScheduleEvent(Struct, frozen=True, kw_only=True):
    """`sequence` counts through all histories of a schedule; the record has its place in one of them."""

    id: str
    sequence: int
    entry: Recorded


class ScheduleHistory(Struct, frozen=True, kw_only=True):
    events: list[ScheduleEvent]
    more: bool = False


class GetScheduleHistory(Request[ScheduleHistory], frozen=True, kw_only=True):
    """The history of a schedule, also of a deleted one."""

    schedule_id: str
    namespace: str = "default"
    after: int = 0
    limit: int = HISTORY_PAGE
