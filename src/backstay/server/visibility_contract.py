"""The filters of the operator's lists, and what a client needs to draw forms and badges for them.

Fields are compared exactly. The contract has a version; views that were saved under an older one still mean the same.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, Literal

from msgspec import Struct

from backstay.kernel.views.actions import REPAIR_REASONS
from backstay.server.http_errors import HttpError, invalid

VERSION = 5
SUPPORTED = range(1, VERSION + 1)
LONGEST = 191

STATUSES = ("pending", "running", "waiting", "completed", "failed", "cancelled", "terminated")
_LIVENESS = (
    "workflow_task_ready",
    "workflow_task_leased",
    "workflow_task_waiting_for_compatible_worker",
    "activity_task_ready",
    "activity_task_leased",
    "activity_task_waiting_for_compatible_worker",
    "activity_running_without_task",
    "timer_scheduled",
    "waiting_for_condition",
    "waiting_for_signal",
    "waiting_for_child",
    "workflow_replay_blocked",
    "repair_needed",
    "paused",
    "closed",
)


class Field(Struct, frozen=True):
    name: str
    label: str
    type: Literal["string", "boolean"] = "string"
    options: tuple[str, ...] = ()


FIELDS = {
    field.name: field
    for field in (
        Field("instance_id", "Workflow id"),
        Field("run_id", "Run id"),
        Field("workflow_type", "Workflow type"),
        Field("business_key", "Business key"),
        Field("compatibility", "Build"),
        Field("declared_entry_mode", "Entry", options=("canonical",)),
        Field("declared_contract_source", "Declared contract", options=("durable_history", "unavailable")),
        Field("connection", "Connection"),
        Field("queue", "Queue"),
        Field("status", "Status", options=STATUSES),
        Field("status_bucket", "Status bucket", options=("running", "completed", "failed")),
        Field("closed_reason", "Closed because"),
        Field(
            "wait_kind",
            "Waits for",
            options=("activity", "timer", "condition", "signal", "update", "child", "workflow-task"),
        ),
        Field("liveness_state", "Liveness", options=_LIVENESS),
        Field("repair_blocked_reason", "Repair blocked because", options=tuple(REPAIR_REASONS)),
        Field("repair_attention", "Needs attention", "boolean"),
        Field("task_problem", "Task problem", "boolean"),
        Field("is_current_run", "Current run", "boolean"),
        Field("continue_as_new_recommended", "Should continue as new", "boolean"),
        Field("archived", "Archived", "boolean"),
        Field("is_terminal", "Closed", "boolean"),
    )
}


class Filters(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Fields and the values that a run must have in them."""

    fields: dict[str, str | bool] = {}
    labels: dict[str, str] = {}

    def over(self, other: Filters) -> Filters:
        """Both filters together; for a field of both, this one counts."""
        return Filters(fields=other.fields | self.fields, labels=other.labels | self.labels)


def definition() -> dict[str, Any]:
    return {
        "version": VERSION,
        "supported_versions": list(SUPPORTED),
        "fields": [_shown(field, order) for order, field in enumerate(FIELDS.values())],
        "labels": {
            "label": "Labels",
            "query_parameters": ["label", "labels"],
            "input": "key_value_textarea",
            "separator": "=",
            "operator": "exact",
            "placeholder": "team=shop",
        },
        "detail_metadata": {"memo": {"label": "Memo", "filterable": False}},
        "repair_triage": [
            {
                "value": reason.code,
                "label": reason.label,
                "description": reason.description,
                "tone": reason.tone,
                "badge_visible": reason.badge_visible,
            }
            for reason in REPAIR_REASONS.values()
        ],
        "reserved_view_id_prefix": "system:",
    }


def _shown(field: Field, order: int) -> dict[str, Any]:
    input = "boolean_select" if field.type == "boolean" else "select" if field.options else "text"
    options = ("true", "false") if field.type == "boolean" else field.options
    return {
        "field": field.name,
        "label": field.label,
        "type": field.type,
        "input": input,
        "operator": "exact",
        "filterable": True,
        "saved_view_compatible": True,
        "order": order,
        "query_parameter": field.name,
        "options": [{"value": option, "label": option.replace("_", " ")} for option in options],
    }


def check_filters(given: dict[str, Any]) -> dict[str, str | bool]:
    """The filters of a request; raises an error that names the field at fault."""
    found: dict[str, str | bool] = {}
    for name, value in given.items():
        field = FIELDS.get(name)
        if field is None:
            near = get_close_matches(name, FIELDS, 1)
            raise invalid(name, f"{name!r} is no field to filter by" + (f"; did you mean {near[0]!r}?" if near else ""))
        found[name] = _boolean(name, value) if field.type == "boolean" else _text(name, value)
    return found


def _boolean(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() in ("true", "1", "yes"):
        return True
    if str(value).lower() in ("false", "0", "no"):
        return False
    raise invalid(name, f"{name} is true or false, not {value!r}")


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > LONGEST:
        raise invalid(name, f"{name} is a text of at most {LONGEST} characters")
    return value


def supported(version: int) -> None:
    if version not in SUPPORTED:
        raise HttpError(
            422,
            "unsupported_visibility_version",
            f"this view was saved under version {version} of the filters; this server knows {SUPPORTED[0]} to {VERSION}",
            field="version",
            version=version,
            supported_versions=list(SUPPORTED),
        )
