"""The records of a bulk operation: its request, and page by page its runs with their outcomes.

A page is written twice: with its runs before anything is done to them, and with the outcomes afterwards. So a page that was
begun when its server died is done again for the same runs, and a run that had its command gets the same answer once more.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import replace

from backstay.kernel.operators import OPERATOR_COMMANDS
from backstay.kernel.values import Micros
from backstay.kernel.views.run_query import RunQuery
from backstay.protocol.history import iso
from backstay.protocol.tasks import optional_iso

if TYPE_CHECKING:
    Action = str
else:
    Action = Literal["signal", *(command.name for command in OPERATOR_COMMANDS.values() if command.bulk)]
    """A signal, or an operator command that works in bulk."""

Status = Literal["running", "stopping", "stopped", "completed"]

KIND = "bulk"
PAGE = 100  # runs


class BulkResult(Struct, frozen=True, kw_only=True):
    """The result of a bulk operation for one run."""

    workflow_id: str
    run_id: str
    outcome: Annotated[str, Meta(description="Of the command; `rejected`, `failed` or `not_done`.")]
    reason: str | None
    command_id: str | None


class BulkAnswer(Struct, frozen=True, kw_only=True):
    """A bulk operation, and how far it is."""

    bulk_id: str
    namespace: str
    action: str
    status: str
    filter: dict[str, Any] | None
    id_count: Annotated[int, Meta(description="Workflows that were named by id.")]
    reason: str | None
    signal_name: str | None
    request_id: str | None
    requested_by: dict[str, Any] | None
    total: Annotated[int, Meta(description="Runs that it takes.")]
    done: int
    remaining: int
    accepted: int
    rejected: int
    failed: int
    outcomes: Annotated[dict[str, int], Meta(description="Runs by outcome.")]
    reasons: Annotated[dict[str, int], Meta(description="Runs that were rejected or failed, by reason.")]
    created_at: str
    ended_at: str | None


B = TypeVar("B", bound=BulkAnswer)


class BulkRun(Struct, frozen=True, omit_defaults=True):
    """One run of a bulk operation. `outcome` None: nothing was done to it yet."""

    workflow_id: str
    run_id: str
    outcome: str | None = None  # of the command; "rejected" or "failed"
    reason: str | None = None  # of a rejection or failure
    command_id: str | None = None

    def shown(self) -> BulkResult:
        return BulkResult(
            workflow_id=self.workflow_id,
            run_id=self.run_id,
            outcome=self.outcome or "not_done",
            reason=self.reason,
            command_id=self.command_id,
        )


class BulkPage(Struct, frozen=True, omit_defaults=True):
    """Runs of a bulk operation. `end`: where the selection goes on; None: these are the last."""

    runs: list[BulkRun]
    end: tuple[int, int] | None = None

    @property
    def done(self) -> bool:
        return all(run.outcome is not None for run in self.runs)


class BulkOperation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The request and the progress. A `query` or `ids` say which runs; `upper` is a key that is newer than all of
    them."""

    id: str
    namespace: str
    action: Action
    status: Status
    expected: int
    upper: int
    created_at: Micros
    query: RunQuery | None = None
    filter: dict[str, Any] | None = None  # as it was given
    ids: list[str] = []
    id_count: int = 0
    fields: dict[str, str] = {}  # of the command, the same for all runs
    reason: str | None = None
    signal_name: str | None = None
    arguments: bytes | None = None
    named: dict[str, Any] | None = None
    request_id: str | None = None
    fingerprint: str | None = None
    source: str = "http"
    context: dict[str, Any] = {}
    ended_at: Micros | None = None
    pages: int = 0  # once it has ended
    outcomes: dict[str, int] = {}
    reasons: dict[str, int] = {}

    @property
    def is_open(self) -> bool:
        return self.ended_at is None

    def without_work(self) -> BulkOperation:
        """The operation without what only its work needs."""
        return replace(self, query=None, ids=[], arguments=None, named=None)


class BulkProgress:
    """The outcomes of the runs so far."""

    def __init__(self, outcomes: dict[str, int] | None = None, reasons: dict[str, int] | None = None) -> None:
        self.outcomes = Counter(outcomes or {})
        self.reasons = Counter(reasons or {})

    def add(self, run: BulkRun) -> None:
        if run.outcome is not None:
            self.outcomes[run.outcome] += 1
            if run.reason is not None:
                self.reasons[run.reason] += 1

    @property
    def done(self) -> int:
        return self.outcomes.total()

    def shown(self, bulk: BulkOperation, kind: type[B], **more: Any) -> B:
        """The answer of this kind. `more`: the fields beside the progress."""
        done = self.done
        refused = self.outcomes["rejected"] + self.outcomes["failed"]
        return kind(
            bulk_id=bulk.id,
            namespace=bulk.namespace,
            action=bulk.action,
            status=bulk.status,
            filter=bulk.filter,
            id_count=bulk.id_count,
            reason=bulk.reason,
            signal_name=bulk.signal_name,
            request_id=bulk.request_id,
            requested_by=bulk.context.get("request"),
            total=bulk.expected,
            done=done,
            remaining=max(bulk.expected - done, 0) if bulk.is_open else 0,
            accepted=done - refused,
            rejected=self.outcomes["rejected"],
            failed=self.outcomes["failed"],
            outcomes=dict(self.outcomes),
            reasons=dict(self.reasons),
            created_at=iso(bulk.created_at),
            ended_at=optional_iso(bulk.ended_at),
            **more,
        )
