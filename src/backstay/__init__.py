"""Backstay: durable workflows for Python.

Write straight-line code; every durable call is recorded, so the code survives crashes, deploys and months of waiting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backstay.codec.exceptions import RemoteFailure, RemoteTraceback, exception_payload
from backstay.release import VERSION
from backstay.sdk.author.activity import activity
from backstay.sdk.author.attempt import activity_info, heartbeat
from backstay.sdk.author.background import background
from backstay.sdk.author.cancellation import Cancelled, shield
from backstay.sdk.author.child import child, children
from backstay.sdk.author.gather import gather
from backstay.sdk.author.handlers import Signal, query, signal, update
from backstay.sdk.author.primitives import (
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
from backstay.sdk.author.race import race
from backstay.sdk.author.saga import Saga
from backstay.sdk.author.spawn import spawn
from backstay.sdk.author.step import Step
from backstay.sdk.author.timer import sleep
from backstay.sdk.author.wait import wait
from backstay.sdk.author.workflow import continue_as_new, workflow
from backstay.sdk.client.streams import emit
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
    NonDeterminismWarning,
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
from backstay.sdk.former_names import refuse
from backstay.sdk.worker.registry import Types

if TYPE_CHECKING:
    from backstay.codec.errors import PayloadError
    from backstay.kernel.event import HistoryDamaged
    from backstay.kernel.limits import Limits
    from backstay.sdk.client.client import AsyncClient
    from backstay.sdk.client.handle import AsyncHandle, AsyncUpdateHandle
    from backstay.sdk.client.sync import Client, Handle, UpdateHandle
    from backstay.sdk.embedded import AsyncBackstay, Backstay
    from backstay.sdk.embedded.prometheus import prometheus
    from backstay.sdk.json_logs import JsonFormatter
    from backstay.sdk.remote.worker import AsyncWorker, Worker
    from backstay.sdk.replay.replayer import BlockedRun, Replayed, UnjudgedRun
    from backstay.store.errors import ForkedEngine, IncompatibleStore, StoreError, Unavailable, UnknownDatabase

__version__ = VERSION

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
    "JsonFormatter",
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
    "UnjudgedRun",
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
    "activity_info",
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
    "prometheus",
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
    "AsyncClient": "backstay.sdk.client.client",
    "AsyncHandle": "backstay.sdk.client.handle",
    "AsyncUpdateHandle": "backstay.sdk.client.handle",
    "AsyncWorker": "backstay.sdk.remote.worker",
    "Backstay": "backstay.sdk.embedded",
    "BlockedRun": "backstay.sdk.replay.replayer",
    "Client": "backstay.sdk.client.sync",
    "ForkedEngine": "backstay.store.errors",
    "Handle": "backstay.sdk.client.sync",
    "HistoryDamaged": "backstay.kernel.event",
    "IncompatibleStore": "backstay.store.errors",
    "JsonFormatter": "backstay.sdk.json_logs",
    "Limits": "backstay.kernel.limits",
    "PayloadError": "backstay.codec.errors",
    "Replayed": "backstay.sdk.replay.replayer",
    "StoreError": "backstay.store.errors",
    "Unavailable": "backstay.store.errors",
    "UnjudgedRun": "backstay.sdk.replay.replayer",
    "UnknownDatabase": "backstay.store.errors",
    "UpdateHandle": "backstay.sdk.client.sync",
    "Worker": "backstay.sdk.remote.worker",
    "prometheus": "backstay.sdk.embedded.prometheus",
}


def __dir__() -> list[str]:
    return [*sorted(__all__), "__version__"]


def __getattr__(name: str) -> Any:
    """Import the engine and its store when first needed, so that code that only declares workflows starts faster."""
    module = _LAZY.get(name)
    if module is None:
        refuse(name)
        raise AttributeError(f"module 'backstay' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(module), name)
