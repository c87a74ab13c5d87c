"""The JSON of leased tasks for published workers: flat fields; those that do not apply are null."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from typing import Any

import msgspec
from msgspec import UnsetType

from backstay.kernel.event import Recorded
from backstay.kernel.features.activity import ActivityAssignment
from backstay.kernel.features.workflow_task import WorkflowAssignment
from backstay.kernel.message import Refused
from backstay.kernel.task import Resume, Task
from backstay.kernel.values import CODEC, Micros, seconds
from backstay.protocol.history import COMPRESS_ABOVE, Encoding, compress, iso, to_wire
from backstay.protocol.payloads import envelope

_RESUME = Resume.__struct_fields__


def optional_iso(at: Micros | None) -> str | None:
    return None if at is None else iso(at)


def lease(task: Task) -> dict[str, Any]:
    """The fields of the lease of a task."""
    return {"leased_at": optional_iso(task.leased_at), "lease_expires_at": optional_iso(task.until)}


def workflow_task(assigned: WorkflowAssignment, page: dict[str, Any]) -> dict[str, Any]:
    """`page`: the first page of its history, as `history_page` gives it."""
    task = assigned.task
    resume = task.resume
    return {
        "task_id": task.id,
        "task_type": "workflow",
        "task_kind": "workflow",
        "namespace": assigned.namespace,
        "workflow_id": assigned.workflow_id,
        "run_id": assigned.run_id,
        "run_number": assigned.run_number,
        "workflow_type": assigned.workflow_type,
        "workflow_task_attempt": task.attempt,
        "payload_codec": CODEC,
        "arguments": envelope(assigned.started.arguments),
        "run_status": assigned.run_status,
        "workflow_definition_fingerprint": assigned.started.workflow_definition_fingerprint,
        **_place(task),
        **{name: getattr(resume, name) for name in _RESUME},
        "last_history_sequence": assigned.last_sequence,
        **_trace(assigned.started.traceparent),
        **page,
    }


def activity_task(assigned: ActivityAssignment) -> dict[str, Any]:
    task = assigned.task
    policy = assigned.retry_policy
    heartbeat = policy.heartbeat_timeout
    begun = task.leased_at
    return {
        "task_id": task.id,
        "task_type": "activity",
        "namespace": assigned.namespace,
        "workflow_id": assigned.workflow_id,
        "run_id": assigned.run_id,
        "activity_execution_id": assigned.activity_execution_id,
        "activity_attempt_id": assigned.activity_attempt_id,
        "attempt_number": assigned.attempt_number,
        "activity_type": assigned.activity_type,
        "payload_codec": CODEC,
        "arguments": envelope(assigned.arguments),
        "worker_session": session(task),
        "retry_policy": msgspec.to_builtins(policy),
        "deadlines": {
            "schedule_to_start": None,
            "start_to_close": optional_iso(assigned.close_deadline_at),
            "schedule_to_close": optional_iso(assigned.schedule_to_close_deadline_at),
            "heartbeat": None if heartbeat is None or begun is None else iso(begun + seconds(heartbeat)),
        },
        **_place(task),
        **_trace(assigned.traceparent),
    }


def _trace(traceparent: str | UnsetType | None) -> dict[str, str]:
    """The trace that the run belongs to, if it has one."""
    return {"traceparent": traceparent} if isinstance(traceparent, str) else {}


def session(task: Task) -> dict[str, Any] | None:
    """The worker session of an activity, with its options."""
    asked = task.session
    return None if asked is None else {name: getattr(asked, name) for name in asked.__struct_fields__}


def _place(task: Task) -> dict[str, Any]:
    return {
        "task_queue": task.routing.queue,
        "connection": task.routing.connection,
        "compatibility": task.routing.compatibility,
        "priority": task.routing.priority,
        "lease_owner": task.owner,
        "leased_at": optional_iso(task.leased_at),
        "lease_expires_at": optional_iso(task.until),
    }


def history_page(
    events: list[Recorded],
    run_id: str,
    total: int,
    encoding: Encoding | None = None,
    hidden: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """A page of history. It is compressed only on request, and only if that makes it smaller. `hidden`: the ids of signals that
    are left out."""
    last = events[-1].sequence if events else total
    more = last < total
    shown = [entry for entry in events if getattr(entry.event, "signal_id", None) not in hidden] if hidden else events
    wire = [to_wire(entry, run_id) for entry in shown]
    page: dict[str, Any] = {
        "history_events": wire,
        "total_history_events": total,
        "has_more": more,
        "next_after_sequence": last if more else None,
        "next_history_page_token": page_token(last) if more else None,
    }
    if encoding is not None and len(wire) > COMPRESS_ABOVE:
        page["history_events"] = []
        page["history_events_compressed"] = compress(wire, encoding)
        page["history_events_encoding"] = encoding
    return page


def page_token(after: int) -> str:
    return b64encode(str(after).encode()).decode("ascii")


def after_token(token: str | None, field: str) -> int:
    """The sequence after which a page begins."""
    if token is None:
        return 0
    try:
        text = b64decode(token, validate=True).decode("ascii")
    except (Base64Error, ValueError):
        text = ""
    if not text.isdigit() or len(text) > 19 or int(text) >= 1 << 63:
        raise Refused("invalid_page_token", "this page token was not given by this server", field=field)
    return int(text)
