"""Backstay: durable workflows for Python.

Write straight-line code; every durable call is recorded, so the code survives crashes, deploys and months of waiting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backstay.codec.exceptions import RemoteFailure, RemoteTraceback, exception_payload
from backstay.sdk import aio
from backstay.sdk.activity import activity
from backstay.sdk.attempt import attempt, heartbeat
from backstay.sdk.background import background
from backstay.sdk.branch import spawn
from backstay.sdk.cancellation import Cancelled, shield
from backstay.sdk.child import child, children
from backstay.sdk.errors import (
    AccessDenied,
    ActivityCancelled,
    ActivityCrashed,
    ActivityError,
    ActivityTimedOut,
    BackstayError,
    ChildError,
    ChildStopped,
    ChildTimedOut,
    CompensationFailed,
    DefinitionError,
    DurableCallRefused,
    FunctionNotRegistered,
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
from backstay.sdk.gather import gather
from backstay.sdk.members import Signal, query, signal, update
from backstay.sdk.primitives import (
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
from backstay.sdk.race import race
from backstay.sdk.registry import NonDeterminismWarning, Types
from backstay.sdk.saga import Saga
from backstay.sdk.step import Step
from backstay.sdk.streams import emit
from backstay.sdk.timer import sleep
from backstay.sdk.wait import wait
from backstay.sdk.workflow import continue_as_new, workflow

if TYPE_CHECKING:
    from backstay.sdk.client import AsyncClient
    from backstay.sdk.embedded import AsyncBackstay, Backstay
    from backstay.sdk.remote.worker import AsyncWorker, Worker
    from backstay.sdk.sync import Client

__version__ = "0.1.0"

__all__ = [
    "AccessDenied",
    "ActivityCancelled",
    "ActivityCrashed",
    "ActivityError",
    "ActivityTimedOut",
    "AsyncBackstay",
    "AsyncClient",
    "AsyncWorker",
    "Backstay",
    "BackstayError",
    "Cancelled",
    "ChildError",
    "ChildStopped",
    "ChildTimedOut",
    "Client",
    "CompensationFailed",
    "DefinitionError",
    "DurableCallRefused",
    "FunctionNotRegistered",
    "NonDeterminismError",
    "NonDeterminismWarning",
    "NotInWorkflow",
    "RemoteFailure",
    "RemoteTraceback",
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
    "exception_payload",
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
    "AsyncClient": "backstay.sdk.client",
    "AsyncBackstay": "backstay.sdk.embedded",
    "AsyncWorker": "backstay.sdk.remote.worker",
    "Client": "backstay.sdk.sync",
    "Backstay": "backstay.sdk.embedded",
    "Worker": "backstay.sdk.remote.worker",
}


def __getattr__(name: str) -> Any:
    """The engine and its store are imported when first needed: code that only declares workflows starts faster."""
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'backstay' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(module), name)
