"""The timers of a run, from events. The wake of the instance is shown beside them."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from backstay.kernel.event import Recorded
from backstay.kernel.features.timer import TimerCancelled, TimerFired, TimerScheduled
from backstay.kernel.groups import GroupEntry
from backstay.kernel.values import Micros
from backstay.kernel.views.waits import RunEnd


class TimerView(Struct, kw_only=True):
    id: str
    sequence: int  # its step
    status: str = "pending"  # pending | fired | cancelled
    source_status: str = "pending"  # what history says, which is the same
    row_status: str | None = None  # pending or fired by the wake of its instance; None: there is no wake
    timer_kind: str | None
    delay_seconds: float
    fire_at: Micros
    fired_at: Micros | None = None
    cancelled_at: Micros | None = None
    created_at: Micros
    condition_wait_id: str | None
    condition_key: str | None
    condition_definition_fingerprint: str | None
    signal_wait_id: str | None
    signal_name: str | None
    parallel_group_path: list[GroupEntry] = []

    def end(self, status: str) -> None:
        self.status = self.source_status = status


def timers(history: Iterable[Recorded], run: RunEnd, wake: Micros | None) -> list[TimerView]:
    """The timers by step. `wake` is the next wake of the instance, the only row of a timer beside history."""
    found: dict[int, TimerView] = {}
    for entry in history:
        match entry.event:
            case TimerScheduled() as event:
                found[event.sequence] = _scheduled(event, entry.at)
            case TimerFired() as event if event.sequence in found:
                found[event.sequence].end("fired")
                found[event.sequence].fired_at = event.fired_at
            case TimerCancelled() as event if event.sequence in found:
                found[event.sequence].end("cancelled")
                found[event.sequence].cancelled_at = event.cancelled_at
            case _:
                pass
    for view in found.values():
        if view.status != "pending":
            continue
        if run.is_open:
            # A wake after the timer's time means that the timer has fired, as far as the wake knows.
            view.row_status = None if wake is None else "pending" if wake <= view.fire_at else "fired"
        else:
            view.end("cancelled")
            view.cancelled_at = run.closed_at
    return sorted(found.values(), key=lambda view: view.sequence)


def _scheduled(event: TimerScheduled, at: Micros) -> TimerView:
    return TimerView(
        id=event.timer_id,
        sequence=event.sequence,
        timer_kind=event.timer_kind,
        delay_seconds=event.delay_seconds,
        fire_at=event.fire_at,
        created_at=at,
        condition_wait_id=event.condition_wait_id,
        condition_key=event.condition_key,
        condition_definition_fingerprint=event.condition_definition_fingerprint,
        signal_wait_id=event.signal_wait_id,
        signal_name=event.signal_name,
        parallel_group_path=event.parallel_group_path,
    )
