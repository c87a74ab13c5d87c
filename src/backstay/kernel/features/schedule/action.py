"""The workflow that a schedule starts: an ordinary instance that records its trigger and reports its close."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.structs import replace

from backstay.kernel.features.child.child_side import start_of, start_once
from backstay.kernel.features.child.messages import StartFromParent
from backstay.kernel.features.delivery import Deliver
from backstay.kernel.features.schedule.records import Cause, Occasion, Overlap, ScheduleTriggered
from backstay.kernel.send import OutboxMessage
from backstay.kernel.turn import Turn
from backstay.kernel.values import Micros

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class StartFromSchedule(StartFromParent, frozen=True, kw_only=True, omit_defaults=True):
    cause: Cause = "schedule"
    effective_overlap_policy: Overlap = "skip"
    visibility_labels: dict[str, str] = {}

    def with_definition(self, define: Callable[[Any, str], Any]) -> OutboxMessage:
        """The schedule does not know the code of the workflow; the engine that delivers the start does."""
        if self.definition is not None:
            return self
        routing, definition = define(self.routing, self.workflow_type)
        return replace(self, routing=routing, definition=definition)


def workflow_id_of(schedule_id: str, occasion: Occasion, number: int) -> str:
    """The id of the workflow for an occurrence. It is made from the occurrence, so that none is started twice."""
    match occasion.cause:
        case "schedule":
            return f"schedule:{schedule_id}:{_iso(occasion.occurrence)}"
        case "backfill":
            return f"schedule:{schedule_id}:backfill:{_iso(occasion.occurrence)}"
        case "manual":
            return f"schedule:{schedule_id}:trigger:{number}"


def _iso(at: Micros) -> str:
    return (_EPOCH + timedelta(microseconds=at)).strftime("%Y-%m-%dT%H:%M:%SZ")


def receive_start(turn: Turn, delivery: Deliver) -> None:
    message = delivery.send.message
    assert isinstance(message, StartFromSchedule)
    parent = message.parent
    start = replace(
        start_of(turn, message),
        source="schedule",
        visibility_labels=message.visibility_labels,
        context={"schedule": {"schedule_id": parent.workflow_instance_id, "trigger_number": parent.sequence}},
    )
    if start_once(turn, delivery, start):
        turn.record(
            ScheduleTriggered(
                schedule_id=parent.workflow_instance_id,
                trigger_number=parent.sequence,
                occurrence_time=parent.occurrence_time or turn.now,
                workflow_instance_id=turn.instance.workflow_id,
                workflow_run_id=turn.run.run_id,
                cause=message.cause,
                effective_overlap_policy=message.effective_overlap_policy,
            )
        )
