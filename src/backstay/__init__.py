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
    StructuralLimitExceeded,
    UpdateFailed,
    UpdateTimeout,
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
    from backstay.codec.errors import PayloadError
    from backstay.kernel.event import HistoryDamaged
    from backstay.kernel.limits import Limits
    from backstay.sdk.client import AsyncClient
    from backstay.sdk.embedded import AsyncBackstay, Backstay
    from backstay.sdk.handle import AsyncHandle, AsyncUpdateHandle
    from backstay.sdk.remote.worker import AsyncWorker, Worker
    from backstay.sdk.replay import BlockedRun, Replayed
    from backstay.sdk.sync import Client, Handle, UpdateHandle
    from backstay.store import ForkedEngine, IncompatibleStore, StoreError, Unavailable, UnknownDatabase

__version__ = "0.1.0"

__all__ = [
    "AccessDenied",
    "ActivityCancelled",
    "ActivityCrashed",
    "ActivityError",
    "ActivityTimedOut",
    "AsyncBackstay",
    "AsyncClient",
    "AsyncHandle",
    "AsyncUpdateHandle",
    "AsyncWorker",
    "Backstay",
    "BackstayError",
    "BlockedRun",
    "Cancelled",
    "ChildError",
    "ChildStopped",
    "ChildTimedOut",
    "Client",
    "CompensationFailed",
    "DefinitionError",
    "DurableCallRefused",
    "ForkedEngine",
    "FunctionNotRegistered",
    "Handle",
    "HistoryDamaged",
    "IncompatibleStore",
    "Limits",
    "NonDeterminismError",
    "NonDeterminismWarning",
    "NotInWorkflow",
    "PayloadError",
    "RemoteFailure",
    "RemoteTraceback",
    "Replayed",
    "RequestRefused",
    "Saga",
    "ScheduleAlreadyExists",
    "ScheduleNotFound",
    "ServerError",
    "ServerTooOld",
    "ServerUnreachable",
    "Signal",
    "Step",
    "StoreError",
    "StructuralLimitExceeded",
    "Types",
    "Unavailable",
    "UnknownDatabase",
    "UpdateFailed",
    "UpdateHandle",
    "UpdateTimeout",
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
    "AsyncBackstay": "backstay.sdk.embedded",
    "AsyncClient": "backstay.sdk.client",
    "AsyncHandle": "backstay.sdk.handle",
    "AsyncUpdateHandle": "backstay.sdk.handle",
    "AsyncWorker": "backstay.sdk.remote.worker",
    "Backstay": "backstay.sdk.embedded",
    "BlockedRun": "backstay.sdk.replay",
    "Client": "backstay.sdk.sync",
    "ForkedEngine": "backstay.store",
    "Handle": "backstay.sdk.sync",
    "HistoryDamaged": "backstay.kernel.event",
    "IncompatibleStore": "backstay.store",
    "Limits": "backstay.kernel.limits",
    "PayloadError": "backstay.codec.errors",
    "Replayed": "backstay.sdk.replay",
    "StoreError": "backstay.store",
    "Unavailable": "backstay.store",
    "UnknownDatabase": "backstay.store",
    "UpdateHandle": "backstay.sdk.sync",
    "Worker": "backstay.sdk.remote.worker",
}


def __dir__() -> list[str]:
    return [*sorted(__all__), "__version__"]


def __getattr__(name: str) -> Any:
    """The engine and its store are imported when first needed: code that only declares workflows starts faster."""
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'backstay' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(module), name)
