"""Durable calls as workers send them: activities, timers, and the steps that do not suspend."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from backstay.codec.values import dumps
from backstay.kernel.call_options import ActivityCallOptions, CallOptions, options_of
from backstay.kernel.command import Command
from backstay.kernel.failure import Failure
from backstay.kernel.features.activity import CancelActivity, ScheduleActivity
from backstay.kernel.features.local_activity import LocalAttempt, RecordLocalActivity
from backstay.kernel.features.memo import UpsertMemo
from backstay.kernel.features.search import UpsertSearchAttributes
from backstay.kernel.features.side_effect import RecordSideEffect
from backstay.kernel.features.timer import CancelTimer, StartTimer
from backstay.kernel.features.version import RecordVersionMarker
from backstay.kernel.names import Name
from backstay.protocol.payloads import bare_blob, payload
from backstay.protocol.task_commands.base import Seconds, Text, Wire, WireMember, WireStep, WireTimeouts, memo
from backstay.protocol.task_commands.streams import WireStream


class WireScheduleActivity(WireTimeouts, ActivityCallOptions, frozen=True, kw_only=True, tag="schedule_activity"):
    activity_type: Name
    arguments: Any = None
    input: Any = None
    activity_class: str | None = None
    queue: Name | None = None
    task_queue: Name | None = None
    connection: Name | None = None

    def command(self, at: str) -> Command:
        given = self.arguments if self.arguments is not None else self.input
        return ScheduleActivity(
            sequence=self.step,
            activity_type=self.activity_type,
            activity_class=self.activity_class,
            arguments=payload(given, f"{at}.arguments"),
            queue=self.queue or self.task_queue,
            connection=self.connection,
            retry_policy=self.policy(),
            parallel_group_path=self.parallel_group_path,
            **options_of(ActivityCallOptions, self),
        )


class WireStartTimer(WireMember, frozen=True, kw_only=True, tag="start_timer"):
    delay_seconds: Seconds

    def command(self, at: str) -> Command:
        return StartTimer(
            sequence=self.step, delay_seconds=self.delay_seconds, parallel_group_path=self.parallel_group_path
        )


class WireCancelTimer(Wire, frozen=True, kw_only=True, tag="cancel_timer"):
    step: int

    def command(self, at: str) -> Command:
        return CancelTimer(step=self.step)


class WireCancelActivity(Wire, frozen=True, kw_only=True, tag="cancel_activity"):
    step: int

    def command(self, at: str) -> Command:
        return CancelActivity(step=self.step)


class WireSideEffect(WireStep, frozen=True, kw_only=True, tag="record_side_effect"):
    result: Any
    workflow_stream: WireStream | None = None

    def command(self, at: str) -> Command:
        blob = bare_blob(self.result, f"{at}.result")
        result = dumps(None) if blob is None else blob
        if self.workflow_stream is not None:
            return self.workflow_stream.command(f"{at}.workflow_stream", self.step, result)
        return RecordSideEffect(sequence=self.step, result=result)


class WireVersionMarker(WireStep, frozen=True, kw_only=True, tag="record_version_marker"):
    change_id: Name
    version: int
    min_supported: int
    max_supported: int

    def command(self, at: str) -> Command:
        return RecordVersionMarker(
            sequence=self.step,
            change_id=self.change_id,
            version=self.version,
            min_supported=self.min_supported,
            max_supported=self.max_supported,
        )


class WireSearchAttributes(WireStep, frozen=True, kw_only=True, tag="upsert_search_attributes"):
    attributes: dict[str, Any]

    def command(self, at: str) -> Command:
        return UpsertSearchAttributes(sequence=self.step, attributes=self.attributes)


class WireMemo(WireStep, frozen=True, kw_only=True, tag="upsert_memo"):
    entries: Any

    def command(self, at: str) -> Command:
        return UpsertMemo(sequence=self.step, entries=memo(self.entries, f"{at}.entries"))


class WireLocalAttempt(Struct, frozen=True, kw_only=True):
    outcome: str | None = None
    message: Text | None = None
    exception_type: str | None = None
    exception_class: str | None = None
    non_retryable: bool = False
    timeout_kind: str | None = None
    backoff_seconds: Seconds | None = None

    def attempt(self, last: WireLocalActivity | None) -> LocalAttempt:
        message = self.message if last is None or last.message is None else last.message
        failed = message is not None or self.exception_type is not None
        return LocalAttempt(
            failure=Failure(
                message=message or "",
                exception_type=self.exception_type if last is None else last.exception_type or self.exception_type,
                exception_class=self.exception_class,
                non_retryable=self.non_retryable or (last is not None and last.non_retryable),
            )
            if failed
            else None,
            timeout_kind=self.timeout_kind if last is None else last.timeout_kind or self.timeout_kind,
            backoff_seconds=self.backoff_seconds or 0,
        )


class WireLocalActivity(WireTimeouts, CallOptions, frozen=True, kw_only=True, tag="record_local_activity"):
    activity_type: Name
    outcome: Literal["completed", "failed", "timed_out", "cancelled"]
    attempts: Annotated[list[WireLocalAttempt], Meta(min_length=1, max_length=10_000)]
    arguments: Any = None
    result: Any = None
    message: Text | None = None
    exception_type: str | None = None
    non_retryable: bool = False
    timeout_kind: str | None = None

    def command(self, at: str) -> Command:
        *before, last = self.attempts
        return RecordLocalActivity(
            sequence=self.step,
            activity_type=self.activity_type,
            outcome=self.outcome,
            attempts=[*(attempt.attempt(None) for attempt in before), last.attempt(self)],
            arguments=payload(self.arguments, f"{at}.arguments"),
            result=bare_blob(self.result, f"{at}.result"),
            retry_policy=self.policy(),
            **options_of(CallOptions, self),
        )
