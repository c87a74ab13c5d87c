"""Checks of a start before anything is recorded: its id, its options, its size."""

from __future__ import annotations

from typing import get_args

from backstay.kernel.features import memo, search
from backstay.kernel.features.start.messages import DuplicatePolicy, Start
from backstay.kernel.features.start.records import BACKGROUND, STANDALONE
from backstay.kernel.limits import Breach, over_count
from backstay.kernel.message import Refused
from backstay.kernel.names import KNOWN, check_name, is_storable
from backstay.kernel.turn import Turn
from backstay.kernel.values import Routing, valid_id

LABELS_MAX = 100
"""Labels of a run."""

_POLICIES = get_args(DuplicatePolicy)


def check_id(workflow_id: str) -> None:
    """Refuse an id before anything is stored under it."""
    if not valid_id(workflow_id):
        raise Refused(
            "invalid_workflow_id",
            "a workflow id is 1 to 191 characters out of A-Z a-z 0-9 . _ : ~ -",
            field="workflow_id",
            value=workflow_id[:200],
        )


def check_options(message: Start) -> None:
    if not message.workflow_type:
        raise Refused("invalid_workflow_type", "a workflow type is needed", field="workflow_type")
    if message.workflow_type not in KNOWN:
        check_name(message.workflow_type, "workflow_type", "invalid_workflow_type")
    check_routing(message.routing)
    if (message.workflow_type == STANDALONE) is not message.standalone:
        raise Refused(
            "invalid_workflow_type",
            f"{STANDALONE!r} is the type of standalone activities: start an activity, or give the workflow another type",
            field="workflow_type",
        )
    if message.workflow_type == BACKGROUND:
        raise Refused(
            "invalid_workflow_type",
            f"{BACKGROUND!r} is the type of children that run a function: call background(function) in a workflow",
            field="workflow_type",
        )
    if message.duplicate_policy not in _POLICIES:
        raise Refused(
            "invalid_duplicate_policy",
            f"{message.duplicate_policy!r} is no duplicate policy; use one of {', '.join(_POLICIES)}",
            field="duplicate_policy",
        )
    for name, timeout in (
        ("execution_timeout_seconds", message.execution_timeout_seconds),
        ("run_timeout_seconds", message.run_timeout_seconds),
    ):
        if timeout is not None and not 0 < timeout < 1e10:
            raise Refused("invalid_timeout", f"{name} must be above 0 and below 10^10, not {timeout}", field=name)
    if message.business_key is not None and not (
        1 <= len(message.business_key) <= 191 and is_storable(message.business_key)
    ):
        raise Refused(
            "invalid_business_key",
            "a business key is 1 to 191 characters, without NUL and without half surrogates",
            field="business_key",
        )
    if len(message.visibility_labels) > LABELS_MAX:
        raise Refused(
            "invalid_visibility_label",
            f"a run has at most {LABELS_MAX} labels, not {len(message.visibility_labels)}; put the rest into its memo",
            field="visibility_labels",
        )
    for label, value in message.visibility_labels.items():
        if not search.valid_key(label) or not 1 <= len(value) <= 191:
            raise Refused(
                "invalid_visibility_label",
                f"label {label!r}: keys are 1 to 64 of A-Z a-z 0-9 _ . : -, values 1 to 191 characters",
                field=f"visibility_labels.{label}",
            )
    if message.search_attributes:
        search.check(message.search_attributes)
    if message.memo:
        memo.check(message.memo)


def check_routing(routing: Routing) -> None:
    if (
        routing.queue not in KNOWN
        or routing.connection not in KNOWN
        or routing.compatibility not in KNOWN
        or routing.fairness_key not in KNOWN
    ):
        for field in ("queue", "connection", "compatibility", "fairness_key"):
            check_name(getattr(routing, field), field, "invalid_routing")


def check_limits(turn: Turn, message: Start) -> None:
    breach = _breach(turn, message)
    if breach is not None:
        raise Refused(
            "structural_limit_exceeded",
            breach.message,
            limit_kind=breach.kind,
            current_value=breach.value,
            configured_limit=breach.configured,
        )


def _breach(turn: Turn, message: Start) -> Breach | None:
    limits = turn.features.limits
    if len(message.arguments or b"") <= limits.payload_size and not message.memo and not message.search_attributes:
        return None
    return (
        over_count("payload_size", len(message.arguments or b""), limits.payload_size)
        or (over_count("memo_size", memo.size(message.memo), limits.memo_size) if message.memo else None)
        or (
            over_count("search_attribute_size", search.size(message.search_attributes), limits.search_attribute_size)
            if message.search_attributes
            else None
        )
    )
