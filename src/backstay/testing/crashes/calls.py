"""Calls of a test: which of them change something, what they are called, and how a repetition is known."""

from __future__ import annotations

from typing import Any, cast

from msgspec.structs import replace

from backstay.protocol import commands as tell
from backstay.protocol import requests as ask
from backstay.protocol.schedules import CreateSchedule, ToSchedule
from backstay.protocol.streams import AppendStream, CloseStream

WRITES = (
    ask.StartWorkflow,
    ask.RunWorkflow,
    tell.ToInstance,
    tell.SignalWithStart,
    CreateSchedule,
    ToSchedule,
    AppendStream,
    CloseStream,
)
"""Requests that wait at the gate. The others only look."""


def told(request: ask.Request[Any]) -> str:
    """A call of the test, in words."""
    match request:
        case ask.RunWorkflow(start=start):
            return told(start)
        case ask.StartWorkflow(workflow_type=kind, workflow_id=id):
            return f"the start of {kind} {id or ''}".rstrip()
        case tell.SignalWorkflow(signal_name=name, workflow_id=id):
            return f"signal {name!r} to {id}"
        case tell.UpdateWorkflow(update_name=name, workflow_id=id):
            return f"update {name!r} to {id}"
        case tell.ToInstance(workflow_id=id):
            return f"{type(request).__name__} to {id}"
        case _:
            return type(request).__name__


def with_request_id(request: ask.Request[Any], id: str) -> ask.Request[Any]:
    """The request with an id by which its repetition is known, unless it has one."""
    if isinstance(request, ask.RunWorkflow):
        return replace(request, start=cast(ask.StartWorkflow, with_request_id(request.start, id)))
    if isinstance(request, WRITES) and getattr(request, "request_id", id) is None:
        return (
            replace(request, request_id=id, fresh=False)
            if hasattr(request, "fresh")
            else replace(request, request_id=id)
        )
    return request
