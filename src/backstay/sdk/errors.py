"""All errors that authors and callers can get, in one tree.

    BackstayError
    ├── NotInWorkflow            a durable primitive was used outside a workflow
    ├── DurableCallRefused       a durable call where none is allowed (query, side effect, generator, ...)
    ├── NonDeterminismError      workflow code did something that a replay could not repeat; fails the task, not the run
    ├── DefinitionError          a workflow or activity is declared wrongly; raised at import or registration
    ├── FunctionNotRegistered    background() named a function that the worker running it does not know
    ├── CompensationFailed       a saga could not undo everything; it has the original error and those of the undoing
    ├── StructuralLimitExceeded  a run or an activity asked for more than a limit allows
    ├── ActivityError            an activity did not end by its own code; raised in workflows
    │   ├── ActivityTimedOut
    │   ├── ActivityCrashed      its process or worker died while it ran, once too often
    │   └── ActivityCancelled
    ├── ChildError               a child did not end by its own code; raised in workflows
    │   ├── ChildTimedOut
    │   └── ChildStopped         cancelled or terminated
    ├── WorkflowError            a run did not complete; raised in callers
    │   ├── WorkflowFailed
    │   ├── WorkflowTimedOut
    │   └── WorkflowStopped      cancelled or terminated
    ├── WorkflowAlreadyStarted   the id is taken
    ├── WorkflowNotFound
    ├── WorkflowNotRunning       it has ended
    ├── ScheduleAlreadyExists    the id is taken
    ├── ScheduleNotFound         there is none, or it was deleted
    ├── UpdateFailed             the handler of an update raised; the run goes on
    ├── ServerError              a server could not be used at all
    │   ├── ServerUnreachable    nothing answers, or nothing that is a Backstay server
    │   ├── AccessDenied         wrong token, or one without the role
    │   └── ServerTooOld         it speaks another version of our protocol
    ├── RequestRefused           anything else the engine refused, with its stable reason
    ├── StoreError               the database cannot be used (`backstay.store`)
    │   ├── Unavailable          it cannot commit now; nothing was lost
    │   ├── UnknownDatabase      the path or URL does not name a database
    │   ├── IncompatibleStore    it was written by a newer version, or is not ours
    │   └── ForkedEngine         an engine was used after a fork
    └── HistoryDamaged           the stored events of a run do not fit together (`backstay.kernel.event`)

`Evicted`, `WorkflowInterrupted` and `ContinueAsNewRequested` are not errors. They end code, so `except Exception` does not
catch them.

History names these classes by this module (`backstay.sdk.errors:ActivityCancelled`), so they stay in it. One that moves is
entered in `MOVED` under its old name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from greenlet import GreenletExit

from backstay.kernel.errors import BackstayError
from backstay.kernel.failure import Failure


class NotInWorkflow(BackstayError):
    """A durable call was made outside a workflow.

    Start a workflow with `client.start(...)` and make the call there.
    """

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} works only inside a workflow; start one with client.start(...)")


class DurableCallRefused(BackstayError):
    """A durable call was made where none is allowed: in a query, a handler, a validator, a side effect or a generator.

    Set a field there, and make the call in the workflow's main code.
    """


class NonDeterminismError(BackstayError):
    """Workflow code did something that a replay could not repeat: I/O, a clock, a random number.

    Move it into an activity. The run is still open, and goes on when the corrected code is deployed.
    """


class NonDeterminismWarning(UserWarning):
    """A warning about workflow code that may not replay the same way."""


class DefinitionError(BackstayError, TypeError):
    """A workflow or activity is declared wrongly. Raised at import or registration.

    Correct the declaration; the message names it.
    """


class FunctionNotRegistered(BackstayError, LookupError):
    """`background()` named a function that is not registered in the process that ran it.

    Register it there, or define it in the module of a registered workflow.
    """

    non_retryable = True

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the function {name!r} is not registered in the process that was to run it; pass it to"
            " Backstay(register=[...]) or Worker(...), or define it in the module of a workflow that is registered there"
        )


class CompensationFailed(BackstayError):
    """A saga's block failed, and so did a compensation. `original` is the error of the block, `failures` those of the compensations.

    Finish the undoing by hand; everything else was undone.
    """

    def __init__(self, original: BaseException | None, failures: list[Exception]) -> None:
        said = "; ".join(f"{type(failure).__name__}: {failure}" for failure in failures)
        super().__init__(f"{len(failures)} compensation(s) failed ({said}) after {type(original).__name__}: {original}")
        self.original = original
        self.failures = failures


class StructuralLimitExceeded(BackstayError):
    """A run, an activity or a request asked for more than a limit allows.

    The message names the limit and what to do; `Limits` changes it.
    """


class ActivityError(BackstayError):
    """The base class of errors about an activity that did not end by its own code.

    Catch it to handle timeouts, crashes and cancellation alike.
    """


class ActivityTimedOut(ActivityError, TimeoutError):
    """An activity exceeded one of its timeouts and has no attempt left. `timeout_kind` says which.

    Catch it, or allow more time or `retries`.
    """

    def __init__(self, message: str, timeout_kind: str) -> None:
        super().__init__(message)
        self.timeout_kind = timeout_kind


class ActivityCrashed(ActivityError):
    """The process or worker died in too many attempts in a row, so the activity is not started again. It may have done its work.

    Check what it did before you repeat it; `max_crashes=` allows more.
    """

    def __init__(self, message: str, crashes: int) -> None:
        super().__init__(message)
        self.crashes = crashes


class ActivityCancelled(ActivityError):
    """Raised inside an activity: its run was closed, or its result is not wanted any more.

    Clean up and return.
    """


class ChildError(BackstayError):
    """The base class of errors about a child that did not end by its own code.

    Catch it to handle timeouts and stops alike.
    """


class ChildTimedOut(ChildError, TimeoutError):
    """A child workflow exceeded its timeout.

    Catch it, or allow more with `child.options(timeout=...)`.
    """


class ChildStopped(ChildError):
    """A child workflow was cancelled or terminated; `status` says which.

    Catch it if the parent can go on without the child.
    """

    def __init__(self, message: str, status: str) -> None:
        super().__init__(message)
        self.status = status


class WorkflowError(BackstayError):
    """The base class of errors about a run that did not complete. It has `workflow_id` and `run_id`.

    Catch it to handle every such end alike.
    """

    def __init__(self, message: str, workflow_id: str, run_id: str) -> None:
        super().__init__(message)
        self.workflow_id = workflow_id
        self.run_id = run_id


class WorkflowFailed(WorkflowError):
    """The run failed; `__cause__` is the exception its code raised, restored where its class is known.

    Look at the cause, and at `dw history`. A failed run stays failed: start a new one under another id.

    `failure` is the recorded failure; `exception_payload(error)` is the part of it that is stable across languages.
    """

    failure: Failure | None = None


class WorkflowTimedOut(WorkflowError, TimeoutError):
    """The run exceeded its timeout.

    Start it with a longer `timeout` or `run_timeout`.
    """


class WorkflowStopped(WorkflowError):
    """The run was cancelled or terminated.

    The message says which, and why.
    """


class RequestRefused(BackstayError):
    """The engine refused a request; `reason` is stable, `fields` has the details. Other refusals have classes of their own.

    The message says what to do.
    """

    def __init__(self, reason: str, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.reason = reason
        self.fields = fields


class WorkflowAlreadyStarted(RequestRefused):
    """The workflow id is taken: an id is used once.

    Use another id, or get the existing workflow with `options(if_exists="return_existing")`.
    """


class WorkflowNotFound(RequestRefused):
    """There is no workflow, or no run, of this id.

    Check the id, the namespace and the database.
    """


class WorkflowNotRunning(RequestRefused):
    """The run has ended, so it takes no messages.

    Query it, or start a new workflow.
    """


class ScheduleNotFound(RequestRefused):
    """There is no schedule of this id, or it was deleted.

    Check the id; `schedules.list()` has those that exist.
    """


class ScheduleAlreadyExists(RequestRefused):
    """The schedule id is taken.

    Use another id, or `schedules.ensure(...)` to change the existing one.
    """


class UpdateFailed(BackstayError):
    """An update's handler raised; `__cause__` is its exception, restored where its class is known. The run goes on.

    Correct what was sent, and send a new update.
    """

    failure: Failure | None = None

    def __init__(self, message: str, update_id: str | None) -> None:
        super().__init__(message)
        self.update_id = update_id


class UpdateTimeout(BackstayError, TimeoutError):
    """The caller's timeout expired, but the update was accepted and goes on.

    Wait again with `handle.submitted(update, error.update_id).result()`.
    """

    def __init__(self, message: str, workflow_id: str, update_id: str | None) -> None:
        super().__init__(message)
        self.workflow_id = workflow_id
        self.update_id = update_id


class ServerError(BackstayError):
    """The base class for a server that could not be used. `url` is its address.

    Catch it to handle every such problem alike.
    """

    def __init__(self, url: str, message: str) -> None:
        super().__init__(message)
        self.url = url


class ServerUnreachable(ServerError, ConnectionError):
    """No Backstay server answers at the address.

    Start `dw server`, or correct the address.
    """

    def __init__(self, url: str, why: str) -> None:
        super().__init__(url, f"no Backstay server at {url}: {why}; is `dw server` running there?")


class AccessDenied(ServerError, PermissionError):
    """The server refuses the token, or the token lacks the role.

    Use a token with the role: *worker* for workers, *operator* for clients.
    """

    def __init__(self, url: str, why: str) -> None:
        super().__init__(url, f"{url} refuses access: {why}")


class ServerTooOld(ServerError):
    """Client and server speak different versions of our protocol.

    Install the same release on both sides.
    """

    def __init__(self, url: str, why: str) -> None:
        super().__init__(url, f"{url} does not speak our protocol: {why}; install the same release on both sides")


class Evicted(GreenletExit):
    """Ends the live code of a run that is dropped from memory. Nothing the code does from then on has an effect."""


class WorkflowInterrupted(Evicted):
    """Interrupts workflow code that ran for too long without waiting; the code is not unwound."""


class ContinueAsNewRequested(BaseException):
    def __init__(self, definition: Any, arguments: bytes) -> None:
        super().__init__("continue as new")
        self.definition = definition
        self.arguments = arguments


MOVED: Final[Mapping[str, type[Exception]]] = {
    "backstay.sdk.guard.verdict:NonDeterminismWarning": NonDeterminismWarning
}
"""Error classes by the names under which older releases recorded them."""
