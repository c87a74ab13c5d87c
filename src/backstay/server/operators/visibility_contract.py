"""The filters of the operator's lists, with the data for forms and badges of clients.

Fields are compared exactly. The contract has a version; views that were saved under an older one still mean the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Literal

from msgspec import Struct

from backstay.kernel.views.actions import REPAIR_REASONS
from backstay.kernel.views.present import CAUSES
from backstay.kernel.views.run_query import GROUPS, SORTS, STATUSES
from backstay.kernel.views.summary import CLOSED_STATES, OPEN_STATES
from backstay.protocol.run_detail import BUCKETS
from backstay.server.http.errors import HttpError, invalid

VERSION = 5
SUPPORTED = range(1, VERSION + 1)
LONGEST = 191
MOST_VALUES = 50  # of one field

# A list of runs is by status, while the `status_bucket` of a run (`BUCKETS`) counts all that did not complete as failed.
LISTS: dict[str, tuple[str, ...]] = {
    "all": STATUSES,
    "running": BUCKETS["running"],
    **{status: (status,) for status in ("completed", "failed", "cancelled", "terminated")},
}

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
    """`ours`: beside those of the contract; it has no values but its options."""

    name: str
    label: str
    type: Literal["string", "boolean"] = "string"
    options: tuple[str, ...] = ()
    ours: bool = False


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
        Field("state", "State", options=(*OPEN_STATES, *CLOSED_STATES), ours=True),
        Field("attention", "Needs attention because of", options=CAUSES, ours=True),
    )
}

TIMES = ("started_after", "started_before", "closed_after", "closed_before")
ORDERS = ("desc", "asc")


def definition() -> dict[str, Any]:
    return {
        "version": VERSION,
        "supported_versions": list(SUPPORTED),
        "fields": [_shown(field, order) for order, field in enumerate(FIELDS.values()) if not field.ours],
        "further_fields": [_shown(field, order) for order, field in enumerate(FIELDS.values()) if field.ours],
        "labels": {
            "label": "Labels",
            "query_parameters": ["label", "labels"],
            "input": "key_value_textarea",
            "separator": "=",
            "operator": "exact",
            "placeholder": "team=shop",
        },
        "search_attributes": {
            "label": "Search attributes",
            "query_parameters": ["attribute"],
            "input": "key_value_textarea",
            "separator": "=",
            "operator": "exact",
            "placeholder": "customer=ada",
        },
        "search": {
            "query_parameter": "q",
            "matches": ["instance_id prefix", "workflow_type", "business_key", "run_id"],
        },
        "ranges": list(TIMES),
        "sorts": list(SORTS),
        "orders": list(ORDERS),
        "group_by": [*GROUPS, "label:KEY", "attribute:KEY"],
        "buckets": list(LISTS),
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
        "multiple": field.type != "boolean",
        "filterable": True,
        "saved_view_compatible": True,
        "order": order,
        "query_parameter": field.name,
        "options": [{"value": option, "label": option.replace("_", " ")} for option in options],
    }


def one_of(name: str, value: str, allowed: Iterable[str]) -> str:
    """A value that must be one of these; the error names the nearest."""
    known = tuple(allowed)
    if value in known:
        return value
    near = get_close_matches(value, known, 1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    raise invalid(name, f"{name} must be one of {', '.join(known)}, not {value!r}{meant}")


def unknown_field(name: str, known: Iterable[str]) -> HttpError:
    near = get_close_matches(name, tuple(known), 1)
    return invalid(name, f"{name!r} is no field to filter by" + (f"; did you mean {near[0]!r}?" if near else ""))


def as_boolean(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() in ("true", "1", "yes"):
        return True
    if str(value).lower() in ("false", "0", "no"):
        return False
    raise invalid(name, f"{name} is true or false, not {value!r}")


def as_text(name: str, value: Any) -> str:
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
