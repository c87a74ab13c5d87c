"""Findings about a namespace: each problem with its time, a link, and an action.

Nothing is scanned for them: they come from counts by index, from the leases in memory, and from the last liveness certificate.
Each belongs to one of the health checks of the contract. A check is as bad as its worst finding, and health as its worst check;
findings of severity `info` do not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from msgspec import Struct

from backstay.engine.cluster.gone_nodes import told
from backstay.engine.reading.gaps import find_gaps
from backstay.kernel.task import Task
from backstay.kernel.values import SCHEDULES, SECOND, Micros, run_of
from backstay.protocol.history import iso
from backstay.server.cluster.topology import unowned
from backstay.store.figures import DamagedRun

if TYPE_CHECKING:
    from backstay.server.server import Server

Severity = Literal["error", "warning", "info"]

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
LATE = 10 * SECOND  # after this, a wake that has passed is overdue
LATE_SCHEDULE = 60 * SECOND
BEHIND = 10 * SECOND  # of stored views
OLD_PROOF = 120 * SECOND
DAY = 86_400 * SECOND
LONG_RETRY = 3600 * SECOND  # an activity that fails for longer needs attention
LOOKED_AT = 500  # the oldest ready tasks that are compared with those in memory, and wakes that are counted
NAMED = 10  # runs that a finding names; the others are counted


class HealthFinding(Struct, frozen=True, kw_only=True):
    """`more`: fields that only this kind of finding has."""

    severity: Severity
    code: str
    check: str
    message: str
    count: int = 1
    oldest: Micros | None = None
    link: str | None = None
    action: str | None = None
    more: dict[str, Any] = {}

    def view(self, now: Micros) -> dict[str, Any]:
        return {
            "severity": self.severity,
            "code": self.code,
            "check": self.check,
            "message": self.message,
            "count": self.count,
            "oldest_at": None if self.oldest is None else iso(self.oldest),
            "oldest_age_ms": None if self.oldest is None else max(0, now - self.oldest) // 1000,
            "link": self.link,
            "action": self.action,
            **self.more,
        }


def worst(found: Iterable[HealthFinding]) -> str:
    severities = {one.severity for one in found}
    return "error" if "error" in severities else "warning" if "warning" in severities else "ok"


def shown_checks(found: list[HealthFinding]) -> dict[str, dict[str, Any]]:
    """Every check by its name, with its status and the codes of its findings."""
    checks: dict[str, dict[str, Any]] = {}
    for name in CHECKS:
        own = [one for one in found if one.check == name]
        checks[name] = {"status": worst(own), "findings": sorted({one.code for one in own})}
    return checks


async def find(server: Server, namespace: str, *, probe: bool = False) -> list[HealthFinding]:
    """All findings about a namespace, worst first. `probe`: without those that need a look at all leases on disk."""
    found = _of_process(server)
    if server.engine.down is None:
        found += await _of_gone_nodes(server)
        found += await _of_leases(server, namespace, probe)
        found += await _of_tasks(server, namespace)
        found += await _of_runs(server, namespace)
        found += await _of_workers(server, namespace)
        found += await _of_schedules(server, namespace)
    order = ("error", "warning", "info")
    return sorted(found, key=lambda one: order.index(one.severity))


def _of_process(server: Server) -> list[HealthFinding]:
    found: list[HealthFinding] = []
    engine = server.engine
    if engine.down is not None:
        found.append(unavailable(engine.down))
    if not engine.active:
        message = "another process runs this database; this server answers reads, and takes over when that one ends"
        found.append(_database("error", "engine_elsewhere", message))
    elif engine.store.exclusive and engine.holder and not server.recovery.up:
        message = "the engine is starting: it reads the open runs and the leased tasks"
        found.append(_database("warning", "engine_recovering", message))
    if server.draining:
        found.append(_database("warning", "draining", "this server is stopping and leases no more tasks"))
    elif server.cluster.drains.asked:
        message = (
            "this server hands its work to other nodes, as an operator wished; `dw node drain NAME --undo` ends that"
        )
        found.append(_database("warning", "draining", message))
    found += _of_nodes(server)
    lag = server.node.projector.lag
    if lag > BEHIND:
        found.append(
            HealthFinding(
                severity="warning",
                code="projections_behind",
                check="run_summary_projection",
                message=f"summaries of runs are {lag // SECOND} s behind; lists show older states until they catch up",
                oldest=server.now - lag,
                link="/api/system/operator-metrics",
                action="wait; if it stays so, the machine is too slow for its load",
            )
        )
    if server.parked.full:
        found.append(
            HealthFinding(
                severity="warning",
                code="poll_capacity_exhausted",
                check="long_poll_wake_acceleration",
                message=f"{len(server.parked)} polls are parked, as many as max_parked_polls allows: more workers are refused",
                count=len(server.parked),
                link="/api/workers",
                action="raise max_parked_polls, or let each worker poll less often",
            )
        )
    return found


def _of_nodes(server: Server) -> list[HealthFinding]:
    """The state of the other nodes of the database, as of the last look."""
    if server.store.exclusive:
        return []
    found: list[HealthFinding] = []
    forgotten = server.node.shards.forgotten_at
    if forgotten is not None and server.now - forgotten < DAY:
        found.append(
            HealthFinding(
                severity="warning",
                code="database_forgot_commits",
                check="backend_capabilities",
                message="the database had lost commits that it had confirmed, as after a restored backup or a failover: callers"
                " were told of results that are gone, and activities since then may run again",
                count=server.node.shards.counts["forgotten"],
                oldest=forgotten,
                link="/api/nodes",
                action="compare with the systems that activities call; promote synchronous standbys only",
            )
        )
    free = unowned(server.node)
    living = [node for node in server.node.shards.nodes.values() if node.is_alive]
    if free:
        able = any(node.facts.weight for node in living)
        message = (
            f"{free} of {len(server.engine.owned)} shards have no owner; their workflows wait until a node takes them"
        )
        more = "" if able else ", and no living node may take any: start one with a weight above 0"
        found.append(_node("warning" if able else "error", "shards_unowned", message + more, free))
    lost = server.links.unreachable
    if lost:
        message = (
            f"{_many(len(lost), 'node')} cannot be called: {'; '.join(lost[:NAMED])}; requests go through the database"
        )
        found.append(_node("warning", "nodes_unreachable", message, len(lost)))
    releases = sorted({node.facts.version for node in living if node.facts.version})
    if len(releases) > 1:
        found.append(_node("info", "mixed_releases", f"nodes of {len(releases)} releases: {', '.join(releases)}", 1))
    return found


async def _of_gone_nodes(server: Server) -> list[HealthFinding]:
    """Nodes that did not shut down, until an operator forgets them."""
    gone = (await server.cluster.roster.read())["gone"] if not server.store.exclusive else []
    if not gone:
        return []
    message = f"{_many(len(gone), 'node')} did not end by itself: {'; '.join(map(told, gone[:NAMED]))}"
    action = "see why it ended, start it again, or forget it with `dw node forget NAME`"
    return [_node("warning", "nodes_gone", message, len(gone), action)]


def _node(
    severity: Severity, code: str, message: str, count: int, action: str = "`dw nodes` shows the living nodes"
) -> HealthFinding:
    return HealthFinding(
        severity=severity,
        code=code,
        check="routing_health",
        message=message,
        count=count,
        link="/api/nodes",
        action=action,
    )


def unavailable(error: Exception) -> HealthFinding:
    message = f"{error}; commits fail until this is fixed, and the engine retries every second"
    return _database("error", "database_unavailable", message)


def _database(severity: Severity, code: str, message: str) -> HealthFinding:
    return HealthFinding(severity=severity, code=code, check="backend_capabilities", message=message, link="/api/ready")


async def _of_leases(server: Server, namespace: str, probe: bool) -> list[HealthFinding]:
    now = server.now
    over = [
        task.until
        for task in (server.engine.leases if probe else await server.store.leased())
        if task.routing.namespace == namespace and task.until is not None and task.until <= now
    ]
    if not over:
        return []
    return [
        HealthFinding(
            severity="warning",
            code="stale_leases",
            check="task_transport",
            message=f"{_many(len(over), 'lease')} ended without a report; the tasks are offered again",
            count=len(over),
            oldest=min(over),
            link="/api/task-queues",
            action="check whether workers die or hang; `dw repair-pass` takes the tasks back now",
        )
    ]


async def _of_tasks(server: Server, namespace: str) -> list[HealthFinding]:
    found: list[HealthFinding] = []
    failed = [task for task in await server.store.failed() if task.routing.namespace == namespace]
    blocked = [task for task in failed if task.is_blocked]
    if blocked:
        found.append(await _blocked(server, namespace, blocked))
    crashed = len(failed) - len(blocked)
    if crashed:
        since = min(task.created_at for task in failed if task not in blocked)
        found.append(
            HealthFinding(
                severity="warning",
                code="claim_failed",
                check="task_transport",
                message=f"{_many(crashed, 'workflow task')} failed and wait to be tried again; `dw why ID` has the error",
                count=crashed,
                oldest=since,
                link="/api/flows/running?task_problem=true",
                action="read the error in the log of the worker; `dw repair ID` tries again now",
            )
        )
    lost = [
        task.available_at
        for task in await server.store.ready(LOOKED_AT)
        if task.routing.namespace == namespace and server.sweep.unoffered(task)
    ]
    if lost:
        found.append(
            HealthFinding(
                severity="warning",
                code="dispatch_overdue",
                check="task_transport",
                message=f"{_many(len(lost), 'ready task')} were offered to no worker; the sweep offers them again",
                count=len(lost),
                oldest=min(lost),
                link="/api/system/repair",
                action="`dw repair-pass` offers them now",
            )
        )
    return found


async def _blocked(server: Server, namespace: str, tasks: list[Task]) -> HealthFinding:
    tasks = sorted(tasks, key=lambda task: task.created_at)
    reasons = {run_of(task.id): (task.block.reason if task.block else None) or "replay_blocked" for task in tasks}
    named: list[dict[str, Any]] = []
    for run_id in list(reasons)[:NAMED]:
        row = await server.store.run(namespace, run_id)
        if row is not None:
            named.append({"workflow_id": row.workflow_id, "run_id": run_id, "reason": reasons[run_id]})
    by_reason = dict(Counter(reasons.values()))
    why = ", ".join(f"{count} {reason}" for reason, count in by_reason.items())
    return HealthFinding(
        severity="warning",
        code="runs_blocked",
        check="task_transport",
        message=f"{_many(len(reasons), 'run')} {'is' if len(reasons) == 1 else 'are'} blocked ({why}); `dw describe ID`"
        " says by what: deploy corrected code, or `dw repair ID` tries again",
        count=len(reasons),
        oldest=tasks[0].created_at,
        link="/api/flows/running?attention=blocked",
        action="deploy code that fits, or `dw repair ID`",
        more={"by_reason": by_reason, "runs": named},
    )


async def _of_runs(server: Server, namespace: str) -> list[HealthFinding]:
    """Findings about runs from stored views, the certificate and wakes."""
    found: list[HealthFinding] = []
    now, store = server.now, server.store
    causes = {one.cause: one for one in await store.attention_counts(namespace)}
    proof = server.node.certificate.proof
    damaged = await store.damaged_runs(namespace, LOOKED_AT)
    if damaged:
        found.append(_damaged(damaged))
    stranded = 0 if proof is None else proof.without_source(namespace)
    seen = causes.get("repair_needed")
    if stranded or seen is not None:
        count = max(stranded, 0 if seen is None else seen.runs)
        named = [one.workflow_id for one in ([] if proof is None else proof.stranded_in(namespace)) if not one.damage]
        found.append(
            HealthFinding(
                severity="warning",
                code="repair_needed",
                check="durable_resume_paths",
                message=f"{_many(count, 'open run')} would not go on by themselves: a task or a wake is missing on disk;"
                " the sweep restores it, and `dw repair-pass` does so now",
                count=count,
                oldest=None if seen is None else seen.oldest,
                link="/api/system/liveness?stranded=1",
                action="`dw repair-pass`, or `dw repair ID`",
                more={"workflow_ids": named[:NAMED]},
            )
        )
    if proof is not None and now - proof.began_at > OLD_PROOF:
        found.append(
            HealthFinding(
                severity="warning",
                code="certificate_old",
                check="durable_resume_paths",
                message="no liveness pass has completed lately, so a stranded run would not be noticed",
                oldest=proof.began_at,
                link="/api/system/liveness",
                action="check whether the database is overloaded",
            )
        )
    late = await store.overdue(namespace, now - LATE, LOOKED_AT)
    if late.instances:
        found.append(
            HealthFinding(
                severity="warning",
                code="wakes_overdue",
                check="durable_resume_paths",
                message=f"{_many(late.instances, 'instance')} should have woken more than {LATE // SECOND} s ago",
                count=late.instances,
                oldest=late.oldest,
                link="/api/wakes",
                action="look whether this machine is overloaded",
            )
        )
    retrying = causes.get("retrying")
    if retrying is not None:
        long = now - retrying.oldest > LONG_RETRY
        found.append(
            HealthFinding(
                severity="warning" if long else "info",
                code="activities_retrying",
                check="activity_path",
                message=f"{_many(retrying.runs, 'run')} wait for the next attempt of something that failed",
                count=retrying.runs,
                oldest=retrying.oldest,
                link="/api/flows/running?attention=retrying",
                action="`dw why ID` has the last error; `dw retry-now ID` tries again at once",
            )
        )
    return [*found, *await _over_budget(server, namespace)]


async def _over_budget(server: Server, namespace: str) -> list[HealthFinding]:
    """The finding about open histories that should continue as new."""
    events, size = server.settings.continue_as_new_event_threshold, server.settings.continue_as_new_size_bytes_threshold
    budget = await server.store.open_sizes(namespace, events, size)
    if not budget.over:
        return []
    return [
        HealthFinding(
            severity="warning",
            code="history_budget",
            check="history_retention_invariant",
            message=f"{_many(budget.over, 'open run')} should continue as new: at least {events} events or {size} bytes",
            count=budget.over,
            link="/api/flows/running?continue_as_new_recommended=true",
            action="let the code of these workflows continue as new",
            more={"max_event_count": budget.events, "max_size_bytes": budget.bytes},
        )
    ]


def _damaged(runs: list[DamagedRun]) -> HealthFinding:
    number = f"At least {len(runs)}" if len(runs) == LOOKED_AT else str(len(runs))
    return HealthFinding(
        severity="warning",
        code="history_damaged",
        check="durable_resume_paths",
        message=f"{number} open {'run' if len(runs) == 1 else 'runs'} cannot go on: the stored history is damaged, so nothing"
        " says what is next; `dw why ID` names the first event that is wrong",
        count=len(runs),
        oldest=runs[0].since,
        link="/api/system/liveness?stranded=1",
        action="restore the database from a backup",
        more={"runs": [{"workflow_id": one.workflow_id, "run_id": one.run_id} for one in runs[:NAMED]]},
    )


async def _of_workers(server: Server, namespace: str) -> list[HealthFinding]:
    found = [
        HealthFinding(
            severity="warning",
            code="waiting_for_compatible_worker",
            check="worker_compatibility",
            message=gap.message,
            count=gap.count,
            oldest=gap.oldest,
            link=f"/api/task-queues/{quote(gap.queue, safe='')}/tasks",
            action=f"start a worker of queue {gap.queue!r} that has this {gap.missing}",
            more=gap.view(),
        )
        for gap in await find_gaps(server.engine, namespace)
    ]
    if server.admission.limited:
        for waiting in await server.store.waiting_tasks(namespace, server.now):
            limit = server.admission.reached((waiting.kind, namespace, waiting.queue))
            if limit is not None:
                found.append(
                    HealthFinding(
                        severity="info",
                        code="queue_throttled",
                        check="routing_health",
                        message=f"queue {waiting.queue!r} has reached {limit.name} ({limit.used} of {limit.allowed}):"
                        f" {_many(waiting.tasks, 'task')} of {waiting.type} wait",
                        count=waiting.tasks,
                        oldest=waiting.oldest,
                        link=f"/api/task-queues/{quote(waiting.queue, safe='')}",
                        action=f"raise {limit.name} if the workers have room",
                    )
                )
    return found


async def _of_schedules(server: Server, namespace: str) -> list[HealthFinding]:
    now = server.now
    counts = await server.store.schedule_counts(namespace + SCHEDULES, now, now - LATE_SCHEDULE)
    if not counts.overdue:
        return []
    return [
        HealthFinding(
            severity="warning",
            code="schedules_overdue",
            check="scheduler_role",
            message=f"{_many(counts.overdue, 'schedule')} should have fired more than {LATE_SCHEDULE // SECOND} s ago",
            count=counts.overdue,
            oldest=counts.next,
            link="/api/schedules",
            action="look whether this machine is overloaded",
        )
    ]


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
