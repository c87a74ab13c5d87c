"""Holdfast: durable workflows for Python.

Write straight-line code; every durable call is recorded, so the code survives crashes, deploys and months of waiting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.sdk import aio
from holdfast.sdk.activity import activity
from holdfast.sdk.attempt import attempt, heartbeat
from holdfast.sdk.background import background
from holdfast.sdk.branch import spawn
from holdfast.sdk.cancellation import Cancelled, shield
from holdfast.sdk.child import child, children
from holdfast.sdk.errors import (
    AccessDenied,
    ActivityCancelled,
    ActivityError,
    ActivityTimedOut,
    ChildError,
    ChildStopped,
    ChildTimedOut,
    CompensationFailed,
    DefinitionError,
    DurableCallRefused,
    HoldfastError,
    NonDeterminismError,
    NotInWorkflow,
    RequestRefused,
    ScheduleAlreadyExists,
    ScheduleNotFound,
    ServerError,
    ServerTooOld,
    ServerUnreachable,
    UpdateFailed,
    WorkflowAlreadyStarted,
    WorkflowError,
    WorkflowFailed,
    WorkflowNotFound,
    WorkflowNotRunning,
    WorkflowStopped,
    WorkflowTimedOut,
)
from holdfast.sdk.gather import gather
from holdfast.sdk.members import Signal, query, signal, update
from holdfast.sdk.primitives import (
    info,
    logger,
    now,
    patched,
    rng,
    side_effect,
    upsert_memo,
    upsert_search_attributes,
    uuid4,
    version,
)
from holdfast.sdk.race import race
from holdfast.sdk.registry import NonDeterminismWarning, Types
from holdfast.sdk.saga import Saga
from holdfast.sdk.step import Step
from holdfast.sdk.streams import emit
from holdfast.sdk.timer import sleep
from holdfast.sdk.wait import wait
from holdfast.sdk.workflow import continue_as_new, workflow

if TYPE_CHECKING:
    from holdfast.sdk.client import AsyncClient
    from holdfast.sdk.embedded import AsyncHoldfast, Holdfast
    from holdfast.sdk.remote.worker import AsyncWorker, Worker
    from holdfast.sdk.sync import Client

__version__ = "0.1.0"

__all__ = [
    "AccessDenied",
    "ActivityCancelled",
    "ActivityError",
    "ActivityTimedOut",
    "AsyncClient",
    "AsyncHoldfast",
    "AsyncWorker",
    "Cancelled",
    "ChildError",
    "ChildStopped",
    "ChildTimedOut",
    "Client",
    "CompensationFailed",
    "DefinitionError",
    "DurableCallRefused",
    "Holdfast",
    "HoldfastError",
    "NonDeterminismError",
    "NonDeterminismWarning",
    "NotInWorkflow",
    "RequestRefused",
    "Saga",
    "ScheduleAlreadyExists",
    "ScheduleNotFound",
    "ServerError",
    "ServerTooOld",
    "ServerUnreachable",
    "Signal",
    "Step",
    "Types",
    "UpdateFailed",
    "Worker",
    "WorkflowAlreadyStarted",
    "WorkflowError",
    "WorkflowFailed",
    "WorkflowNotFound",
    "WorkflowNotRunning",
    "WorkflowStopped",
    "WorkflowTimedOut",
    "activity",
    "aio",
    "attempt",
    "background",
    "child",
    "children",
    "continue_as_new",
    "emit",
    "gather",
    "heartbeat",
    "info",
    "logger",
    "now",
    "patched",
    "query",
    "race",
    "rng",
    "shield",
    "side_effect",
    "signal",
    "sleep",
    "spawn",
    "update",
    "upsert_memo",
    "upsert_search_attributes",
    "uuid4",
    "version",
    "wait",
    "workflow",
]

_LAZY = {
    "AsyncClient": "holdfast.sdk.client",
    "AsyncHoldfast": "holdfast.sdk.embedded",
    "AsyncWorker": "holdfast.sdk.remote.worker",
    "Client": "holdfast.sdk.sync",
    "Holdfast": "holdfast.sdk.embedded",
    "Worker": "holdfast.sdk.remote.worker",
}


def __getattr__(name: str) -> Any:
    """The engine and its store are imported when first needed: code that only declares workflows starts faster."""
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(module), name)
