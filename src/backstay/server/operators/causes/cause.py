"""A cause: one reason why something needs attention, with its number, its subject and the action that helps.

Every surface shows these: the first screen, health, readiness, metrics, queue pages, and `dw`. So a name, a number and a severity
are the same everywhere. `error` is red: something does not move and will not by itself. `warning` wants a look. `info` is said, and
asks for no action.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from msgspec import Meta, Struct

from backstay.kernel.values import SECOND, Micros
from backstay.protocol.tasks import optional_iso

Severity = Literal["error", "warning", "info"]
Status = Literal["ok", "warning", "error"]
Unit = Literal["run", "task", "queue", "schedule", "node", "shard", "worker", "poll", "process"]

CHECKS = (
    "backend_capabilities",
    "run_summary_projection",
    "selected_run_projections",
    "history_retention_invariant",
    "task_transport",
    "activity_path",
    "routing_health",
    "durable_resume_paths",
    "worker_compatibility",
    "scheduler_role",
    "long_poll_wake_acceleration",
)
"""The health checks of the contract. Each cause belongs to one of them."""

_ORDER = ("error", "warning", "info")


class CauseSubject(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a cause is about. Which fields there are depends on the cause."""

    workflow_type: str | None = None
    reason: Annotated[str | None, Meta(description="Why runs are blocked, or the activity that they retry.")] = None
    error: Annotated[str | None, Meta(description="The error without ids and numbers, by which runs are grouped.")] = (
        None
    )
    worker: Annotated[str | None, Meta(description="The worker, with its host and build.")] = None
    task_queue: str | None = None
    task_type: Literal["workflow", "activity"] | None = None
    type: Annotated[str | None, Meta(description="The workflow type or activity type of the tasks.")] = None
    build_id: str | None = None
    connection: str | None = None
    missing: Annotated[
        str | None, Meta(description="What no live worker has: the queue, the type, the build or the connection.")
    ] = None
    tasks: int | None = None
    limit: str | None = None
    pass_rate: float | None = None
    nodes: list[str] | None = None
    schedule_id: str | None = None


class CauseAction(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What helps: a command to copy, an operator command to press, or both; else the label says what to do."""

    label: str
    command: Annotated[str | None, Meta(description="A command for a terminal.")] = None
    operator: Annotated[
        str | None,
        Meta(description="An operator command for all runs of `arguments.filter`, `repair_pass` or `forget_node`."),
    ] = None
    arguments: dict[str, Any] = {}


class ExampleRun(Struct, frozen=True, kw_only=True):
    workflow_id: str
    run_id: str


class Cause(Struct, frozen=True, kw_only=True):
    """One cause. `exact` False: there are at least so many. `link`: the list of what it counts."""

    name: str
    severity: Severity
    check: str
    sentence: str
    count: int = 1
    unit: Unit = "run"
    exact: bool = True
    since: Micros | None = None
    subject: CauseSubject = CauseSubject()
    action: CauseAction | None = None
    link: str | None = None
    example: ExampleRun | None = None

    def shown(self, now: Micros) -> CauseAnswer:
        return CauseAnswer(
            name=self.name,
            severity=self.severity,
            check=self.check,
            sentence=self.sentence,
            count=self.count,
            unit=self.unit,
            exact=self.exact,
            since=optional_iso(self.since),
            age_seconds=None if self.since is None else max(now - self.since, 0) / SECOND,
            subject=self.subject,
            action=self.action,
            link=self.link,
            example=self.example,
        )


class CauseAnswer(Struct, frozen=True, kw_only=True):
    name: str
    severity: Severity
    check: Annotated[str, Meta(description="The health check that it belongs to.")]
    sentence: str
    count: Annotated[int, Meta(description="How many of `unit` the cause is about.")]
    unit: Unit
    exact: Annotated[bool, Meta(description="False: there are at least so many.")]
    since: str | None
    age_seconds: float | None
    subject: CauseSubject
    action: CauseAction | None
    link: Annotated[str | None, Meta(description="The list of what it counts.")]
    example: Annotated[ExampleRun | None, Meta(description="One of its runs.")]


class CauseVerdict(Struct, frozen=True, kw_only=True):
    """All causes in one sentence."""

    status: Status
    sentence: str
    needs_attention: Annotated[int, Meta(description="How many causes are errors or warnings.")]


def worst_first(causes: Iterable[Cause]) -> list[Cause]:
    """Errors, warnings, the rest; in the order in which they were found."""
    return sorted(causes, key=lambda cause: _ORDER.index(cause.severity))


def worst(causes: Iterable[Cause]) -> Status:
    severities = {cause.severity for cause in causes}
    return "error" if "error" in severities else "warning" if "warning" in severities else "ok"


def verdict(causes: Iterable[Cause], open_runs: int | None) -> CauseVerdict:
    """`open_runs` None: they could not be counted."""
    pressing = [cause for cause in causes if cause.severity != "info"]
    if len(pressing) == 1:
        sentence = "1 thing needs attention."
    elif pressing:
        sentence = f"{len(pressing)} things need attention."
    elif not open_runs:
        sentence = "No run is open, and nothing needs attention."
    elif open_runs == 1:
        sentence = "The one open run is moving or waiting as it should."
    else:
        sentence = f"All {open_runs:,} open runs are moving or waiting as they should."
    return CauseVerdict(status=worst(pressing), sentence=sentence, needs_attention=len(pressing))


def many(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def runs_link(bucket: str, **filters: str) -> str:
    """The address of a list of runs."""
    return f"/api/flows/{bucket}?{urlencode(filters)}"
