"""How a run ends, as workers send it: at most one of these in a completion, at its end."""

from __future__ import annotations

from typing import Any

from backstay.kernel.command import Command
from backstay.kernel.features.cancel import CancelWorkflow
from backstay.kernel.features.close import CompleteWorkflow, FailWorkflow
from backstay.kernel.features.continue_as_new import ContinueAsNew
from backstay.kernel.names import Name
from backstay.protocol.payloads import arguments, payload
from backstay.protocol.task_commands.base import Text, Wire, WireException


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


class WireCancel(Wire, frozen=True, kw_only=True, tag="cancel_workflow"):
    """The run ends as cancelled, after its code has handled the request to cancel."""

    def command(self, at: str) -> Command:
        return CancelWorkflow()
