"""Workflow-task commands as workers send them, and the kernel's commands they become.

The tag is the wire's `type`. A struct here says which fields a command takes and of which shape; what only the state of a
run can tell is checked by the kernel, before any command of the completion is applied.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast, get_args

from msgspec import Meta, Struct

from holdfast.codec import avro
from holdfast.codec.errors import PayloadError
from holdfast.codec.values import dumps
from holdfast.kernel.command import Command
from holdfast.kernel.failure import Diagnostics, Failure
from holdfast.kernel.features.activity import CancelActivity, RetryPolicy, ScheduleActivity
from holdfast.kernel.features.cancel import CancelWorkflow
from holdfast.kernel.features.close import CompleteWorkflow, FailWorkflow
from holdfast.kernel.features.condition import OpenConditionWait, SatisfyConditionWait, TimeOutConditionWait
from holdfast.kernel.features.continue_as_new import ContinueAsNew
from holdfast.kernel.features.local_activity import LocalAttempt, RecordLocalActivity
from holdfast.kernel.features.memo import UpsertMemo
from holdfast.kernel.features.search import UpsertSearchAttributes
from holdfast.kernel.features.side_effect import RecordSideEffect
from holdfast.kernel.features.signal import ApplySignal, OpenSignalWait
from holdfast.kernel.features.timer import CancelTimer, StartTimer
from holdfast.kernel.features.update import CompleteUpdate, FailUpdate
from holdfast.kernel.features.version import RecordVersionMarker
from holdfast.kernel.message import Refused
from holdfast.kernel.values import CODEC
from holdfast.protocol.payloads import arguments, bare_blob, is_envelope, payload

Name = Annotated[str, Meta(min_length=1, max_length=255)]
Text = Annotated[str, Meta(max_length=1 << 20)]
Seconds = Annotated[float, Meta(ge=0)]


class Wire(Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of all commands on the wire."""


class WireStep(Wire, frozen=True, kw_only=True):
    """A durable call. A member of a parallel group says its step by its place in the group."""

    sequence: Annotated[int, Meta(ge=1)] | None = None
    parallel_group_base_sequence: Annotated[int, Meta(ge=1)] | None = None
    parallel_group_index: Annotated[int, Meta(ge=0)] | None = None

    @property
    def step(self) -> int | None:
        if self.sequence is not None or self.parallel_group_base_sequence is None:
            return self.sequence
        return self.parallel_group_base_sequence + (self.parallel_group_index or 0)


class WireRetry(Struct, frozen=True, kw_only=True):
    max_attempts: Annotated[int, Meta(ge=1)] | None = 1
    backoff_seconds: Annotated[list[Seconds], Meta(max_length=1000)] = []
    non_retryable_error_types: list[Name] = []


class _Timeouts(WireStep, frozen=True, kw_only=True):
    retry_policy: WireRetry | None = None
    start_to_close_timeout: Seconds | None = None
    schedule_to_start_timeout: Seconds | None = None
    schedule_to_close_timeout: Seconds | None = None
    heartbeat_timeout: Seconds | None = None

    def policy(self) -> RetryPolicy:
        retry = self.retry_policy or WireRetry()
        return RetryPolicy(
            max_attempts=retry.max_attempts,
            backoff_seconds=retry.backoff_seconds,
            non_retryable_error_types=list(retry.non_retryable_error_types),
            start_to_close_timeout=self.start_to_close_timeout,
            schedule_to_start_timeout=self.schedule_to_start_timeout,
            schedule_to_close_timeout=self.schedule_to_close_timeout,
            heartbeat_timeout=self.heartbeat_timeout,
        )


class WireFailure(Struct, frozen=True, kw_only=True, rename={"class_": "class"}):
    """A failure as workers report it. Classes and traces are for people only."""

    message: Text
    type: str | None = None
    class_: str | None = None
    code: int | str | None = None
    stack_trace: Text | None = None
    non_retryable: bool = False
    retryable: bool | None = None
    details: Any = None
    exception_type: str | None = None
    exception_class: str | None = None

    def failure(self, field: str) -> Failure:
        details = payload(self.details, f"{field}.details")
        return Failure(
            message=self.message,
            exception_type=self.type or self.exception_type,
            exception_class=self.class_ or self.exception_class,
            code=self.code,
            non_retryable=self.non_retryable or self.retryable is False,
            details=details,
            details_payload_codec=None if details is None else CODEC,
            diagnostics=None if self.stack_trace is None else Diagnostics(trace=self.stack_trace.splitlines()),
        )


class WireScheduleActivity(_Timeouts, frozen=True, kw_only=True, tag="schedule_activity"):
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
        )


class WireStartTimer(WireStep, frozen=True, kw_only=True, tag="start_timer"):
    delay_seconds: Seconds

    def command(self, at: str) -> Command:
        return StartTimer(sequence=self.step, delay_seconds=self.delay_seconds)


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

    def command(self, at: str) -> Command:
        blob = bare_blob(self.result, f"{at}.result")
        return RecordSideEffect(sequence=self.step, result=dumps(None) if blob is None else blob)


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


class WireLocalActivity(_Timeouts, frozen=True, kw_only=True, tag="record_local_activity"):
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
        )


class WireException(WireFailure, frozen=True, kw_only=True, rename={"class_": "class"}):
    """The `exception` object of a failure."""

    message: Text = ""


class WireConditionWait(WireStep, frozen=True, kw_only=True, tag="open_condition_wait"):
    condition_key: str | None = None
    condition_definition_fingerprint: str | None = None
    timeout_seconds: Seconds | None = None
    satisfied: bool = False

    def command(self, at: str) -> Command:
        return OpenConditionWait(
            sequence=self.step,
            condition_key=self.condition_key,
            condition_definition_fingerprint=self.condition_definition_fingerprint,
            timeout_seconds=self.timeout_seconds,
            satisfied=self.satisfied,
        )


class WireSatisfied(Wire, frozen=True, kw_only=True, tag="satisfy_condition_wait"):
    step: int

    def command(self, at: str) -> Command:
        return SatisfyConditionWait(step=self.step)


class WireTimedOut(Wire, frozen=True, kw_only=True, tag="time_out_condition_wait"):
    step: int

    def command(self, at: str) -> Command:
        return TimeOutConditionWait(step=self.step)


class WireSignalWait(WireStep, frozen=True, kw_only=True, tag="open_signal_wait"):
    signal_name: Name
    timeout_seconds: Seconds | None = None

    def command(self, at: str) -> Command:
        return OpenSignalWait(sequence=self.step, signal_name=self.signal_name, timeout_seconds=self.timeout_seconds)


class WireApplySignal(Wire, frozen=True, kw_only=True, tag="apply_signal"):
    step: int
    signal_id: Name
    value: Any = None

    def command(self, at: str) -> Command:
        return ApplySignal(step=self.step, signal_id=self.signal_id, value=bare_blob(self.value, f"{at}.value"))


class WireCompleteUpdate(Wire, frozen=True, kw_only=True, tag="complete_update"):
    update_id: Name
    result: Any = None

    def command(self, at: str) -> Command:
        return CompleteUpdate(update_id=self.update_id, result=payload(self.result, f"{at}.result"))


class WireFailUpdate(Wire, frozen=True, kw_only=True, tag="fail_update"):
    update_id: Name
    message: Text
    exception_type: str | None = None
    exception_class: str | None = None
    exception: WireException | None = None
    non_retryable: bool = False

    def command(self, at: str) -> Command:
        return FailUpdate(
            update_id=self.update_id,
            message=self.message,
            exception_type=self.exception_type,
            exception_class=self.exception_class,
            exception=None if self.exception is None else self.exception.failure(f"{at}.exception"),
            non_retryable=self.non_retryable,
        )


class WireCancel(Wire, frozen=True, kw_only=True, tag="cancel_workflow"):
    """The code has dealt with a request to cancel, and ends."""

    def command(self, at: str) -> Command:
        return CancelWorkflow()


class WireComplete(Wire, frozen=True, kw_only=True, tag="complete_workflow"):
    result: Any = None

    def command(self, at: str) -> Command:
        return CompleteWorkflow(result=payload(self.result, f"{at}.result"))


class WireFail(Wire, frozen=True, kw_only=True, tag="fail_workflow"):
    message: Text
    exception_type: str | None = None
    exception_class: str | None = None
    exception: WireException | None = None
    non_retryable: bool = False

    def command(self, at: str) -> Command:
        return FailWorkflow(
            message=self.message,
            exception_type=self.exception_type,
            exception_class=self.exception_class,
            exception=None if self.exception is None else self.exception.failure(f"{at}.exception"),
            non_retryable=self.non_retryable,
        )


class WireContinue(Wire, frozen=True, kw_only=True, tag="continue_as_new"):
    arguments: Any = None
    workflow_type: Name | None = None
    queue: Name | None = None
    task_queue: Name | None = None

    def command(self, at: str) -> Command:
        return ContinueAsNew(
            arguments=arguments(self.arguments, f"{at}.arguments"),
            workflow_type=self.workflow_type,
            queue=self.queue or self.task_queue,
        )


def memo(entries: Any, field: str) -> dict[str, bytes | None]:
    """Memo entries: a map, or the envelope of one. None removes a key."""
    if is_envelope(entries):
        blob = payload(entries, field)
        try:
            entries = {} if blob is None else avro.decode(blob)
        except PayloadError as error:
            raise Refused(error.reason, f"{field}: {error.problem}", field=field) from None
    if not isinstance(entries, dict):
        raise Refused("invalid_memo", f"{field} must be a map", field=field)
    given = cast(dict[str, Any], entries)
    return {key: payload(value, f"{field}.{key}") for key, value in given.items()}


WireCommand = (
    WireScheduleActivity
    | WireStartTimer
    | WireSideEffect
    | WireVersionMarker
    | WireSearchAttributes
    | WireMemo
    | WireLocalActivity
    | WireConditionWait
    | WireSignalWait
    | WireCompleteUpdate
    | WireFailUpdate
    | WireSatisfied
    | WireTimedOut
    | WireApplySignal
    | WireCancelTimer
    | WireCancelActivity
    | WireComplete
    | WireFail
    | WireContinue
    | WireCancel
)
COMMAND_TYPES: tuple[str, ...] = tuple(str(kind.__struct_config__.tag) for kind in get_args(WireCommand))
TERMINAL_TYPES = ("complete_workflow", "fail_workflow", "continue_as_new", "cancel_workflow")
