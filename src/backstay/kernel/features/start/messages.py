"""The messages that reserve and start an instance, and their replies."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from backstay.kernel.decision import CommandRecord
from backstay.kernel.features.start.records import Parent, RecordedDefinition
from backstay.kernel.message import Message
from backstay.kernel.values import Micros, Routing

DuplicatePolicy = Literal["reject_duplicate", "return_existing_active", "return_existing"]
"""The result of a start if the id is in use: a rejection, the run if it is open, or (ours) the run, open or closed."""


class Reserve(Message, frozen=True, kw_only=True):
    """Create an instance without a run."""

    namespace: str
    workflow_id: str
    workflow_type: str


class Start(Message, frozen=True, kw_only=True):
    namespace: str
    workflow_id: str
    workflow_type: str
    arguments: bytes | None = None
    routing: Routing = Routing()
    business_key: str | None = None
    visibility_labels: dict[str, str] = {}
    memo: dict[str, bytes] = {}
    search_attributes: dict[str, Any] = {}
    execution_timeout_seconds: float | None = None
    run_timeout_seconds: float | None = None
    duplicate_policy: DuplicatePolicy = "reject_duplicate"
    definition: RecordedDefinition | None = None
    source: str = "python"
    context: dict[str, Any] = {}
    request_id: str | None = None
    retained: CommandRecord | None = None
    parent: Parent | None = None
    delay: Micros = 0  # before the first task
    standalone: bool = False
    traceparent: str | None = None

    def intent(self) -> tuple[bytes, ...]:
        """The part of the request that must be the same under one request id."""
        return self.workflow_type.encode(), self.arguments or b""

    def idempotency_key(self) -> tuple[tuple[str, ...], str] | None:
        return None if self.request_id is None else (("start",), self.request_id)

    def with_record(self, record: CommandRecord | None) -> Message:
        return replace(self, retained=record)


class StartReply(Struct, frozen=True, kw_only=True):
    """The reply to a start."""

    workflow_id: str
    run_id: str
    outcome: str
    command_id: str | None
    accepted: bool = True
    rejection_reason: str | None = None


class ReserveReply(Struct, frozen=True, kw_only=True):
    """`reserved` False: the instance existed before. `run_id`: of its run, if it has been started."""

    workflow_id: str
    reserved: bool
    run_id: str | None = None
