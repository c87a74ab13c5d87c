"""What a server says no with: a status, a stable reason, a sentence that helps, and the fields it is about."""

from __future__ import annotations

import logging
import re
from typing import Any

import msgspec

from backstay.kernel.event import HistoryDamaged
from backstay.kernel.message import Refused
from backstay.protocol.history import iso
from backstay.protocol.redaction import RedactionFailed
from backstay.store import StoreError, Unavailable

log = logging.getLogger("backstay.server")

_AT = re.compile(r" - at `\$\.?(.*)`$")
_MISSING = re.compile(r"Object missing required field `([^`]+)`")

# Everything not named here and refused by the kernel is a conflict with the state of things.
_STATUS = {
    "instance_not_found": 404,
    "run_not_found": 404,
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
    """An answer that is a refusal. `last`: the connection ends with it."""

    last = False

    def __init__(self, status: int, reason: str, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.fields = fields

    def body(self) -> dict[str, Any]:
        # `error` and `message` both: the two planes have their own habit, and clients read either.
        return {"error": self.message, "message": self.message, "reason": self.reason, **self.fields}


def refused(refusal: Refused) -> HttpError:
    """What the engine has refused, as an answer."""
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


class Elsewhere(HttpError):
    """This server is not the engine of its database (any more): it has no work to hand out, and no workers to ask. Whoever
    wants either is to ask another server. Their connection ends, since a proxy that knows which one that is looks at new
    ones only."""

    last = True

    def __init__(
        self,
        reason: str,
        said: str = "another process runs the engine of this database; this server has no tasks",
        **fields: Any,
    ) -> None:
        super().__init__(503, reason, said, retryable=True, retry_after_seconds=1, **fields)


class Stopping(HttpError):
    """This server is about to stop: whoever would wait here asks the one that comes after it."""

    last = True

    def __init__(self) -> None:
        said = "this server is about to stop; ask again in a moment"
        super().__init__(503, "server_draining", said, retryable=True, retry_after_seconds=1)


def invalid(field: str, message: str, reason: str = "validation_failed") -> HttpError:
    """A field of the request that cannot be used."""
    return HttpError(422, reason, message, field=field, **_errors(field, message))


def undecodable(error: msgspec.MsgspecError) -> HttpError:
    """A body that is not JSON, or not of the shape that was asked for."""
    if not isinstance(error, msgspec.ValidationError):
        return HttpError(400, "malformed_json", f"the body is not valid JSON: {error}", field="body")
    text = str(error)
    place = _AT.search(text)
    path = place[1] if place else ""
    missing = _MISSING.match(text)
    if missing:
        field = f"{path}.{missing[1]}" if path else missing[1]
        return invalid(field, f"{field} is required")
    said = _AT.sub("", text)
    field = path or "body"
    return invalid(field, f"{field}: {said[0].lower()}{said[1:]}")


def problem_of(error: Exception, where: str) -> HttpError:
    """Whatever went wrong while a request was answered, as the answer. What is our own mistake is logged."""
    match error:
        case HttpError():
            return error
        case Refused():
            return refused(error)
        case Unavailable():
            said = f"the database cannot be used now: {error}"
            return HttpError(503, "storage_unavailable", said, retryable=True, retry_after_seconds=1)
        case RedactionFailed():
            return HttpError(500, "export_redaction_failed", str(error))
        case HistoryDamaged():
            log.error("%s: %s", where, error)
            # Not a 5xx: asking again does not help, and clients would.
            return HttpError(
                409,
                "history_damaged",
                str(error),
                workflow_id=error.workflow_id,
                run_id=error.run_id,
                sequence=error.sequence,
                damage=error.why,
                retryable=False,
                remediation="Restore the database from a backup. The detail of the run shows what its rows still claim.",
            )
        case StoreError():
            return HttpError(500, "storage_error", str(error))
        case _:
            log.error("%s failed", where, exc_info=error)
            return HttpError(500, "internal_error", "the server made a mistake; its log says more")


def _errors(field: str, message: str) -> dict[str, Any]:
    found = {field: [message]}
    return {"errors": found, "validation_errors": found}
