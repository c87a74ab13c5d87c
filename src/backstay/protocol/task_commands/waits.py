"""Waits, signals and updates as workers send them."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from backstay.kernel.command import Command
from backstay.kernel.features.condition import OpenConditionWait, SatisfyConditionWait, TimeOutConditionWait
from backstay.kernel.features.select import CancelSelectionOperation
from backstay.kernel.features.signal import ApplySignal, OpenSignalWait
from backstay.kernel.features.update import CompleteUpdate, FailUpdate
from backstay.kernel.names import Name
from backstay.protocol.payloads import bare_blob, payload
from backstay.protocol.task_commands.base import Seconds, Text, Wire, WireException, WireMember, WireStep


class WireConditionWait(WireMember, frozen=True, kw_only=True, tag="open_condition_wait"):
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
            parallel_group_path=self.parallel_group_path,
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


class WireCancelSelection(Wire, frozen=True, kw_only=True, tag="cancel_selection_operation"):
    selection_group_id: Name
    member_key: Name | Annotated[int, Meta(ge=0)]
    member_index: Annotated[int, Meta(ge=0)]
    member_base_sequence: Annotated[int, Meta(ge=1)]
    member_size: Annotated[int, Meta(ge=1)]
    operation_kind: Name
    operation_identity: Name

    def command(self, at: str) -> Command:
        return CancelSelectionOperation(
            selection_group_id=self.selection_group_id,
            member_key=self.member_key,
            member_index=self.member_index,
            member_base_sequence=self.member_base_sequence,
            member_size=self.member_size,
            operation_kind=self.operation_kind,
            operation_identity=self.operation_identity,
        )


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
