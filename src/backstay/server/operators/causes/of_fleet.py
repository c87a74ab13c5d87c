"""Causes of tasks: no worker takes them, a limit holds them back, or a lease ended without a report."""

from __future__ import annotations

from shlex import quote as shell
from urllib.parse import quote

from backstay.engine.reading.gaps import FleetGap
from backstay.kernel.spans import whole_span
from backstay.kernel.values import Micros
from backstay.server.operators.causes.cause import Cause, CauseAction, CauseSubject, many, runs_link
from backstay.server.operators.causes.situation import Situation

NAMED = 20  # gaps and queues


def of_fleet(situation: Situation) -> list[Cause]:
    return [
        *without_worker(situation.gaps, situation.now),
        *_leases(situation),
        *_lost_tasks(situation),
        *throttled(situation),
    ]


def without_worker(gaps: list[FleetGap], now: Micros) -> list[Cause]:
    """Tasks that no live worker can take: of their queue, type, build or connection."""
    return [_gap(gap, now) for gap in sorted(gaps, key=lambda gap: -gap.count)[:NAMED]]


def _gap(gap: FleetGap, now: Micros) -> Cause:
    what, queue = f"{gap.kind} {gap.type}", gap.queue
    tasks = "1 task waits" if gap.count == 1 else f"{gap.count:,} tasks wait"
    since = f"the oldest for {whole_span(now - gap.oldest)}"
    needs = "tasks without a connection" if gap.connection is None else f"connection {gap.connection!r}"
    sentence, label = {
        "queue": (
            f"No live worker serves queue {queue!r}: {tasks} there for {what}, {since}.",
            f"Start a worker of queue {queue!r}",
        ),
        "type": (
            f"No live worker of queue {queue!r} runs {what}: {tasks}, {since}.",
            f"Register {what} with a worker of queue {queue!r}",
        ),
        "build": (
            f"No live worker of queue {queue!r} has build {gap.build}: {tasks} for {what}, {since}.",
            f"Start a worker of queue {queue!r} with build {gap.build}",
        ),
        "connection": (
            f"No live worker of queue {queue!r} takes {needs}: {tasks} for {what}, {since}.",
            f"Start a worker of queue {queue!r} that takes {needs}",
        ),
    }[gap.missing]
    build = f" --build {shell(gap.build)}" if gap.missing == "build" and gap.build else ""
    return Cause(
        name="no_worker",
        severity="error",
        check="worker_compatibility",
        sentence=sentence,
        count=gap.runs,
        since=gap.oldest,
        subject=CauseSubject(
            task_queue=queue,
            task_type="activity" if gap.kind == "activity" else "workflow",
            type=gap.type,
            build_id=gap.build,
            connection=gap.connection,
            missing=gap.missing,
            tasks=gap.count,
        ),
        link=runs_link("running", attention="no_worker", queue=queue),
        action=CauseAction(label=label, command=f"dw worker FILE --queue {shell(queue)}{build}"),
    )


def _leases(situation: Situation) -> list[Cause]:
    now = situation.now
    over = [
        task.until
        for queue in situation.queues
        for task in queue.leased
        if task.until is not None and task.until <= now
    ]
    if not over:
        return []
    return [
        Cause(
            name="stale_leases",
            severity="warning",
            check="task_transport",
            sentence=f"{many(len(over), 'lease')} ended without a report; the engine offers the tasks again.",
            count=len(over),
            unit="task",
            since=min(over),
            link="/api/task-queues",
            action=CauseAction(
                label="See whether workers die or hang", command="dw repair-pass", operator="repair_pass"
            ),
        )
    ]


def _lost_tasks(situation: Situation) -> list[Cause]:
    lost = situation.lost_tasks
    if not lost:
        return []
    return [
        Cause(
            name="dispatch_overdue",
            severity="warning",
            check="task_transport",
            sentence=f"{many(len(lost), 'ready task')} were offered to no worker; the sweep offers them again.",
            count=len(lost),
            unit="task",
            since=min(one.available_at for one in lost),
            link="/api/system/repair",
            action=CauseAction(label="Run a repair pass", command="dw repair-pass", operator="repair_pass"),
        )
    ]


def throttled(situation: Situation) -> list[Cause]:
    """Queues whose tasks wait because of a limit."""
    return [
        Cause(
            name="throttled",
            severity="info",
            check="routing_health",
            sentence=f"{many(queue.backlog(), 'task')} of queue {queue.name!r} wait for a limit:"
            f" {situation.throttled[queue.name]}",
            count=queue.backlog(),
            unit="task",
            since=queue.oldest,
            subject=CauseSubject(task_queue=queue.name, tasks=queue.backlog()),
            link=f"/api/task-queues/{quote(queue.name, safe='')}/tasks",
            action=CauseAction(label="Raise the limit if the workers have room, or wait"),
        )
        for queue in situation.queues
        if queue.name in situation.throttled
    ][:NAMED]
