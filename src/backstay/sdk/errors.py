"""Every error an author or a caller can meet, in one tree.

    BackstayError
    ├── NotInWorkflow            a durable primitive was used outside a workflow
    ├── DurableCallRefused       a durable call where none is allowed (query, side effect, generator, ...)
    ├── NonDeterminismError      workflow code did what a replay could not repeat; fails the task, not the run
    ├── DefinitionError          a workflow or activity is declared wrongly; raised at import or registration
    ├── FunctionNotRegistered    background() named a function that the worker running it does not know
    ├── CompensationFailed       a saga could not undo everything; it has the original error and those of the undoing
    ├── StructuralLimitExceeded  a run or an activity asked for more than a limit allows
    ├── ActivityError            what a workflow sees of an activity that did not end well by itself
    │   ├── ActivityTimedOut
    │   ├── ActivityCrashed      its process or worker died while it ran, once too often
    │   └── ActivityCancelled
    ├── ChildError               what a workflow sees of a child that did not end by its own code
    │   ├── ChildTimedOut
    │   └── ChildStopped         cancelled or terminated
    ├── WorkflowError            what a caller sees of a run that did not complete
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
    │   ├── UnknownDatabase      what was given names none
    │   ├── IncompatibleStore    it was written by a newer version, or is not ours
    │   └── ForkedEngine         an engine was used after a fork
    └── HistoryDamaged           what is stored of a run does not add up (`backstay.kernel.event`)

`Evicted`, `WorkflowInterrupted` and `ContinueAsNewRequested` are no errors: they end code without being one, so `except Exception` misses them.

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
    def __init__(self, what: str) -> None:
        super().__init__(f"{what} works only inside a workflow; start one with client.start(...)")


class DurableCallRefused(BackstayError):
    pass


class NonDeterminismError(BackstayError):
    """Workflow code called what only an activity may. Fix the code: the run is still open and goes on with it."""


class NonDeterminismWarning(UserWarning):
    """Workflow code that may not replay the same way."""


class DefinitionError(BackstayError, TypeError):
    pass


class FunctionNotRegistered(BackstayError, LookupError):
    """`background()` named a function that is not registered in the process that ran it."""

    non_retryable = True

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the function {name!r} is not registered in the process that was to run it; pass it to"
            " Backstay(register=[...]) or Worker(...), or define it in the module of a workflow that is registered there"
        )


class CompensationFailed(BackstayError):
    """The block failed, and so did undoing it. `original` is why, `failures` what could not be undone."""

    def __init__(self, original: BaseException | None, failures: list[Exception]) -> None:
        said = "; ".join(f"{type(failure).__name__}: {failure}" for failure in failures)
        super().__init__(f"{len(failures)} compensation(s) failed ({said}) after {type(original).__name__}: {original}")
        self.original = original
        self.failures = failures


class StructuralLimitExceeded(BackstayError):
    """More than a limit allows: what an activity returned, or what a run asked for."""


class ActivityError(BackstayError):
    pass


class ActivityTimedOut(ActivityError, TimeoutError):
    def __init__(self, message: str, timeout_kind: str) -> None:
        super().__init__(message)
        self.timeout_kind = timeout_kind


class ActivityCrashed(ActivityError):
    """Attempts were begun and never reported, so many in a row that it is not begun again. It may have done its work."""

    def __init__(self, message: str, crashes: int) -> None:
        super().__init__(message)
        self.crashes = crashes


class ActivityCancelled(ActivityError):
    """Inside an activity: its run was closed, or nobody waits for it any more. Clean up and leave."""


class ChildError(BackstayError):
    pass


class ChildTimedOut(ChildError, TimeoutError):
    pass


class ChildStopped(ChildError):
    def __init__(self, message: str, status: str) -> None:
        super().__init__(message)
        self.status = status


class WorkflowError(BackstayError):
    def __init__(self, message: str, workflow_id: str, run_id: str) -> None:
        super().__init__(message)
        self.workflow_id = workflow_id
        self.run_id = run_id


class WorkflowFailed(WorkflowError):
    """The run failed; `__cause__` is the exception its code raised, restored where its class is known.

    `failure` is what was recorded of it; `exception_payload(error)` is the part of that which is stable across languages.
    """

    failure: Failure | None = None


class WorkflowTimedOut(WorkflowError, TimeoutError):
    pass


class WorkflowStopped(WorkflowError):
    pass


class RequestRefused(BackstayError):
    def __init__(self, reason: str, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.reason = reason
        self.fields = fields


class WorkflowAlreadyStarted(RequestRefused):
    pass


class WorkflowNotFound(RequestRefused):
    pass


class WorkflowNotRunning(RequestRefused):
    pass


class ScheduleNotFound(RequestRefused):
    pass


class ScheduleAlreadyExists(RequestRefused):
    pass


class UpdateFailed(BackstayError):
    """The update failed; `__cause__` is the exception its handler raised, restored where its class is known."""

    failure: Failure | None = None

    def __init__(self, message: str, update_id: str | None) -> None:
        super().__init__(message)
        self.update_id = update_id


class UpdateTimeout(BackstayError, TimeoutError):
    """The caller's time is over, the update's is not: it was accepted, and ends whether or not somebody waits for it."""

    def __init__(self, message: str, workflow_id: str, update_id: str | None) -> None:
        super().__init__(message)
        self.workflow_id = workflow_id
        self.update_id = update_id


class ServerError(BackstayError):
    """A server could not be used. `url` is where it was looked for."""

    def __init__(self, url: str, message: str) -> None:
        super().__init__(message)
        self.url = url


class ServerUnreachable(ServerError, ConnectionError):
    def __init__(self, url: str, why: str) -> None:
        super().__init__(url, f"no Backstay server at {url}: {why}; is `dw server` running there?")


class AccessDenied(ServerError, PermissionError):
    def __init__(self, url: str, why: str) -> None:
        super().__init__(url, f"{url} refuses access: {why}")


class ServerTooOld(ServerError):
    def __init__(self, url: str, why: str) -> None:
        super().__init__(url, f"{url} does not speak our protocol: {why}; install the same release on both sides")


class Evicted(GreenletExit):
    """The live code of a run is being given up. Whatever it does from here on has no effect."""


class WorkflowInterrupted(Evicted):
    """The code of a run has gone on for too long without waiting for anything; it is set aside as it stands."""


class ContinueAsNewRequested(BaseException):
    def __init__(self, target: Any, arguments: bytes) -> None:
        super().__init__("continue as new")
        self.target = target
        self.arguments = arguments


MOVED: Final[Mapping[str, type[Exception]]] = {
    "backstay.sdk.guard.verdict:NonDeterminismWarning": NonDeterminismWarning
}
"""Classes by the names under which older releases recorded them."""
