"""Common parts of commands on the wire: steps and their groups, retry policies, failures, memos."""

from __future__ import annotations

from typing import Annotated, Any, cast

from msgspec import Meta, Struct

from backstay.codec import avro
from backstay.codec.errors import PayloadError
from backstay.kernel.failure import Diagnostics, Failure
from backstay.kernel.groups import GroupEntry
from backstay.kernel.message import Refused
from backstay.kernel.names import Name
from backstay.kernel.retry import CRASHES, FOREVER, RetryPolicy
from backstay.kernel.values import CODEC
from backstay.protocol.payloads import is_envelope, payload

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


class WireMember(WireStep, frozen=True, kw_only=True):
    """A durable call that may be waited for together with others."""

    parallel_group_path: Annotated[list[GroupEntry], Meta(max_length=64)] = []


class WireRetry(Struct, frozen=True, kw_only=True):
    max_attempts: Annotated[int, Meta(ge=1)] | None = 1
    backoff_seconds: Annotated[list[Seconds], Meta(max_length=1000)] = []
    non_retryable_error_types: list[Name] = []
    max_crashes: Annotated[int, Meta(ge=0, le=FOREVER)] = CRASHES

    def policy(
        self,
        start_to_close: float | None,
        schedule_to_start: float | None,
        schedule_to_close: float | None,
        heartbeat: float | None,
    ) -> RetryPolicy:
        """The retry policy with the timeouts, which are separate fields on the wire."""
        return RetryPolicy(
            max_attempts=self.max_attempts,
            backoff_seconds=self.backoff_seconds,
            non_retryable_error_types=list(self.non_retryable_error_types),
            start_to_close_timeout=start_to_close,
            schedule_to_start_timeout=schedule_to_start,
            schedule_to_close_timeout=schedule_to_close,
            heartbeat_timeout=heartbeat,
            max_crashes=self.max_crashes,
        )


class WireTimeouts(WireMember, frozen=True, kw_only=True):
    retry_policy: WireRetry | None = None
    start_to_close_timeout: Seconds | None = None
    schedule_to_start_timeout: Seconds | None = None
    schedule_to_close_timeout: Seconds | None = None
    heartbeat_timeout: Seconds | None = None

    def policy(self) -> RetryPolicy:
        return (self.retry_policy or WireRetry()).policy(
            self.start_to_close_timeout,
            self.schedule_to_start_timeout,
            self.schedule_to_close_timeout,
            self.heartbeat_timeout,
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


class WireException(WireFailure, frozen=True, kw_only=True, rename={"class_": "class"}):
    """The `exception` object of a failure."""

    message: Text = ""


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
