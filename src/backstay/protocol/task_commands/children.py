"""Children as workers send them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from backstay.kernel.call_options import ChildCallOptions, options_of
from backstay.kernel.command import Command
from backstay.kernel.features.child import CancelChild, SignalChild, SignalChildFromUpdate, StartChildWorkflow
from backstay.kernel.names import Name
from backstay.kernel.retry import RetryPolicy
from backstay.protocol.payloads import arguments
from backstay.protocol.task_commands.base import Wire, WireMember, WireRetry, WireStep

Timeout = Annotated[float, Meta(gt=0)]


class WireStartChild(WireMember, ChildCallOptions, frozen=True, kw_only=True, tag="start_child_workflow"):
    workflow_type: Name
    arguments: Any = None
    input: Any = None
    queue: Name | None = None
    task_queue: Name | None = None
    connection: Name | None = None
    parent_close_policy: Literal["abandon", "request_cancel", "terminate"] = "abandon"
    retry_policy: WireRetry | None = None
    execution_timeout_seconds: Timeout | None = None
    run_timeout_seconds: Timeout | None = None

    def command(self, at: str) -> Command:
        retry = self.retry_policy
        return StartChildWorkflow(
            sequence=self.step,
            workflow_type=self.workflow_type,
            arguments=arguments(self.arguments if self.arguments is not None else self.input, f"{at}.arguments"),
            queue=self.queue or self.task_queue,
            connection=self.connection,
            retry_policy=None
            if retry is None
            else RetryPolicy(
                max_attempts=retry.max_attempts,
                backoff_seconds=retry.backoff_seconds,
                non_retryable_error_types=list(retry.non_retryable_error_types),
            ),
            execution_timeout_seconds=self.execution_timeout_seconds,
            run_timeout_seconds=self.run_timeout_seconds,
            parallel_group_path=self.parallel_group_path,
            **options_of(ChildCallOptions, self),
        )


class WireCancelChild(Wire, frozen=True, kw_only=True, tag="cancel_child"):
    step: int

    def command(self, at: str) -> Command:
        return CancelChild(step=self.step)


class WireSignalChild(WireStep, frozen=True, kw_only=True, tag="signal_child"):
    child_call_id: Name
    signal_name: Name
    arguments: Any = None

    def command(self, at: str) -> Command:
        return SignalChild(
            sequence=self.step,
            child_call_id=self.child_call_id,
            signal_name=self.signal_name,
            arguments=arguments(self.arguments, f"{at}.arguments"),
        )


class WireSignalChildFromUpdate(Wire, frozen=True, kw_only=True, tag="signal_child_from_update"):
    update_id: Name
    number: int
    child_call_id: Name
    signal_name: Name
    arguments: Any = None

    def command(self, at: str) -> Command:
        return SignalChildFromUpdate(
            update_id=self.update_id,
            number=self.number,
            child_call_id=self.child_call_id,
            signal_name=self.signal_name,
            arguments=arguments(self.arguments, f"{at}.arguments"),
        )
