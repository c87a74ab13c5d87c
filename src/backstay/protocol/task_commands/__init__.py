"""Workflow-task commands as workers send them, and the kernel's commands they become.

The tag is the wire's `type`. A struct here has the fields of a command with their shapes; checks that need the state of
the run are done by the kernel, before any command of the completion is applied.
"""

from __future__ import annotations

from typing import get_args

from backstay.protocol.task_commands.base import Text, WireFailure, memo
from backstay.protocol.task_commands.children import (
    WireCancelChild,
    WireSignalChild,
    WireSignalChildFromUpdate,
    WireStartChild,
)
from backstay.protocol.task_commands.ends import WireCancel, WireComplete, WireContinue, WireFail
from backstay.protocol.task_commands.steps import (
    WireCancelActivity,
    WireCancelTimer,
    WireLocalActivity,
    WireMemo,
    WireScheduleActivity,
    WireSearchAttributes,
    WireSideEffect,
    WireStartTimer,
    WireVersionMarker,
)
from backstay.protocol.task_commands.waits import (
    WireApplySignal,
    WireCancelSelection,
    WireCompleteUpdate,
    WireConditionWait,
    WireFailUpdate,
    WireSatisfied,
    WireSignalWait,
    WireTimedOut,
)

__all__ = ["COMMAND_TYPES", "TERMINAL_TYPES", "Text", "WireCommand", "WireFailure", "memo"]

WireCommand = (
    WireScheduleActivity
    | WireStartTimer
    | WireStartChild
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
    | WireCancelChild
    | WireCancelSelection
    | WireSignalChild
    | WireSignalChildFromUpdate
    | WireComplete
    | WireFail
    | WireContinue
    | WireCancel
)
COMMAND_TYPES: tuple[str, ...] = tuple(str(kind.__struct_config__.tag) for kind in get_args(WireCommand))
TERMINAL_TYPES = ("complete_workflow", "fail_workflow", "continue_as_new", "cancel_workflow")
