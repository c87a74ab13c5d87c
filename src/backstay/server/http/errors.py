"""Error responses: a status, a stable reason, a message that helps, and the fields it is about."""

from __future__ import annotations

import logging
import re
from typing import Any

import msgspec

from backstay.kernel.event import HistoryDamaged
from backstay.kernel.message import Refused
from backstay.kernel.task import NO_HISTORY
from backstay.kernel.views import log_ids
from backstay.protocol.history import iso
from backstay.protocol.redaction import RedactionFailed
from backstay.store.errors import StoreError, Unavailable

log = logging.getLogger("backstay.server")

_AT = re.compile(r" - at `\$\.?(.*)`$")
_MISSING = re.compile(r"Object missing required field `([^`]+)`")

# Any other refusal of the kernel is a conflict with the current state: 409.
_STATUS = {
    "instance_not_found": 404,
    "run_not_found": 404,
    "event_not_found": 404,
    "schedule_not_found": 404,
    "task_not_found": 404,
    "attempt_not_found": 404,
    "worker_not_found": 404,
    "namespace_not_found": 404,
    "update_not_found": 404,
    "query_not_found": 404,
    "stream_not_found": 404,
    "rejected_unknown_query": 404,
    "query_worker_timeout": 504,
    "update_validation_execution_timeout": 504,
    "query_task_queue_full": 429,
    "invalid_page_token": 400,
    "payload_too_large": 413,
    "unsupported_payload_codec": 422,
    "unsupported_payload_schema": 422,
    "external_payload_unsupported": 422,
    "structural_limit_exceeded": 422,
    "workflow_type_mismatch": 409,
}

_REASONS = {"workflow_not_found": "instance_not_found"}  # the word that published clients know


class HttpError(Exception):
    """An error response. `last`: the connection ends with it."""

    last = False

    def __init__(self, status: int, reason: str, message: str, /, **fields: Any) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.fields = fields

    def body(self) -> dict[str, Any]:
        # Clients of the worker plane read `error`, those of the control plane `message`.
        return {"error": self.message, "message": self.message, "reason": self.reason, **self.fields}


def refusal_error(refusal: Refused) -> HttpError:
    """The error response to a refusal of the engine."""
    reason = _REASONS.get(refusal.reason, refusal.reason)
    status = _STATUS.get(reason) or (422 if reason.startswith("invalid_") else 409)
    fields = {
        name: iso(value) if name.endswith("_at") and isinstance(value, int) else value
        for name, value in refusal.fields.items()
    }
    if "command" in fields:
        fields["field"] = f"commands[{fields.pop('command')}].{fields.get('field', 'type')}"
    field = fields.get("field")
    if status == 422 and isinstance(field, str):
        fields = _errors(field, refusal.message) | fields
    return HttpError(status, reason, refusal.message, **fields)


class NotTheEngine(HttpError):
    """This server is not the engine of its database: it has no tasks and no workers to query; another server has them.

    The connection ends, since a proxy chooses a server for new connections only.
    """

    last = True

    def __init__(
        self,
        reason: str,
        message: str = "another process runs the engine of this database; this server has no tasks",
        **fields: Any,
    ) -> None:
        super().__init__(503, reason, message, retryable=True, retry_after_seconds=1, **fields)


class Stopping(HttpError):
    """This server is about to stop, so calls that would wait are to be made again at its successor."""

    last = True

    def __init__(self) -> None:
        message = "this server is stopping; retry in a moment"
        super().__init__(503, "server_draining", message, retryable=True, retry_after_seconds=1)


def invalid(field: str, message: str, reason: str = "validation_failed") -> HttpError:
    """The error response to a field with an invalid value."""
    return HttpError(422, reason, message, field=field, **_errors(field, message))


def undecodable(error: msgspec.MsgspecError) -> HttpError:
    """The error response to a body that is not JSON, or not of the expected shape."""
    if not isinstance(error, msgspec.ValidationError):
        return HttpError(400, "malformed_json", f"the body is not valid JSON: {error}", field="body")
    text = str(error)
    place = _AT.search(text)
    path = place[1] if place else ""
    missing = _MISSING.match(text)
    if missing:
        field = f"{path}.{missing[1]}" if path else missing[1]
        return invalid(field, f"{field} is required")
    why = _AT.sub("", text)
    field = path or "body"
    return invalid(field, f"{field}: {why[0].lower()}{why[1:]}")


def to_http_error(error: Exception, where: str, traceparent: str | None = None) -> HttpError:
    """The error response to any exception. Bugs of the server and damaged histories are logged: `where` names the request, and
    `traceparent` the trace of its caller."""
    match error:
        case HttpError():
            return error
        case Refused():
            return refusal_error(error)
        case Unavailable():
            message = f"the database cannot be used now: {error}"
            return HttpError(503, "storage_unavailable", message, retryable=True, retry_after_seconds=1)
        case RedactionFailed():
            return HttpError(500, "export_redaction_failed", str(error))
        case HistoryDamaged():
            log.error("%s: %s", where, error, extra=log_ids.of_damage(error) | log_ids.of_trace(traceparent))
            # Not a 5xx: clients would repeat the request, which does not help.
            return HttpError(
                409,
                "history_damaged",
                str(error),
                workflow_id=error.workflow_id,
                run_id=error.run_id,
                sequence=error.sequence,
                damage=error.why,
                replay_blocked_reason="history_shape_mismatch",
                recorded_event_types=[NO_HISTORY],
                retryable=False,
                remediation="Restore the database from a backup. The detail of the run shows the state in its rows.",
            )
        case StoreError():
            return HttpError(500, "storage_error", str(error))
        case _:
            log.error("%s failed", where, exc_info=error, extra=log_ids.of_trace(traceparent))
            return HttpError(500, "internal_error", "the server made a mistake; its log says more")


def _errors(field: str, message: str) -> dict[str, Any]:
    errors = {field: [message]}
    return {"errors": errors, "validation_errors": errors}


def too_many_parked(advice: str, **fields: Any) -> HttpError:
    """The error response to a request that would be parked while `max_parked_polls` are."""
    return HttpError(429, "long_poll_capacity_exhausted", advice, **fields, retryable=True, retry_after_seconds=1)
